"""The one writer and reader of every stage file: same content, same bytes, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import StageError


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A path to write to that becomes `path` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_parquet(path: Path, table: pa.Table) -> None:
    """zstd, one row group per 64k rows; the bytes depend on the table and pyarrow's version alone."""
    write_bytes(path, parquet_bytes(table))


def parquet_bytes(table: pa.Table) -> bytes:
    """What `write_parquet` writes."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=65_536)
    return bytes(sink.getvalue())


def table_of(data: bytes, columns: list[str] | None = None) -> pa.Table:
    """A table out of `parquet_bytes`."""
    return pq.read_table(pa.BufferReader(data), columns=columns)


def write_bytes(path: Path, data: bytes) -> None:
    """The whole file."""
    with atomic(path) as part:
        part.write_bytes(data)


def read_parquet(path: Path) -> pa.Table:
    """Raises StageError naming the file when it is missing or no Parquet."""
    with _readable(path):
        return pq.read_table(path, partitioning=None)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise StageError(f"{path}: missing; an earlier stage writes it: run `dvc repro`") from None
    except pa.ArrowInvalid as broken:
        raise StageError(f"{path}: no readable Parquet file ({broken}); run `dvc repro`") from None


def write_parquet_parts(path: Path, schema: pa.Schema, parts: Iterable[pa.Table]) -> None:
    """The same for a table that is never in memory as a whole; each part is a row group."""
    with atomic(path) as work, pq.ParquetWriter(work, schema, compression="zstd") as writer:
        for part in parts:
            writer.write_table(part)


def read_parquet_parts(path: Path, rows: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """At most `rows` rows at a time. Raises StageError as `read_parquet` does."""
    with _readable(path), pq.ParquetFile(path) as file:
        yield from file.iter_batches(rows, columns=columns)


def count_parquet(path: Path) -> int:
    """Rows of a file, from its footer."""
    with _readable(path):
        return int(pq.read_metadata(path).num_rows)


def write_json(path: Path, value: Any) -> None:
    """Indented, keys in the order given."""
    with atomic(path) as part:
        part.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Raises StageError naming the file when it is missing or no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StageError(f"{path}: missing; an earlier stage writes it: run `dvc repro`") from None
    except json.JSONDecodeError as broken:
        raise StageError(f"{path}: no JSON ({broken.msg} in line {broken.lineno}); run `dvc repro`") from None


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """One JSON value a line, compact."""
    with atomic(path) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
