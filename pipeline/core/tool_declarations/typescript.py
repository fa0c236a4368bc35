"""Tools with JSON Schema parameters -> a TypeScript namespace, as Kimi-K2.5 and later were trained on.

What the model saw is the output of the vendor's encoder, so its habits are kept even where they
are odd. Established against its published behaviour (golden texts in the tests):
* All objects are put in key order first, so `$defs` and object defaults come out sorted.
* Required parameters stand before optional ones, except in `interface parameters`.
* Numbers and booleans are written as Python writes them (`// Default: False`, `None` in an enum).
* Only descriptions of parameters, array items, definitions and functions are written.
* A schema that it can't express (`oneOf`, `const`, a bare description, ...) in one tool makes it give
  up on the whole list; the prompt then holds JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_STEP = "  "
_LIMITS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
_IN_UNION = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "{}",
    "array": "Array<any>",
}
_ENUM_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
}


def declare(tools: Sequence[Mapping[str, Any]]) -> str | None:
    """The declaration, or None where the vendor's encoder fails or finds no function."""
    try:
        functions = [
            _function(tool["function"])
            for tool in _in_key_order(list(tools))
            if tool.get("type") == "function" and tool.get("function")
        ]
    # A malformed schema fails wherever its shape first disappoints (`required: null`, a text for an
    # object, an unknown $ref). The vendor's encoder turns any failure into its JSON branch; so do we.
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    if not functions:
        return None
    return "\n".join(["# Tools", "", "## functions", "namespace functions {", *functions, "}", ""])


