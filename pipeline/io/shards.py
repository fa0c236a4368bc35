"""build/responses/d.parquet -> its shards, one at a time, cut in source order by content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipeline.core.shards import Cutter, Names
from pipeline.io.files import read_parquet_parts

_AT_ONCE = 500


@dataclass(frozen=True)
class Shard:
    """One shard and the stem of its file name."""

    name: str
    table: pa.Table


def read_shards(path: Path, mean_rows: int) -> Iterator[Shard]:
    """Shards in source order; one and a part of the file are in memory. Raises StageError (read_parquet)."""
    cutter, names = Cutter(mean_rows), Names()
    pending: list[pa.RecordBatch] = []
    for part in read_parquet_parts(path, _AT_ONCE):
        start = 0
        for opened in cutter.feed(part.column("prompt_id").to_pylist()):
            if opened > start:
                pending.append(part.slice(start, opened - start))
            if pending:
                yield _shard(names, pending)
            pending, start = [], opened
        if start < part.num_rows:
            pending.append(part.slice(start))
    if pending:
        yield _shard(names, pending)


def _shard(names: Names, parts: list[pa.RecordBatch]) -> Shard:
    table = pa.Table.from_batches(parts).combine_chunks()
    return Shard(names.of(table.column("prompt_id")[0].as_py()), table)
