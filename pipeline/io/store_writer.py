"""Write operations from any thread -> committed transactions of one thread, many operations in each."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from pipeline.errors import GenerationError

Result = TypeVar("Result")
_Operation = tuple[Callable[[sqlite3.Connection], Any], "Future[Any]"]
_MOST = 500
"""Operations of one transaction; a sync to disk serves them all."""


class Writer:
    """One thread with its own connection. `heartbeat` runs every `heartbeat_s`, work or no work."""

    def __init__(
        self, db: sqlite3.Connection, heartbeat: Callable[[sqlite3.Connection], None], heartbeat_s: float
    ) -> None:
        self._db = db
        self._heartbeat = heartbeat
        self._heartbeat_s = heartbeat_s
        self._queue: SimpleQueue[_Operation | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store writer", daemon=True)
        self._thread.start()

    def submit(self, operation: Callable[[sqlite3.Connection], Result]) -> Future[Result]:
        """Done when committed. It can't be cancelled: what was received is written in any case."""
        future: Future[Result] = Future()
        future.set_running_or_notify_cancel()
        self._queue.put((operation, future))
        return future

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
                batch.append((self._heartbeat, Future()))
            if batch:
                self._commit(batch)

    def _take(self, patience_s: float) -> tuple[list[_Operation], bool]:
        """What waits, at most `_MOST`; True if it was the last."""
        batch: list[_Operation] = []
        try:
            item = self._queue.get(timeout=patience_s)
            while item is not None:
                batch.append(item)
                if len(batch) == _MOST:
                    return batch, False
                item = self._queue.get_nowait()
        except Empty:
            return batch, False
        return batch, True

    def _commit(self, batch: list[_Operation]) -> None:
        """All in one transaction; an operation that fails is undone alone, a commit that fails undoes all."""
        results: list[tuple[Future[Any], Any, BaseException | None]] = []
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for operation, future in batch:
                self._db.execute("SAVEPOINT one")
                try:
                    results.append((future, operation(self._db), None))
                except Exception as error:
                    if not self._db.in_transaction:  # the disk is full: SQLite has undone everything
                        raise
                    self._db.execute("ROLLBACK TO one")
                    results.append((future, None, error))
                self._db.execute("RELEASE one")
            self._db.execute("COMMIT")
        except Exception as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            broken = GenerationError(
                f"the store can't be written ({error}); what it holds is kept: mend that and run again"
            )
            for _, future in batch:
                future.set_exception(broken)
            return
        for future, result, failure in results:
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result)