def _in_key_order(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _in_key_order(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_in_key_order(item) for item in value]
    return value


def _function(function: dict[str, Any]) -> str:
    reader = _Reader()
    parameters = reader.read_object(function.get("parameters") or {})
    # Decided before the definitions are read: a "#" that only stands in one of them does not count.
    root = reader.root_is_named
    lines = []
    if root:
        fields = ",\n".join(one.write(_STEP) for one in parameters.fields)
        lines.append(f"interface parameters {{\n{fields}\n}}" if fields else "interface parameters {}")
    for name, schema in list(reader.definitions.items()):
        body = reader.read(schema).write("")
        if about := schema.get("description"):
            lines.append(_comment(about, ""))
        lines.append(f"interface {name} {body}")
    if about := function.get("description"):
        lines.append(_comment(about, ""))
    argument = "parameters" if root else parameters.write("")
    lines.append(f"type {function.get('name', 'function')} = (_: {argument}) => any;")
    return "\n".join(lines)


def _comment(text: str, indent: str) -> str:
    return "\n".join(f"{indent}// {line}" if line else "" for line in text.split("\n"))


@dataclass(frozen=True, slots=True)
class _Shape:
    """A schema that was read: its comment, and how its type is written at an indent.

    Reading and writing are two passes because the vendor's failures differ between them: a
    description of the wrong type does no harm where it is not written. `write` gives text, unless
    `type` itself is no text (a bare `null` of YAML): formatted that is `None`, joined it fails.
    """

    write: Callable[[str], Any]
    about: Any = ""
    limits: str = ""

    def comment(self, indent: str) -> str:
        """Lines above the type, each with its line end."""
        about = _comment(self.about, indent) + "\n" if self.about else ""
        return about + (f"{indent}// {self.limits}\n" if self.limits else "")


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    optional: bool
    default: Any
    shape: _Shape

    def write(self, indent: str) -> str:
        comment = self.shape.comment(indent)
        if self.default is not None:
            number = isinstance(self.default, int | float)
            shown = repr(self.default) if number else json.dumps(self.default, ensure_ascii=False)
            comment += f"{indent}// Default: {shown}\n"
        return f"{comment}{indent}{self.name}{'?' if self.optional else ''}: {self.shape.write(indent)}"


@dataclass(frozen=True, slots=True)
class _Object:
    fields: list[_Field]
    others: Any
    """What other keys may hold: a shape, True, False, or None where the schema does not say."""

    def write(self, indent: str) -> str:
        inner = indent + _STEP
        # Each half keeps key order, which is the schema's own by now.
        lines = [one.write(inner) for one in sorted(self.fields, key=lambda one: one.optional)]
        if self.others is not None:
            lines.append(f"{inner}[k: string]: {self._others(inner)}")
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"

    def _others(self, indent: str) -> Any:
        if isinstance(self.others, _Shape):
            return self.others.write(indent)
        if isinstance(self.others, bool):
            return "any" if self.others else "never"
        raise ValueError(f"additionalProperties can't be {self.others!r}")


@dataclass(slots=True)
class _Reader:
    """Reads the schemas of one function; gathers the definitions that it meets on the way."""

    definitions: dict[str, Any] = field(default_factory=dict)
    root_is_named: bool = False

    def read(self, schema: Any) -> _Shape:
        if isinstance(schema, bool):
            return _Shape(lambda _: "any" if schema else "null")
        if not isinstance(schema, dict):
            raise TypeError(f"{schema!r} is not a schema")
        about = schema.get("description")
        if "$ref" in schema:
            name = self._target(schema["$ref"])
            return _Shape(lambda _: name, about)
        if "anyOf" in schema:
            members = [self.read(member) for member in schema["anyOf"]]
            return _Shape(lambda indent: " | ".join(one.write(indent) for one in members), about)
        if "enum" in schema:
            return _Shape(_written(_enum(schema)), about)
        if "type" in schema:
            return self._typed(schema, about)
        if not schema:
            return _Shape(lambda _: "any")
        raise ValueError(f"{schema!r} has no type")

    def read_object(self, schema: dict[str, Any]) -> _Object:
        if not isinstance(schema, dict):
            raise TypeError(f"{schema!r} is not a schema")
        self.definitions.update((schema.get("$defs") or {}).items())
        others = schema.get("additionalProperties")
        if isinstance(others, dict):
            others = self.read(others)
        fields = []
        if "properties" in schema:
            properties = schema["properties"]
            optional = set(properties.keys()) - set(schema.get("required", []))
            for name, one in properties.items():
                default = one.get("default") if isinstance(one, dict) else None
                fields.append(_Field(name, name in optional, default, self.read(one)))
        return _Object(fields, others)

    def _typed(self, schema: dict[str, Any], about: Any) -> _Shape:
        kind = schema["type"]
        if isinstance(kind, list):
            return _Shape(_written(_IN_UNION[one] for one in kind), about)
        if kind == "object":
            return _Shape(self.read_object(schema).write, about)
        names = _LIMITS.get(str(kind), ())
        limits = ", ".join(f"{name}: {schema[name]}" for name in names if name in schema)
        if kind == "array":
            items = schema.get("items")
            item = self.read(items) if items else _Shape(lambda _: "any")
            return _Shape(lambda indent: _array(item, indent), about, limits)
        return _Shape(lambda _: "number" if kind == "integer" else kind, about, limits)

    def _target(self, ref: str) -> str:
        if ref == "#":
            self.root_is_named = True
            return "parameters"
        name = ref.split("/")[-1]
        if not ref.startswith("#/$defs/") or not isinstance(self.definitions[name], dict):
            raise ValueError(f"{ref!r} is not a definition of this function")
        return name


def _written(parts: Iterable[str]) -> Callable[[str], str]:
    text = " | ".join(parts)
    return lambda _: text


def _array(item: _Shape, indent: str) -> str:
    inner = indent + _STEP
    if comment := item.comment(inner):
        return "".join(["Array<\n", comment, inner, item.write(inner), "\n", indent, ">"])
    return f"Array<{item.write(indent)}>"


def _enum(schema: dict[str, Any]) -> list[str]:
    """Values as written: no escapes in texts, all else as Python shows it."""
    values = list(schema["enum"])
    kind = schema.get("type", "")
    if isinstance(kind, list):
        if len(kind) == 2 and "null" in kind:
            kind = kind[1] if kind[0] == "null" else kind[0]
        elif len(kind) == 1:
            kind = kind[0]
        else:
            raise ValueError(f"an enum can't have the types {kind!r}")
    wanted = _ENUM_TYPES.get(str(kind), object)
    for value in values:
        if value is not None and not isinstance(value, wanted):
            raise ValueError(f"{value!r} is not of type {kind!r}")
    return [f'"{value}"' if isinstance(value, str) else str(value) for value in values]
