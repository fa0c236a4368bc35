"""Samples, rejects and verdicts <-> their Parquet files; shards keep their order in a small index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import schemas
from pipeline.core.rules import Columns
from pipeline.errors import StageError
from pipeline.io.files import read_json, read_parquet, write_json, write_parquet
from pipeline.records import Reject, Sample

INDEX = "index.json"


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """One shard."""
    columns: dict[str, list[Any]] = {
        name: [getattr(sample, name) for sample in samples]
        for name in (
            "row_id",
            "prompt_id",
            "turn",
            "prompt_length",
            "text",
            "provider",
            "model",
            "prompt_delta",
        )
    }
    columns["input_ids"] = [np.asarray(sample.input_ids, dtype=np.int32) for sample in samples]
    columns["flags"] = [list(sample.flags) for sample in samples]
    columns["ending"] = [sample.ending.value for sample in samples]
    columns["fidelity"] = [sample.fidelity.value for sample in samples]
    columns["spans"] = [
        [{"kind": span.kind, "start": span.start, "end": span.end} for span in sample.spans]
        for sample in samples
    ]
    write_parquet(
        path, pa.table({field.name: columns[field.name] for field in schemas.SAMPLES}, schema=schemas.SAMPLES)
    )


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
    if not (folder / INDEX).exists():
        raise StageError(f"{folder}: no samples; they are written by the reconstruct stage: run `dvc repro`")
    for shard in read_json(folder / INDEX)["shards"]:
        table = read_parquet(folder / shard["file"])
        if table.num_rows != shard["rows"]:
            raise StageError(
                f"{folder / shard['file']}: {table.num_rows} rows, the index says {shard['rows']}"
            )
        yield Shard(shard["file"], table)


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


def write_rejects(path: Path, rejects: Sequence[Reject]) -> None:
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
    write_parquet(path, pa.Table.from_pylist(rows, schema=schemas.REJECTS))
