"""Rows of a format -> its numbered files, of so many rows each; shuffled rows go through files on disk.

Memory holds one file's rows at most, however many there are.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from pipeline.io.files import atomic, write_parquet

Record = dict[str, Any]
_HEAD = struct.Struct("<qi")
"""Place in the export and bytes of a record."""


class ExportFiles:
    """Files `<split>-00000.<form>` of a folder, and how many rows each has."""

    def __init__(self, folder: Path, form: str, rows_per_file: int) -> None:
        self._folder, self._form, self._rows_per_file = folder, form, rows_per_file
        self.files: dict[str, int] = {}

    def write(self, split: str, records: Iterable[Record]) -> None:
        """In the order given."""
        records = iter(records)
        number = 0
        while part := _take(records, self._rows_per_file):
            self._write(split, number, part)
            number += 1

    def write_placed(self, placed: Iterable[tuple[str, int, Record]]) -> None:
        """(split, place in it, record) in any order; places of a split are 0, 1, 2 and so on."""
        with tempfile.TemporaryDirectory(dir=self._folder) as spool:
            parts: dict[tuple[str, int], Path] = {}
            waiting: dict[tuple[str, int], list[bytes]] = {}
            held = 0
            for split, place, record in placed:
                key = (split, place // self._rows_per_file)
                data = orjson.dumps(record)
                waiting.setdefault(key, []).append(_HEAD.pack(place, len(data)) + data)
                held += len(data)
                if held > 64 * 2**20:
                    _spill(waiting, parts, Path(spool))
                    held = 0
            _spill(waiting, parts, Path(spool))
            for split, number in sorted(parts):
                rows = sorted(_records(parts[split, number]), key=lambda item: item[0])
                self._write(split, number, [orjson.loads(data) for _, data in rows])

    def _write(self, split: str, number: int, records: list[Record]) -> None:
        name = f"{split}-{number:05d}.{self._form}"
        if self._form == "jsonl":
            with atomic(self._folder / name) as part, part.open("wb") as file:
                file.writelines(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records)
        else:
            write_parquet(self._folder / name, pa.Table.from_pylist(records))
        self.files[name] = len(records)


def _take(records: Iterator[Record], count: int) -> list[Record]:
    return [record for _, record in zip(range(count), records, strict=False)]


def _spill(
    waiting: dict[tuple[str, int], list[bytes]], parts: dict[tuple[str, int], Path], spool: Path
) -> None:
    for key, items in waiting.items():
        path = parts.setdefault(key, spool / f"{key[0]}-{key[1]}")
        with path.open("ab") as file:
            file.writelines(items)
    waiting.clear()


def _records(path: Path) -> Iterator[tuple[int, bytes]]:
    data = path.read_bytes()
    at = 0
    while at < len(data):
        place, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield place, data[at : at + length]
        at += length
