"""Text <-> token ids of the served model, by a way of its own: splintr's ranks, special ids as constants.

The pipeline reads the same ranks with another library and another special table. Only
`encode_ordinary` is used: the package's `encode` parses special strings and knows tokens above 163839
that are the package's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import splintr

END = 163586
SECTION, SECTION_END = 163595, 163596
CALL, ARGUMENTS, CALL_END = 163597, 163598, 163599
THINK, THINK_END = 163606, 163607

FIRST_SPECIAL, LAST_SPECIAL = 163584, 163839

_NAMES = {
    163584: "[BOS]",
    163585: "[EOS]",
    END: "<|im_end|>",
    163587: "<|im_user|>",
    163588: "<|im_assistant|>",
    163590: "<|start_header_id|>",
    163591: "<|end_header_id|>",
    163593: "[EOT]",
    163594: "<|im_system|>",
    SECTION: "<|tool_calls_section_begin|>",
    SECTION_END: "<|tool_calls_section_end|>",
    CALL: "<|tool_call_begin|>",
    ARGUMENTS: "<|tool_call_argument_begin|>",
    CALL_END: "<|tool_call_end|>",
    163601: "<|im_middle|>",
    163602: "<|media_begin|>",
    163603: "<|media_content|>",
    163604: "<|media_end|>",
    163605: "<|media_pad|>",
    THINK: "<think>",
    THINK_END: "</think>",
    163838: "[UNK]",
    163839: "[PAD]",
}
_NAME_OF = {n: _NAMES.get(n, f"<|reserved_token_{n}|>") for n in range(FIRST_SPECIAL, LAST_SPECIAL + 1)}
_ID_OF = {name: token_id for token_id, name in _NAME_OF.items()}

# Every special string has one of these shapes, and no match can hide the beginning of another.
_SHAPES = re.compile(r"(<\|[a-z0-9_]+\|>|</?think>|\[[A-Z]+\])")


@lru_cache(maxsize=1)
def _tokenizer() -> splintr.AnyTokenizer:
    return splintr.Tokenizer.from_pretrained("kimi_k2")


def encode(text: str) -> list[int]:
    """Ids of ordinary text; special strings in it are spelled out."""
    ids: list[int] = _tokenizer().encode_ordinary(text)
    return ids


def encode_with_specials(text: str) -> list[int]:
    """Ids of text in which special strings count as their tokens, as the server encodes a prompt."""
    ids: list[int] = []
    start = 0
    for found in _SHAPES.finditer(text):
        special = _ID_OF.get(found[0])
        if special is not None:
            ids += encode(text[start : found.start()])
            ids.append(special)
            start = found.end()
    return ids + encode(text[start:])


def token_bytes(token_id: int) -> bytes:
    """The bytes of an ordinary token."""
    given: bytes = _tokenizer().decode_token_bytes(token_id)
    return given


def to_bytes(ids: Sequence[int]) -> bytes:
    """The bytes of ordinary tokens."""
    given: bytes = _tokenizer().decode_bytes(ids)
    return given


def name(token_id: int) -> str:
    """How a special token is written in text."""
    return _NAME_OF[token_id]


def special_id(text: str) -> int | None:
    """The special token that is written so."""
    return _ID_OF.get(text)


@lru_cache(maxsize=1)
def ids_by_bytes() -> dict[bytes, int]:
    """Every ordinary token by its bytes (a fifth of a second; only non-canonical splits need it)."""
    return {token_bytes(token_id): token_id for token_id in range(FIRST_SPECIAL)}
