"""A prompt source -> its rows, one by one, with their place; a row that can't be read is said, not lost."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from pipeline.config import FileSource, HubPrompts
from pipeline.errors import SourceError
from pipeline.io.pins import sha256_of

_CHUNK = 1 << 20
_FORMS = ".jsonl, .json, .csv (also with .gz or .zst), .parquet"


@dataclass(frozen=True, slots=True)
class SourceRow:
    """Row number `position` of the source. `values` None: it could not be read; `problem` says why."""

    position: int
    values: dict[str, Any] | None
    raw: str = ""
    problem: str = ""


def read_source(source: FileSource | HubPrompts, dataset: str, root: Path) -> Iterator[SourceRow]:
    """Rows in source order. Raises SourceError for a source that is missing, unpinned, cut or unreadable."""
    if isinstance(source, HubPrompts):
        return _hub(source)
    path = root / source.path
    if not path.is_file():
        raise SourceError(f"conf/dataset/{dataset}.yaml: prompts.source.path: {source.path} does not exist")
    found = sha256_of(path)
    if found != source.sha256:
        raise SourceError(
            f"{source.path}: its sha256 is {found}, dataset {dataset} has {source.sha256}: run "
            f"`python -m pipeline pin {dataset}` (for a file of conf/prompts/, `python -m pipeline compose`)"
        )
    return _rows(path, source.path)


def _rows(path: Path, shown: str) -> Iterator[SourceRow]:
    suffixes = path.suffixes
    packed = suffixes.pop() if suffixes and suffixes[-1] in (".gz", ".zst") else ""
    form = suffixes[-1] if suffixes else ""
    if form == ".parquet" and not packed:
        return _parquet(path, shown)
    readers = {".jsonl": _jsonl, ".json": _json, ".csv": _csv}
    if form not in readers:
        raise SourceError(f"{shown}: unknown form; there are: {_FORMS}")
    return readers[form](_lines(_bytes(path, packed, shown)), shown)


def _bytes(path: Path, packed: str, shown: str) -> Iterator[bytes]:
    """Unpacked content. A cut file is an error: its missing rows would go unnoticed."""
    with path.open("rb") as file:
        if packed == ".zst":
            yield from _unpack_zst(iter(lambda: file.read(_CHUNK), b""), shown)
            return
        stream: Any = gzip.GzipFile(fileobj=file) if packed == ".gz" else file
        try:
            while chunk := stream.read(_CHUNK):
                yield chunk
        except (EOFError, gzip.BadGzipFile, zlib.error) as broken:
            raise SourceError(f"{shown}: no whole gzip file ({broken})") from None


def _unpack_zst(chunks: Iterable[bytes], shown: str) -> Iterator[bytes]:
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    fresh = True
    try:
        for chunk in chunks:
            rest = chunk
            while rest:
                fresh = False
                yield unpacker.decompress(rest)
                rest = unpacker.unused_data if unpacker.eof else b""
                if unpacker.eof:
                    unpacker, fresh = zstandard.ZstdDecompressor().decompressobj(), True
    except zstandard.ZstdError as broken:
        raise SourceError(f"{shown}: no zstd file ({broken})") from None
    if not fresh:
        raise SourceError(f"{shown}: the zstd file is cut")


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines with their end. Only \\n ends one: str.splitlines would cut at U+2028 inside a text.

    Bytes that are no UTF-8 become lone surrogates, which the check of each row refuses.
    """
    decoder = getincrementaldecoder("utf-8")("surrogateescape")
    rest, first = "", True
    for chunk in chunks:
        rest += decoder.decode(chunk)
        if first and rest:
            rest, first = rest.removeprefix("\ufeff"), False
        *whole, rest = rest.split("\n")
        yield from (f"{line}\n" for line in whole)
    rest += decoder.decode(b"", final=True)
    if rest:
        yield rest


def _jsonl(lines: Iterable[str], shown: str) -> Iterator[SourceRow]:
    for position, line in enumerate(line for line in lines if line.strip()):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as broken:  # also an integer of over 4,300 digits
            yield SourceRow(position, None, _clean(line), f"no JSON that can be read: {broken}")
            continue
        yield _object(position, value)


def _object(position: int, value: Any) -> SourceRow:
    if not isinstance(value, dict):
        return SourceRow(position, None, json.dumps(value), "no JSON object")
    return SourceRow(position, value)


def _clean(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _json(lines: Iterable[str], shown: str) -> Iterator[SourceRow]:
    try:
        values = json.loads("".join(lines))
    except (ValueError, RecursionError) as broken:
        raise SourceError(f"{shown}: no JSON that can be read: {broken}") from None
    if not isinstance(values, list):
        raise SourceError(f"{shown}: a JSON array of rows is expected")
    yield from (_object(position, value) for position, value in enumerate(values))


def _csv(lines: Iterable[str], shown: str) -> Iterator[SourceRow]:
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(lines, strict=True)
    try:
        names = next(reader, [])
        for position, cells in enumerate(cells for cells in reader if cells):
            if len(cells) == len(names):
                yield SourceRow(position, dict(zip(names, cells, strict=True)))
                continue
            problem = f"{len(cells)} fields, the header has {len(names)}"
            yield SourceRow(position, None, _clean(json.dumps(cells)), problem)
    except csv.Error as broken:  # an open quote would swallow all rows after it
        raise SourceError(f"{shown}: no CSV, near line {reader.line_num}: {broken}") from None


def _parquet(path: Path, shown: str) -> Iterator[SourceRow]:
    try:
        with pq.ParquetFile(path) as file:
            position = 0
            for batch in file.iter_batches(_CHUNK >> 10):
                for row in batch.to_pylist():
                    yield SourceRow(position, {key: _without_nulls(value) for key, value in row.items()})
                    position += 1
    except (pa.ArrowException, OSError) as broken:
        raise SourceError(
            f"{shown}: no readable Parquet file ({' '.join(str(broken).split())[:200]})"
        ) from None


def _without_nulls(value: Any) -> Any:
    """Every struct of a column has every key there; a null says only that the key was absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _hub(source: HubPrompts) -> Iterator[SourceRow]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise SourceError("a hub source needs `datasets`: .venv/bin/pip install datasets") from None
    try:
        rows = load_dataset(source.repo, source.config, revision=source.revision, split=source.split)
    except Exception as broken:  # the library raises many kinds; the user needs what it says
        what = " ".join(str(broken).split())[:300]
        raise SourceError(f"{source.repo} at {source.revision}: {what}") from broken
    return (SourceRow(position, _without_nulls(dict(row))) for position, row in enumerate(rows))
