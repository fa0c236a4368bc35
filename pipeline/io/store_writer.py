"""Writes from any thread -> committed transactions of one thread, many writes in each.

Writes of one kind are handed over together, so that a few statements serve hundreds of them: every
statement gives the interpreter lock away and waits for it again, and at 2,000 requests in flight that
wait, not the disk, was what writing cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from pipeline.errors import GenerationError

Item = TypeVar("Item")
Result = TypeVar("Result")
Handler = Callable[[sqlite3.Connection, Sequence[Item]], Sequence[Result | Exception]]
"""Writes all items; a result for each, or the exception that its caller shall see."""
_MOST = 1000
"""Writes of one transaction; a sync to disk serves them all."""


class Written(Future[Result], Generic[Result]):
    """Done when committed. `result()` waits in a thread, `await` in an event loop."""

    waiting: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def __await__(self) -> Generator[Any, None, Result]:
        if not self.done():
            loop = asyncio.get_running_loop()
            woken: asyncio.Future[None] = loop.create_future()
            self.waiting = (loop, woken)
            if not self.done():  # else it was done between the two looks and nobody will wake us
                yield from woken
        return self.result()


_Write = tuple[Handler[Any, Any], Any, Written[Any]]


class Writer:
    """One thread with its own connection. `heartbeat` runs every `heartbeat_s`, work or no work."""

    def __init__(
        self, db: sqlite3.Connection, heartbeat: Callable[[sqlite3.Connection], None], heartbeat_s: float
    ) -> None:
        self._db = db
        self._heartbeat = heartbeat
        self._heartbeat_s = heartbeat_s
        self._queue: SimpleQueue[_Write | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store writer", daemon=True)
        self._thread.start()

    def submit(self, handler: Handler[Item, Result], item: Item) -> Written[Result]:
        """It can't be cancelled: what was received is written in any case.

        Two writes that were submitted before either was done may be carried out in any order.
        """
        written: Written[Result] = Written()
        written.set_running_or_notify_cancel()
        self._queue.put((handler, item, written))
        return written

    def close(self) -> None:
        """Returns when all that was submitted is committed."""
        self._queue.put(None)
        self._thread.join()
        self._db.close()

    def _run(self) -> None:
        next_beat = time.monotonic() + self._heartbeat_s
        closing = False
        while not closing:
            batch, closing = self._take(max(0.0, next_beat - time.monotonic()))
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + self._heartbeat_s
                batch.append((self._beat, None, Written()))
            if batch:
                self._commit(batch)

    def _beat(self, db: sqlite3.Connection, items: Sequence[None]) -> Sequence[None]:
        self._heartbeat(db)
        return items

    def _take(self, patience_s: float) -> tuple[list[_Write], bool]:
        """What waits, at most `_MOST`; True if it was the last."""
        batch: list[_Write] = []
        try:
            write = self._queue.get(timeout=patience_s)
            while write is not None:
                batch.append(write)
                if len(batch) == _MOST:
                    return batch, False
                write = self._queue.get_nowait()
        except Empty:
            return batch, False
        return batch, True

    def _commit(self, batch: list[_Write]) -> None:
        """All in one transaction; a write that fails is undone alone, a commit that fails undoes all."""
        kinds: dict[Handler[Any, Any], list[tuple[Any, Written[Any]]]] = defaultdict(list)
        for handler, item, written in batch:
            kinds[handler].append((item, written))
        results: list[tuple[Written[Any], Any]] = []
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for handler, writes in kinds.items():
                results += self._carry_out(handler, writes)
            self._db.execute("COMMIT")
        except Exception as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            broken = GenerationError(
                f"the store can't be written ({error}); what it holds is kept: mend that and run again"
            )
            results = [(written, broken) for _, _, written in batch]
        _tell(results)

    def _carry_out(
        self, handler: Handler[Any, Any], writes: list[tuple[Any, Written[Any]]]
    ) -> list[tuple[Written[Any], Any]]:
        """Together, or one by one if that fails: one that is wrong must not harm its neighbours."""
        self._db.execute("SAVEPOINT these")
        try:
            done = handler(self._db, [item for item, _ in writes])
            results = [(written, result) for (_, written), result in zip(writes, done, strict=True)]
        except Exception as error:
            if not self._db.in_transaction:  # the disk is full: SQLite has undone everything
                raise
            self._db.execute("ROLLBACK TO these")
            if len(writes) == 1:
                results = [(writes[0][1], error)]
            else:
                results = [result for write in writes for result in self._carry_out(handler, [write])]
        self._db.execute("RELEASE these")
        return results


def _tell(results: list[tuple[Written[Any], Any]]) -> None:
    """Every caller learns its result; each event loop is woken once for all."""
    woken: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = defaultdict(list)
    for written, result in results:
        if isinstance(result, Exception):
            written.set_exception(result)
        else:
            written.set_result(result)
        if written.waiting is not None:
            loop, waiter = written.waiting
            woken[loop].append(waiter)
    for loop, waiters in woken.items():
        with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_wake, waiters)


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
