"""Batches of writes on stdin -> committed transactions, their results on stdout: the store's own process.

A process and not a thread: at 2,000 requests in flight the event loop holds the interpreter lock nearly all
the time, and a commit of 15 ms took 400 while a thread waited for it, statement by statement.

It ends when its stdin does, also when its parent was killed: what it had received whole is committed first.
"""

from __future__ import annotations

import os
import pickle
import signal
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import zstandard

from pipeline.io.store_writes import HANDLERS, Writing

Batch = list[tuple[str, list[Any]]]
"""Name of a handler and its items, several times."""


class Keeper:
    """Commits batches over one connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._pack = _packer()

    def commit(self, owner: str, lease_s: float, now: float, batch: Batch) -> list[list[Any]] | str:
        """All in one transaction; a write that fails is undone alone, a commit that fails undoes all.

        For each write its result or an exception; or, of a commit that failed, why.
        """
        writing = Writing(owner, lease_s, now, self._pack)
        try:
            self._db.execute("BEGIN IMMEDIATE")
            results = [self._carry_out(name, writing, items) for name, items in batch]
            self._db.execute("COMMIT")
        except Exception as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            return str(error)
        return results

    def _carry_out(self, name: str, writing: Writing, items: list[Any]) -> list[Any]:
        """Together, or one by one if that fails: one that is wrong must not harm its neighbours."""
        self._db.execute("SAVEPOINT these")
        try:
            results = list(HANDLERS[name](writing, self._db, items))
        except Exception as error:
            if not self._db.in_transaction:  # the disk is full: SQLite has undone everything
                raise
            self._db.execute("ROLLBACK TO these")
            if len(items) == 1:
                results = [error]
            else:
                results = [result for item in items for result in self._carry_out(name, writing, [item])]
        self._db.execute("RELEASE these")
        return results


def _packer() -> Callable[[Sequence[bytes]], list[bytes]]:
    # The checksum shows a flipped bit, which else unpacks to another text in two of three cases.
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)

    def pack(texts: Sequence[bytes]) -> list[bytes]:
        full = [text for text in texts if text]  # the call for many takes no empty one
        packed = iter(compressor.multi_compress_to_buffer(list(full)) if full else ())
        return [next(packed).tobytes() if text else compressor.compress(text) for text in texts]

    return pack


def send(pipe: IO[bytes], value: Any) -> None:
    """One frame: its length in eight bytes, then the pickle."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    pipe.write(len(data).to_bytes(8, "big"))
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """The next frame. Raises EOFError at the end, or in the middle of a frame."""
    length = int.from_bytes(_exactly(pipe, 8), "big")
    return pickle.loads(_exactly(pipe, length))


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count)
    if len(data) < count:
        raise EOFError
    return data


def main(path: Path) -> None:
    """Serve until stdin ends."""
    from pipeline.io.store_file import connect

    for one in (signal.SIGINT, signal.SIGTERM):  # meant for the parent, which drains and then closes stdin
        signal.signal(one, signal.SIG_IGN)
    # A stray print must not be taken for a result.
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    keeper = Keeper(connect(path))
    while True:
        try:
            batch = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            send(results, keeper.commit(*batch))
        except BrokenPipeError:  # the parent is gone; what it sent is committed
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
