"""A secret, folders and texts -> every place where the secret, or a good part of it, can be read.

Looks where a plain search sees nothing: compressed bodies in a store, columns of Parquet files, zstd
frames anywhere in a file, and the arguments of running processes.
"""

from __future__ import annotations

import base64
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pyarrow.parquet as pq
import zstandard

_PART = 16
_ZSTD = b"\x28\xb5\x2f\xfd"


def needles(secret: str) -> list[bytes]:
    """Pieces that betray the secret: parts of it, plain, as hex, and in base64 wherever it starts."""
    parts = [secret[start : start + _PART] for start in range(len(secret) - _PART + 1)]
    plain = [part.encode() for part in parts]
    coded = [secret.encode().hex().encode()]
    for shift in range(3):
        text = base64.b64encode(b"x" * shift + secret.encode())
        coded.append(text[4:-4])
    return [*plain, *coded]


def find_in_bytes(data: bytes, pieces: list[bytes]) -> bool:
    """Any piece, here or inside a zstd frame that begins here."""
    return any(any(piece in text for piece in pieces) for text in (data, *_frames(data)))


def _frames(data: bytes) -> Iterator[bytes]:
    start = data.find(_ZSTD)
    while start >= 0:
        # Those four bytes may be no frame, or its rest may lie on another page.
        with suppress(zstandard.ZstdError):
            yield zstandard.ZstdDecompressor().decompressobj().decompress(data[start:])
        start = data.find(_ZSTD, start + 1)


def find_in_file(path: Path, pieces: list[bytes]) -> list[str]:
    """Where in this file; a store is read row by row, its bodies decompressed."""
    data = path.read_bytes()
    found = [str(path)] if find_in_bytes(data, pieces) else []
    if data.startswith(b"SQLite format 3\0"):
        found += [
            f"{path}: {where}" for where, value in _values_of_store(path) if find_in_bytes(value, pieces)
        ]
    if data.startswith(b"PAR1"):
        table = pq.read_table(path)
        found += [
            f"{path}: {name}"
            for name in table.column_names
            if find_in_bytes(repr(table.column(name).to_pylist()).encode(), pieces)
        ]
    return found


def _values_of_store(path: Path) -> Iterator[tuple[str, bytes]]:
    with closing(sqlite3.connect(path)) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in db.execute(f"SELECT * FROM {table}"):
                for value in row:
                    if isinstance(value, str | bytes):
                        yield table, value.encode() if isinstance(value, str) else value


def find_in_folder(folder: Path, pieces: list[bytes]) -> list[str]:
    """All files under it, and their names."""
    found = []
    for path in sorted(folder.rglob("*")):
        if find_in_bytes(str(path.relative_to(folder)).encode(), pieces):
            found.append(f"{path}: its name")
        if path.is_file() and not path.is_symlink():
            found += find_in_file(path, pieces)
    return found


class Watcher:
    """Collects the arguments of every process of a session while it runs."""

    def __init__(self) -> None:
        self.arguments: set[bytes] = set()
        self._session = 0
        self._end = threading.Event()

    def watch(self, session: int) -> None:
        self._session = session

    def run(self) -> None:
        while not self._end.wait(0.005):
            for process in Path("/proc").iterdir():
                if process.name.isdigit() and self._session:
                    self._look(process)

    def _look(self, process: Path) -> None:
        try:
            if os.getsid(int(process.name)) == self._session:
                self.arguments.add((process / "cmdline").read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            return  # it has just ended

    def stop(self) -> None:
        self._end.set()


@contextmanager
def watching() -> Iterator[Watcher]:
    """Start processes with `start_new_session=True` and name them with `watch(pid)`."""
    watcher = Watcher()
    thread = threading.Thread(target=watcher.run)
    thread.start()
    try:
        yield watcher
    finally:
        watcher.stop()
        thread.join()
