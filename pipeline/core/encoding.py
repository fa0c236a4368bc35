"""Text -> ids: the two ways a target's tokenizer is used, and what every encoder must offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Encoder(Protocol):
    """A loaded tokenizer. Ids are ints below `vocab_size`; `special` maps every special token to its id."""

    special: Mapping[str, int]
    vocab_size: int

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text: a special string inside it is spelled out, never its special id."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text."""
        ...

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a rendered prompt as the vendor's tokenizer encodes it (special strings parsed)."""
        ...

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes behind the ids; special ids give their own string."""
        ...
