"""What all requests of one run share: the money, the counts, what is missing, and the reason to stop."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pipeline.core.money import Fit, Ledger
from pipeline.core.tally import Tally
from pipeline.errors import GenerationError

Sleep = Callable[[float], Awaitable[None]]


class Stopped(Exception):
    """This run sends nothing more; `Run.stop_reason` says why."""


class Halted(Exception):
    """One dataset sends nothing more; `Run.halted` says why."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    dataset: str
    amount: float
    granted: asyncio.Future[bool]


class Run:
    """Shared state. `sleep`, `jitter` and `clock` stand in for the world in tests."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        *,
        sleep: Sleep = asyncio.sleep,
        jitter: Callable[[float, float], float] = random.uniform,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ledger = ledger or Ledger()
        self.tally = Tally()
        self.jitter = jitter
        self.clock = clock
        self.stop_reason: Exception | None = None
        self.halted: dict[str, Exception] = {}
        """Datasets that reached their own limit."""
        self.missing: dict[str, str] = {}
        """Requests left without an answer, each with what its last attempt met."""
        self.on_stop: list[Callable[[], None]] = []
        self._sleep = sleep
        self._stopping = asyncio.Event()
        self._waiting_for_money: deque[_Waiting] = deque()

    @property
    def stopping(self) -> bool:
        """Whether nothing more is sent."""
        return self._stopping.is_set()

    def stop(self, reason: Exception) -> None:
        """Send nothing more. What is in flight is paid for, so it is awaited. The first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = reason
        self._stopping.set()
        for wake in self.on_stop:
            wake()
        self._share_out()

    def check(self) -> None:
        """Raises Stopped."""
        if self.stopping:
            raise Stopped

    async def pause(self, seconds: float) -> None:
        """Sleep, unless the run stops first. Raises Stopped."""
        if seconds > 0 and not self.stopping:
            sleeping = asyncio.ensure_future(self._sleep(seconds))
            stopping = asyncio.ensure_future(self._stopping.wait())
            try:
                await asyncio.wait((sleeping, stopping), return_when=asyncio.FIRST_COMPLETED)
                if sleeping.done():
                    sleeping.result()
            finally:
                sleeping.cancel()
                stopping.cancel()
        self.check()

    async def reserve(self, dataset: str, amount: float) -> None:
        """Set money aside, waiting for requests in flight to turn out cheaper than reserved.

        Raises Stopped or Halted when the limit is reached.
        """
        self.check()
        if not self._waiting_for_money and self.ledger.fit(dataset, amount) is Fit.YES:
            if dataset in self.halted:
                raise Halted
            self.ledger.reserve(dataset, amount)
            return
        waiting = _Waiting(dataset, amount, asyncio.get_running_loop().create_future())
        self._waiting_for_money.append(waiting)
        self._share_out()
        try:
            granted = await waiting.granted
        except asyncio.CancelledError:
            if waiting.granted.done() and not waiting.granted.cancelled() and waiting.granted.result():
                self.settle(dataset, amount, 0.0)
            raise
        if not granted:
            self.check()
            raise Halted

    def settle(self, dataset: str, reserved: float, cost: float | None) -> None:
        """Book what a request has cost; None: nobody told."""
        self.ledger.settle(dataset, reserved, cost)
        self.show_money()
        self._share_out()
        if self.ledger.run.limit is not None and self.ledger.above_bound > 1e-9:
            self.stop(
                GenerationError(
                    "runtime.max_cost_usd can't be held: a request cost "
                    f"{self.ledger.above_bound:.6f} US dollars more than transport.price of its provider "
                    "allows for; every answer is kept: raise the price there and run again"
                )
            )

    def show_money(self) -> None:
        """Put what is spent into the counts."""
        self.tally.spent_usd, self.tally.unknown_usd = self.ledger.run.spent, self.ledger.unknown

    def _limit_reached(self, dataset: str, amount: float) -> None:
        """Of the run: stop. Of the dataset: others go on."""
        run, own = self.ledger.run, self.ledger.account(dataset)
        account, key = (
            (run, "max_cost_usd")
            if run.fit(amount) is Fit.NEVER
            else (
                own,
                f"max_cost_usd_by_dataset.{dataset}",
            )
        )
        reason = GenerationError(
            f"runtime.{key}: {account.spent:.4f} of {account.limit or 0.0:.4f} US dollars are spent and the "
            f"next request may cost up to {amount:.4f}; every answer so far is kept: raise the limit and run "
            "again"
        )
        if account is run:
            self.stop(reason)
        else:
            self.halted[dataset] = reason

    def _share_out(self) -> None:
        """Money for those who wait, in order of arrival; nobody waits for another dataset's own limit."""
        left: deque[_Waiting] = deque()
        while self._waiting_for_money:
            waiting = self._waiting_for_money.popleft()
            if waiting.granted.done():
                continue
            fit = Fit.NEVER if self.stopping or waiting.dataset in self.halted else self._fit(waiting)
            if fit is Fit.YES:
                self.ledger.reserve(waiting.dataset, waiting.amount)
            if fit is not Fit.LATER:
                waiting.granted.set_result(fit is Fit.YES)
                continue
            left.append(waiting)
            if self.ledger.run.fit(waiting.amount) is Fit.LATER:
                break
        if self.stopping:  # since the loop began
            for waiting in left:
                waiting.granted.set_result(False)
        else:
            self._waiting_for_money.extendleft(reversed(left))

    def _fit(self, waiting: _Waiting) -> Fit:
        fit = self.ledger.fit(waiting.dataset, waiting.amount)
        if fit is Fit.NEVER:
            self._limit_reached(waiting.dataset, waiting.amount)
        return fit
