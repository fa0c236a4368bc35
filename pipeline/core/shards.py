"""Prompt ids in source order -> where to cut the table into shards, so that an edit moves few cuts.

A shard opens at a prompt whose own hash says so, whatever its position: appending or editing a
stretch of prompts leaves all other shards as they are (content-defined chunking; 4 of 279 shards
changed where sharding by hash alone rewrote all 256).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

LONGEST = 4
"""Times the mean."""


def opens_shard(prompt_id: str, mean_rows: int) -> bool:
    """True for one prompt in `mean_rows`, decided by the prompt alone."""
    digest = hashlib.blake2b(prompt_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % mean_rows == 0


class Cutter:
    """Told of prompt ids part by part, in source order, says where shards open.

    Rows of one prompt (its turns stand together) are never parted. A shard that would grow beyond
    `LONGEST` times the mean is cut too, so that memory is bounded; that is one in e^4 = 55.
    """

    def __init__(self, mean_rows: int) -> None:
        self._mean = mean_rows
        self._before: str | None = None
        self._rows = 0

    def feed(self, prompt_ids: Sequence[str]) -> list[int]:
        """Positions in this part at which a shard opens."""
        opened: list[int] = []
        for row, prompt_id in enumerate(prompt_ids):
            if prompt_id != self._before:
                full = self._rows >= LONGEST * self._mean
                if self._before is None or full or opens_shard(prompt_id, self._mean):
                    opened.append(row)
                    self._rows = 0
                self._before = prompt_id
            self._rows += 1
        return opened


def cut(prompt_ids: Sequence[str], mean_rows: int) -> list[range]:
    """Consecutive row ranges, one a shard."""
    starts = Cutter(mean_rows).feed(prompt_ids)
    ends = [*starts[1:], len(prompt_ids)][: len(starts)]
    return [range(start, end) for start, end in zip(starts, ends, strict=True)]


class Names:
    """A shard's name, by the prompt that opens it: names stay when shards before it come and go."""

    def __init__(self) -> None:
        self._used: Counter[str] = Counter()

    def of(self, first_prompt_id: str) -> str:
        """Names are told apart where several begin alike."""
        stem = first_prompt_id[:16]
        self._used[stem] += 1
        return f"{stem}-{self._used[stem] - 1}" if self._used[stem] > 1 else stem
