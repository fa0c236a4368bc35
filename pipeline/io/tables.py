"""Samples, rejects and verdicts <-> their Parquet files; shards keep their order in a small index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import schemas
from pipeline.core.rules import Columns
from pipeline.errors import StageError
from pipeline.io.files import read_json, read_parquet, write_json
from pipeline.records import Reject, Sample

INDEX = "index.json"


_PLAIN = ("row_id", "prompt_id", "turn", "prompt_length", "text", "provider", "model", "prompt_delta")


def samples_table(samples: Sequence[Sample]) -> pa.Table:
    """One shard, in the columns of SAMPLES."""
    columns: dict[str, Any] = {name: [getattr(sample, name) for sample in samples] for name in _PLAIN}
    columns["input_ids"] = _lists([sample.input_ids for sample in samples], np.int32)
    columns["flags"] = [sample.flags for sample in samples]
    columns["ending"] = [sample.ending.value for sample in samples]
    columns["fidelity"] = [sample.fidelity.value for sample in samples]
    spans = [span for sample in samples for span in sample.spans]
    columns["spans"] = pa.ListArray.from_arrays(
        _offsets([sample.spans for sample in samples]),
        pa.StructArray.from_arrays(
            [
                pa.array([span.kind for span in spans], pa.string()),
                pa.array([span.start for span in spans], pa.int32()),
                pa.array([span.end for span in spans], pa.int32()),
            ],
            names=["kind", "start", "end"],
        ),
    )
    return pa.table([columns[field.name] for field in schemas.SAMPLES], schema=schemas.SAMPLES)


def _lists(rows: Sequence[Sequence[int]], dtype: Any) -> pa.ListArray:
    """Rows of numbers, through one flat array."""
    flat = np.fromiter(chain.from_iterable(rows), dtype=dtype)
    return pa.ListArray.from_arrays(_offsets(rows), pa.array(flat))


def _offsets(rows: Sequence[Sequence[Any]]) -> pa.Array:
    return pa.array(np.r_[0, np.cumsum([len(row) for row in rows], dtype=np.int64)].astype(np.int32))


def write_index(folder: Path, shards: Sequence[tuple[str, int]]) -> None:
    """Names of the shards in source order, with their rows. File names alone carry no order."""
    write_json(folder / INDEX, {"shards": [{"file": name, "rows": rows} for name, rows in shards]})


@dataclass(frozen=True)
class Shard:
    """One shard as read back."""

    name: str
    table: pa.Table


def read_samples(folder: Path) -> Iterator[Shard]:
    """Shards in source order, one at a time. Raises StageError if the index and the files disagree."""
    for name, rows in _index(folder):
        table = read_parquet(folder / name)
        if table.num_rows != rows:
            raise StageError(f"{folder / name}: {table.num_rows} rows, the index says {rows}")
        yield Shard(name, table)


def _index(folder: Path) -> list[tuple[str, int]]:
    if not (folder / INDEX).exists():
        raise StageError(f"{folder}: no samples; they are written by the reconstruct stage: run `dvc repro`")
    return [(shard["file"], shard["rows"]) for shard in read_json(folder / INDEX)["shards"]]


def count_samples(folder: Path) -> int:
    """Rows of all shards, by their index."""
    return sum(rows for _, rows in _index(folder))


def to_columns(table: pa.Table) -> Columns:
    """A shard as the flat arrays that the rules read."""
    ids, starts = _flat(table.column("input_ids"))
    spans, span_starts = _flat_structs(table.column("spans"))
    return Columns(
        row_ids=table.column("row_id").to_pylist(),
        ids=ids,
        starts=starts,
        prompt_length=table.column("prompt_length").to_numpy().astype(np.int64),
        endings=table.column("ending").to_pylist(),
        flags=table.column("flags").to_pylist(),
        texts=table.column("text").to_pylist(),
        span_kinds=spans.field("kind").to_pylist(),
        span_begin=spans.field("start").to_numpy().astype(np.int64),
        span_end=spans.field("end").to_numpy().astype(np.int64),
        span_starts=span_starts,
    )


def _flat(column: pa.ChunkedArray) -> tuple[Any, Any]:
    array = column.combine_chunks()
    starts = np.r_[0, np.cumsum(np.asarray(array.value_lengths()))].astype(np.int64)
    return array.flatten().to_numpy().astype(np.int64), starts


def _flat_structs(column: pa.ChunkedArray) -> tuple[pa.StructArray, Any]:
    array = column.combine_chunks()
    return array.flatten(), np.r_[0, np.cumsum(np.asarray(array.value_lengths()))].astype(np.int64)


def rejects_table(rejects: Sequence[Reject]) -> pa.Table:
    """Rows that gave no sample, each with its raw fields and candidates."""
    rows = [
        {
            "row_id": reject.row_id,
            "stage": reject.stage,
            "reason": reject.reason,
            "detail": reject.detail,
            "raw": reject.raw,
            "candidates": json.dumps([{"reading": name, "ids": ids} for name, ids in reject.candidates]),
        }
        for reject in rejects
    ]
    return pa.Table.from_pylist(rows, schema=schemas.REJECTS)
