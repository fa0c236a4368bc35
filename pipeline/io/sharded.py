"""Shards -> what a function makes of each, in order: out of the cache, or worked on in processes or on Ray.

Small datasets are worked on here and not kept: starting processes and hashing would cost more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from pipeline.config import Runtime
from pipeline.errors import StageError
from pipeline.io.executor import in_order
from pipeline.io.progress import progress
from pipeline.io.shard_cache import ShardCache

MANY_ROWS = 15_000
"""From here on processes, cache and the faster encoder save more than the seconds that they take."""

Parts = Sequence[bytes]
Work = Callable[[pa.Table], Parts]


@dataclass(frozen=True)
class _Item:
    name: str
    table: pa.Table | None
    rows: int
    key: str = ""
    known: Parts | None = None


def work_on(
    work: Work, shards: Iterable[tuple[str, pa.Table]], stage: str, made_of: Any, runtime: Runtime, rows: int
) -> Iterator[tuple[str, Parts]]:
    """(name, what `work` made of the shard's table) of every shard, in order; few are in memory.

    `made_of`: everything but the table and the code that the result depends on, as JSON values. `rows`:
    of all shards together.
    """
    few = rows < MANY_ROWS
    cache = None if few or not runtime.shard_cache_gb else ShardCache(stage, made_of, runtime)
    try:
        results = in_order(partial(_done, work), _items(shards, cache), runtime, here=few)
        note = (lambda: f"{cache.hits} shards as before") if cache else (lambda: "")
        with progress(stage, rows, note) as step:
            for item, parts in results:
                if cache is not None and item.known is None:
                    cache.put(item.key, parts)
                yield item.name, parts
                step(item.rows)
    finally:
        if cache is not None:
            cache.close()


def _items(shards: Iterable[tuple[str, pa.Table]], cache: ShardCache | None) -> Iterator[_Item]:
    for name, table in shards:
        if cache is None:
            yield _Item(name, table, table.num_rows)
            continue
        key = cache.key(table)
        known = cache.get(key)
        yield _Item(name, table if known is None else None, table.num_rows, key, known)


def _done(work: Work, item: _Item) -> tuple[_Item, Parts]:
    """In a worker. The table stays there."""
    try:
        parts = item.known if item.table is None else work(item.table)
    except StageError as error:
        raise StageError(f"shard {item.name}: {error}") from None
    assert parts is not None
    return replace(item, table=None), parts
