"""A JSON Schema -> the argument text of a call, in the layouts that models write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.simulator.chance import Chance
from pipeline.simulator.texts import Corpus

_LAYOUTS = {"compact": 50.0, "spaced": 33.0, "two": 10.0, "four": 4.0, "tab": 3.0}
_SEPARATORS = {"compact": (",", ":"), "spaced": (", ", ": ")}
_INDENT: dict[str, int | str] = {"two": 2, "four": 4, "tab": "\t"}
_DEEPEST = 5
_STRING_KINDS = ("chat", "code", "math", "chinese", "agentic", "hostile")
_WORDS = (
    "draft",
    "Zürich",
    "2024-11-05",
    "notes/today.md",
    "东京",
    "a-17",
    "",
    "O'Neill & Sons",
    "naïve",
    "🙂",
)
_NUMBERS = (0, 1, 2, 7, 10, 42, 100, 1000, 65535, -1, -273)
_FRACTIONS = (0.5, 1.0, 3.14, -0.25, 1e-07, 2.5e21, 99.9)


def arguments_for(schema: Any, borrowed: float, chance: Chance, corpus: Corpus) -> str:
    """Fits the schema as far as it is understood (`$ref`, unions, enums, nesting); the rest is free.

    In `borrowed` of the cases it is an object of the corpus, whatever the schema says.
    """
    if corpus.objects and chance.happens(borrowed):
        return _written(chance.pick(corpus.objects), chance)
    root = schema if isinstance(schema, Mapping) else {}
    value = _Maker(root, chance, corpus).value(root or {"type": "object"}, 0)
    return _written(value if isinstance(value, dict) else {"value": value}, chance)


def _written(value: dict[str, Any], chance: Chance) -> str:
    layout = chance.weighted(_LAYOUTS)
    return json.dumps(
        value,
        ensure_ascii=chance.happens(0.1),
        separators=_SEPARATORS.get(layout),
        indent=_INDENT.get(layout),
    )


class _Maker:
    def __init__(self, root: Mapping[str, Any], chance: Chance, corpus: Corpus) -> None:
        self._root, self._chance, self._corpus = root, chance, corpus

    def value(self, schema: Any, depth: int) -> Any:
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return self._chance.pick(schema["enum"])
        for union in ("anyOf", "oneOf"):
            if isinstance(schema.get(union), list) and schema[union]:
                return self.value(self._chance.pick(schema[union]), depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = self._chance.pick(kind) if kind else "string"
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "integer":
                return self._chance.pick(_NUMBERS)
            case "number":
                return self._chance.pick((*_NUMBERS, *_FRACTIONS))
            case "boolean":
                return self._chance.happens(0.5)
            case "null":
                return None
        return self._string()

    def _resolved(self, schema: Any) -> Mapping[str, Any]:
        """Follows `#/...`; what leads nowhere is an empty schema."""
        for _ in range(_DEEPEST):
            if not isinstance(schema, Mapping):
                return {}
            if not isinstance(schema.get("$ref"), str):
                return schema
            target: Any = self._root
            for step in schema["$ref"].removeprefix("#").strip("/").split("/"):
                target = target.get(step) if step and isinstance(target, Mapping) else target
            schema = target
        return {}

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            if depth >= _DEEPEST or self._chance.happens(0.4):
                return {}
            return {self._chance.pick(("key", "名前", "note")): self._string()}
        required = schema.get("required") or ()
        names = [
            name
            for name in properties
            if name in required or (depth < _DEEPEST and self._chance.happens(0.5))
        ]
        if self._chance.happens(0.1):
            names = self._chance.mixed(names)
        # A schema that requires itself has no end; deep down the empty object stands for it.
        return (
            {name: self.value(properties[name], depth + 1) for name in names} if depth < 2 * _DEEPEST else {}
        )

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        count = 0 if depth >= _DEEPEST else self._chance.between(0, 3)
        return [self.value(schema.get("items"), depth + 1) for _ in range(count)]

    def _string(self) -> str:
        if self._chance.happens(0.5):
            return self._chance.pick(self._corpus.strings or _WORDS)
        text = self._corpus.pick((self._chance.pick(_STRING_KINDS),), self._chance)
        return text if self._chance.happens(0.15) else text[: self._chance.between(3, 60)]
