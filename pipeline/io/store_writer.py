"""Writes from any thread -> batches for the store's process, and their results back to who waits.

One thread collects what came in while the last batch was committed; so a sync to disk serves hundreds.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from pipeline.errors import GenerationError
from pipeline.io.store_process import receive, send

Result = TypeVar("Result")
_ROOT = Path(__file__).parents[2]
_MOST = 1000
"""Writes of one transaction."""


class Written(Generic[Result]):
    """Done when committed. `result()` waits in a thread, `await` in an event loop.

    What concurrent.futures would do with a lock each time: here one thread says that it is done, after the
    outcome is set; who finds it not done leaves something to be woken by, and looks once more.
    """

    __slots__ = ("_event", "_outcome", "done", "waiting")

    def __init__(self) -> None:
        self.done = False
        self.waiting: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._event: threading.Event | None = None
        self._outcome: Any = None

    def tell(self, outcome: Any) -> None:
        """Called once, by the writer: a result, or an exception for the caller."""
        self._outcome = outcome
        self.done = True
        if self._event is not None:
            self._event.set()

    def result(self) -> Result:
        """Raises what the write has met."""
        if not self.done:
            self._event = threading.Event()
            if not self.done:
                self._event.wait()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        result: Result = self._outcome
        return result

    def __await__(self) -> Generator[Any, None, Result]:
        if not self.done:
            loop = asyncio.get_running_loop()
            woken: asyncio.Future[None] = loop.create_future()
            self.waiting = (loop, woken)
            if not self.done:
                yield from woken
        return self.result()


_Write = tuple[str, Any, Written[Any]]


class Writer:
    """The store's process, started at the first write. Leases are renewed every `heartbeat_s`."""

    def __init__(
        self, path: Path, owner: str, clock: Callable[[], float], lease_s: float, heartbeat_s: float
    ) -> None:
        self._path = path.resolve()
        self._owner = owner
        self._clock = clock
        self._lease_s = lease_s
        self._heartbeat_s = heartbeat_s
        self._process: subprocess.Popen[bytes] | None = None
        self._queue: SimpleQueue[_Write | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store writer", daemon=True)
        self._thread.start()

    def warm_up(self) -> None:
        """Start the process before it is needed; that takes a moment."""
        self.submit("renew", None)

    def submit(self, handler: str, item: Any) -> Written[Any]:
        """It can't be cancelled: what was received is written in any case.

        `handler` is one of pipeline.io.store_writes. Two writes that were submitted before either was done
        may be carried out in any order.
        """
        written: Written[Any] = Written()
        self._queue.put((handler, item, written))
        return written

    def close(self) -> None:
        """Returns when all that was submitted is committed."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        next_beat = time.monotonic() + self._heartbeat_s
        closing = False
        while not closing:
            batch, closing = self._take(max(0.0, next_beat - time.monotonic()))
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + self._heartbeat_s
                if self._process is not None:  # else there are no leases yet
                    batch.append(("renew", None, Written()))
            if self._process is not None and closing:
                batch.append(("release_all", None, Written()))
            if batch:
                self._commit(batch)
        self._end()

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
        kinds: dict[str, list[tuple[Any, Written[Any]]]] = defaultdict(list)
        for handler, item, written in batch:
            kinds[handler].append((item, written))
        groups = [(handler, [item for item, _ in writes]) for handler, writes in kinds.items()]
        try:
            answer = self._exchange(groups)
        except Exception as bug:  # whatever it is, nobody may wait for ever
            answer = f"{type(bug).__name__}: {bug}"
        if isinstance(answer, str):
            broken = GenerationError(
                f"the store can't be written ({answer}); what it holds is kept: mend that and run again"
            )
            _tell([(written, broken) for *_, written in batch])
            return
        results = [result for group in answer for result in group]
        waiting = [written for writes in kinds.values() for _, written in writes]
        _tell(list(zip(waiting, results, strict=True)))

    def _exchange(self, groups: list[tuple[str, list[Any]]]) -> list[list[Any]] | str:
        """The results; or why there are none."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipeline.io.store_process", str(self._path)],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        pipes = self._process.stdin, self._process.stdout
        assert pipes[0] is not None
        assert pipes[1] is not None
        try:
            send(pipes[0], (self._owner, self._lease_s, self._clock(), groups))
            results: list[list[Any]] | str = receive(pipes[1])
        except (EOFError, BrokenPipeError):  # killed, or it could not open the file
            return f"its process ended with code {self._process.wait()}"
        return results

    def _end(self) -> None:
        if self._process is None:
            return
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._process.wait()


def _tell(results: list[tuple[Written[Any], Any]]) -> None:
    """Every caller learns its result; each event loop is woken once for all."""
    woken: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = defaultdict(list)
    for written, result in results:
        written.tell(result)
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
