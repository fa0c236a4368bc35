"""One endpoint, open: its client, made at the first need, and who may send now."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from pipeline.config import Transport
from pipeline.core.pacing import Met, Pacer
from pipeline.errors import GenerationError
from pipeline.io.client import Client
from pipeline.io.run import Run, Stopped


class Line:
    """Admission to one endpoint, for all datasets that ask it. Served in order of arrival."""

    def __init__(
        self,
        run: Run,
        transport: Transport,
        concurrency: int,
        connect: Callable[[], Awaitable[Client]],
    ) -> None:
        self.transport = transport
        self.pacer = Pacer(concurrency, transport.breaker_failures, transport.breaker_s)
        self._run = run
        self._connect = connect
        self.connected = False
        self._waiting: deque[asyncio.Future[int | None]] = deque()
        self._alarm: asyncio.TimerHandle | None = None
        run.on_stop.append(self._dismiss_all)

    async def connect(self) -> Client:
        """The open client."""
        client = await self._connect()
        self.connected = True
        return client

    async def admit(self) -> int:
        """Wait for a slot; the ticket goes back through `done`. Raises Stopped."""
        self._run.check()
        ticket = None if self._waiting else self.pacer.admit(self._run.clock())
        if ticket is None:
            waiting: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            self._let_in()
            try:
                ticket = await waiting
            except asyncio.CancelledError:
                if waiting.done() and not waiting.cancelled() and waiting.result() is not None:
                    self.done(waiting.result() or 0, Met.NOTHING)
                raise
            if ticket is None:
                raise Stopped
        self._show()
        return ticket

    def done(
        self, ticket: int, met: Met, retry_after_s: float | None = None, problem: str = "nothing came"
    ) -> None:
        """Give the slot back with what was met there; the run stops if this endpoint only fails."""
        now = self._run.clock()
        self.pacer.done(ticket, met, now, retry_after_s)
        if met is Met.FAILURE and self.pacer.given_up(now):
            self._run.stop(
                GenerationError(
                    f"{self.pacer.failures} exchanges in a row failed, for {self.transport.breaker_s:g} s or "
                    f"longer (the last: {problem}); stopped, every answer so far is kept: look at the "
                    "provider and run again"
                )
            )
        self._let_in()
        self._show()

    def _let_in(self) -> None:
        now = self._run.clock()
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()
                continue
            ticket = self.pacer.admit(now)
            if ticket is None:
                break
            self._waiting.popleft().set_result(ticket)
        wait_s = self.pacer.wait_s(now)
        if self._waiting and wait_s > 0 and self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(wait_s, self._wake_up)

    def _wake_up(self) -> None:
        self._alarm = None
        self._let_in()

    def _dismiss_all(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)

    def _show(self) -> None:
        tally = self._run.tally
        tally.in_flight, tally.window = self.pacer.in_flight, self.pacer.window
