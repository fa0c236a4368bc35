"""A logical request -> its final answer, asked for at most once by anyone; or None with the reason noted.

Order of every attempt: claim, record that it goes out, send, record the raw answer, and only then judge.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from pipeline.config import Price, Transport
from pipeline.core.answer import UnreadableAnswer, read_answer
from pipeline.core.attempts import Course, Next
from pipeline.core.classify import Verdict, classify
from pipeline.core.requests import canonical_json, without_provider
from pipeline.core.turns import Asked, Response
from pipeline.errors import GenerationError
from pipeline.io.client import Client, Exchange
from pipeline.io.store import Attempt, Claim, LeaseLost, Store

Sleep = Callable[[float], Awaitable[None]]
_SHORTEST_POLL_S, _LONGEST_POLL_S = 0.1, 2.0


class Stopped(Exception):
    """This run sends nothing more; `Asker.stop_reason` says why."""


class Asker:
    """What all requests of one run share: the slots, the spending, the reason to stop, the counts."""

    def __init__(
        self,
        store: Store,
        transport: Transport,
        concurrency: int,
        connect: Callable[[], Awaitable[Client]],
        *,
        max_cost_usd: float | None = None,
        sleep: Sleep = asyncio.sleep,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._store = store
        self._transport = transport
        self._slots = asyncio.Semaphore(concurrency)
        self._connect = connect
        self._max_cost_usd = max_cost_usd
        self._sleep = sleep
        self._jitter = jitter
        self._stopping = asyncio.Event()
        self.stop_reason: Exception | None = None
        self.sent = 0
        self.cost_usd = 0.0
        self.missing: dict[str, str] = {}
        """Requests left without an answer, each with what its last attempt met."""

    def stop(self, reason: Exception) -> None:
        """Send nothing more. What is in flight is paid for, so it is awaited. The first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = reason
        self._stopping.set()

    async def ask(self, asked: Asked) -> Response | None:
        """The final answer: from the store, from another process that is asking, or bought now.

        None: every attempt of this run failed. Raises Stopped.
        """
        poll = _SHORTEST_POLL_S
        while asked.key not in self.missing:  # two prompts of one run may share a request
            claim = await asyncio.wrap_future(self._store.claim(asked.key))
            if claim is Claim.WON:
                try:
                    await self._buy(asked)
                    break
                except LeaseLost:
                    continue
                finally:
                    self._store.release(asked.key)
            if claim is Claim.ANSWERED:
                break
            await self._pause(poll)
            poll = min(_LONGEST_POLL_S, poll * 1.5)
        return self._store.get(asked.key)

    async def _buy(self, asked: Asked) -> None:
        course = Course(self._transport.max_attempts, self._jitter)
        for past in self._store.attempts(asked.key):
            if await self._recalled(asked, past, course):
                return
        while True:
            n, exchange = await self._attempt(asked, course.avoid)
            response = exchange.response
            verdict = classify(
                response.status, response.headers, response.body, asked.body, datetime.now(UTC)
            )
            await self._record(asked, n, exchange, verdict)
            decision = course.decide(n, response.status, verdict)
            if decision.next is Next.SETTLE and decision.attempt is not None:
                await asyncio.wrap_future(self._store.put(asked, decision.attempt))
                return
            if decision.next is Next.STOP:
                self.stop(GenerationError(f"{_line(verdict.reason)}; stopped, every answer so far is kept"))
                raise Stopped
            if decision.next is Next.GIVE_UP:
                self.missing[asked.key] = _line(exchange.problem or verdict.reason)
                return
            await self._pause(decision.wait_s)

    async def _recalled(self, asked: Asked, past: Attempt, course: Course) -> bool:
        """Whether an earlier run's exchange settles this request after all, without sending."""
        if past.response is None:
            return False
        response = past.response
        verdict = classify(response.status, response.headers, response.body, asked.body)
        settles_with = course.recall(past.n, response.status, verdict)
        if settles_with is None:
            return False
        if settles_with == past.n:
            await self._record(asked, past.n, Exchange(response, past.problem), verdict)
        await asyncio.wrap_future(self._store.put(asked, settles_with))
        return True

    async def _attempt(self, asked: Asked, avoid: str | None) -> tuple[int, Exchange]:
        """One exchange, raw and on disk."""
        async with self._slots:
            self._check_going()
            client = await self._connect()
            text = canonical_json(without_provider(asked.body, avoid)) if avoid else asked.text
            n = await asyncio.wrap_future(self._store.begin_attempt(asked.key, avoid))
            self.sent += 1
            exchange = await client.post(asked.path, text)
            kept = self._store.record_response(asked.key, n, exchange.response, exchange.problem)
            await asyncio.wrap_future(kept)
            return n, exchange

    async def _record(self, asked: Asked, n: int, exchange: Exchange, verdict: Verdict) -> None:
        cost, source = verdict.cost_usd, verdict.cost_source
        if exchange.never_sent:
            cost, source = 0.0, "none"
        elif source == "estimated" and self._transport.price is not None:
            cost = _estimate(verdict, self._transport.price)
        self.cost_usd += cost or 0.0
        detail = _line(": ".join(part for part in (exchange.problem, verdict.reason) if part))
        await asyncio.wrap_future(
            self._store.record_outcome(
                asked.key, n, verdict.action.value, detail, verdict.generation_id, cost, source
            )
        )

    def _check_going(self) -> None:
        """Spending is checked before each send; what is in flight then may still exceed the limit."""
        limit = self._max_cost_usd
        if limit is not None and self.cost_usd >= limit:
            self.stop(
                GenerationError(
                    f"runtime.max_cost_usd: {self.cost_usd:.4f} of {limit:.4f} US dollars are spent; every "
                    "answer so far is kept: raise the limit and run again"
                )
            )
        if self._stopping.is_set():
            raise Stopped

    async def _pause(self, seconds: float) -> None:
        """Sleep, unless the run stops first."""
        if seconds > 0:
            sleeping = asyncio.ensure_future(self._sleep(seconds))
            stopping = asyncio.ensure_future(self._stopping.wait())
            try:
                await asyncio.wait((sleeping, stopping), return_when=asyncio.FIRST_COMPLETED)
                if sleeping.done():
                    sleeping.result()
            finally:
                sleeping.cancel()
                stopping.cancel()
        if self._stopping.is_set():
            raise Stopped


def _estimate(verdict: Verdict, price: Price) -> float | None:
    """Tokens times price, where the endpoint reports tokens and no cost."""
    if verdict.body is None:
        return None
    try:
        usage = read_answer(verdict.body).usage
    except UnreadableAnswer:
        return None
    tokens = (usage.prompt_tokens or 0) * price.prompt + (usage.completion_tokens or 0) * price.completion
    return tokens / 1_000_000


def _line(text: str) -> str:
    return " ".join(text.split())
