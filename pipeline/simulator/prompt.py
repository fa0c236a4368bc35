"""A request -> the ids of the prompt that the server feeds the model.

The package `renderers` writes the chat format, asked for pieces of text in place of ids; the pieces are
joined and tokenised here, because the vendor tokenises the whole text at once: a tool result that begins
with line breaks merges with the one before it, and so do neighbouring text parts. Where the package and
the vendor's tool encoder differ, the tools are changed beforehand (research: token anchors 1.3).
All 67 official cases come out equal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pipeline.simulator.request import Asked, text_of
from pipeline.simulator.vocabulary import encode_with_specials, name, special_id

if TYPE_CHECKING:
    from renderers.kimi_k25 import KimiK25Renderer

_PIECE = 1_000_000
"""Ids from here on are no tokens: they number the pieces of text."""

_STEP = 400_000
_LONG_RUN = re.compile(r"\s{25000}(?=\s)|\S{25000}(?=\S)")

# Private characters round a value that the package would print as JSON and the vendor prints as Python.
_OPEN, _CLOSE = "\ue0f0", "\ue0f1"
_PRINTED = re.compile(f'"{_OPEN}([^{_CLOSE}]*){_CLOSE}"')

_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
}


class _Pieces:
    """What `renderers` takes for a tokenizer: it numbers texts and knows the special tokens."""

    unk_token_id = -1

    def __init__(self) -> None:
        self.texts: list[str] = []

    def convert_tokens_to_ids(self, token: str) -> int:
        found = special_id(token)
        return self.unk_token_id if found is None else found

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        self.texts.append(text)
        return [_PIECE + len(self.texts) - 1]

    def text(self, ids: Sequence[int]) -> str:
        return "".join(self.texts[n - _PIECE] if n >= _PIECE else name(n) for n in ids)


@lru_cache(maxsize=2)
def _renderer(thinking: bool) -> tuple[KimiK25Renderer, _Pieces]:
    # Imported late: it takes most of a second, and only the process that answers needs it.
    from renderers.configs import KimiK25RendererConfig
    from renderers.kimi_k25 import KimiK25Renderer

    pieces = _Pieces()
    return KimiK25Renderer(pieces, KimiK25RendererConfig(thinking=thinking)), pieces


def prompt_text(asked: Asked) -> str:
    """The prompt with special tokens spelled out."""
    functions = [tool for tool in asked.tools if tool.get("type") == "function" and tool.get("function")]
    if functions:
        try:
            # Quoted markers of ours only ever stand in the declarations, at the front.
            return _PRINTED.sub(r"\1", _written(asked, [_as_the_vendor_sees(tool) for tool in functions]))
        except (AttributeError, KeyError, TypeError, ValueError):
            pass  # the vendor's encoder gives up on the whole list, too, and JSON stands in its place
    text = _written(asked, None)
    if asked.tools:
        declared = json.dumps(asked.tools, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
        return f"<|im_system|>tool_declare<|im_middle|>{declared}<|im_end|>{text}"
    return text


def _written(asked: Asked, tools: list[Any] | None) -> str:
    renderer, pieces = _renderer(asked.thinking)
    try:
        messages = [_message(one) for one in asked.messages]
        return pieces.text(renderer.render_ids(messages, tools=tools, add_generation_prompt=True))
    finally:
        pieces.texts.clear()


def prompt_ids(asked: Asked) -> list[int]:
    """Special strings inside messages become special ids, as in the vendor's tokenizer."""
    return [token_id for piece in _cut(prompt_text(asked)) for token_id in encode_with_specials(piece)]


def _cut(text: str) -> Iterator[str]:
    """The vendor's tokenizer encodes slices: 400,000 characters, no longer run than 25,000 in one of them."""
    for begin in range(0, len(text), _STEP):
        piece = text[begin : begin + _STEP]
        start = 0
        for run in _LONG_RUN.finditer(piece) if len(piece) > 25_000 else ():
            yield piece[start : run.end()]
            start = run.end()
        yield piece[start:]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Nulls are dropped; old reasoning always gets its field, or the package would look for it in content."""
    kept = {key: value for key, value in message.items() if value is not None}
    if kept.get("role") == "assistant":
        kept["reasoning_content"] = kept.get("reasoning_content") or kept.pop("reasoning", "")
        kept["content"] = text_of(kept.get("content"))
    return kept


def _as_the_vendor_sees(value: Any) -> Any:
    """Keys in order; booleans in defaults, and all but texts in enums, as Python prints them."""
    if isinstance(value, list):
        return [_as_the_vendor_sees(one) for one in value]
    if not isinstance(value, dict):
        return value
    ordered = {key: _as_the_vendor_sees(value[key]) for key in sorted(value)}
    if isinstance(ordered.get("default"), bool):
        ordered["default"] = f"{_OPEN}{ordered['default']}{_CLOSE}"
    if isinstance(ordered.get("enum"), list):
        _check_enum(ordered)
        ordered["enum"] = [
            one if isinstance(one, str) else f"{_OPEN}{one}{_CLOSE}" for one in ordered["enum"]
        ]
    return ordered


def _check_enum(schema: Mapping[str, Any]) -> None:
    """The vendor's encoder fails where an enum contradicts its type, or has more than one besides null."""
    given = schema.get("type", "")
    kinds = given if isinstance(given, list) else [given]
    kinds = [kind for kind in kinds if kind != "null"] if len(kinds) == 2 else kinds
    if len(kinds) != 1:
        raise ValueError("an enum of several types")
    fitting = _PYTHON_TYPES.get(kinds[0], object)
    if not all(one is None or isinstance(one, fitting) for one in schema["enum"]):
        raise ValueError("an enum against its type")
