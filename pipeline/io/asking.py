"""A logical request -> its final answer, asked for at most once by anyone; or None with the reason noted.

Order of every attempt: the money, the lease and the note that it goes out (one write), a slot, the
exchange, and what came, raw, together with what was made of it (one write).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pipeline.core.answer import model_and_counts
from pipeline.core.attempts import Course, Decision, Next
from pipeline.core.classify import Verdict, classify
from pipeline.core.money import most_usd
from pipeline.core.pacing import Met
from pipeline.core.requests import canonical_json, without_provider
from pipeline.core.turns import Asked, Response
from pipeline.errors import GenerationError
from pipeline.io.client import Client, Exchange
from pipeline.io.line import Line
from pipeline.io.run import Run, Stopped
from pipeline.io.store import Claim, LeaseLost, Outcome, Store
from pipeline.records import Action

_SHORTEST_POLL_S, _LONGEST_POLL_S = 0.1, 2.0
_DOUBT_AFTER_S = 30.0
"""After so long a wait the lease is looked at again before anything is sent (leases last 120 s)."""
_OF_THE_STREAM = frozenset({"content-length", "transfer-encoding", "content-encoding"})


@dataclass(frozen=True, slots=True)
class _Judged:
    """An exchange, what was made of it, and what would be stored as the answer if it is final."""

    exchange: Exchange
    outcome: Outcome
    answer: Response


class Asker:
    """Asks for one dataset: through a line, into a store, as part of a run."""

    def __init__(self, run: Run, line: Line, store: Store, dataset: str) -> None:
        self._run = run
        self._line = line
        self._transport = line.transport
        self._store = store
        self._dataset = dataset

    async def ask(self, asked: Asked) -> Response | None:
        """The final answer: from another process that is asking, or bought now.

        None: every attempt of this run failed. Raises Stopped, or Halted for this dataset alone.
        """
        poll = _SHORTEST_POLL_S
        while asked.key not in self._run.missing:  # two prompts of one run may share a request
            bound = await self._reserve(asked)
            try:
                started = await self._store.start(asked, bound)
            except BaseException:
                self._give_back(bound)
                raise
            try:
                if started.n:
                    return await self._buy(asked, self._course(), {}, started.n, bound)
                self._give_back(bound)
                if started.claim is Claim.ANSWERED:
                    return self._store.get(asked.key)
                if started.claim is Claim.WON:
                    return await self._resume(asked)
            except LeaseLost:
                continue
            await self._run.pause(poll)
            poll = min(_LONGEST_POLL_S, poll * 1.5)
        return None

    def _course(self) -> Course:
        return Course(self._transport.max_attempts, self._run.jitter)

    async def _reserve(self, asked: Asked) -> float | None:
        """Set aside what one exchange may cost at most; None where no price is known."""
        await self._line.connect()  # what is wrong with key or address is said before anything is noted
        price = self._transport.price
        bound = None if price is None else most_usd(asked.body, asked.text, price)
        await self._run.reserve(self._dataset, bound or 0.0)
        return bound

    def _give_back(self, bound: float | None) -> None:
        """Nothing was sent."""
        self._run.settle(self._dataset, bound or 0.0, 0.0)

    async def _resume(self, asked: Asked) -> Response | None:
        """Earlier runs have asked: what they received is judged anew before anything is sent."""
        course, known = self._course(), dict[int, _Judged]()
        try:
            for past in self._store.attempts(asked.key):
                if past.response is None:
                    continue
                exchange = Exchange(past.response, past.problem)
                verdict = self._classify(asked, past.response)
                known[past.n] = self._judged(exchange, verdict)
                settles_with = course.recall(past.n, past.response.status, verdict)
                if settles_with is not None:
                    return await self._settle(asked, settles_with, known[settles_with])
        except BaseException:
            self._store.release(asked.key)
            raise
        return await self._buy(asked, course, known)

    async def _buy(
        self,
        asked: Asked,
        course: Course,
        known: dict[int, _Judged],
        begun: int = 0,
        bound: float | None = None,
    ) -> Response | None:
        """Attempts until something is final. `begun`: the number of one that is noted already."""
        final = False
        try:
            while True:
                if not begun:
                    bound = await self._reserve(asked)
                    try:
                        begun = await self._store.begin_attempt(asked, course.avoid, bound)
                    except BaseException:
                        self._give_back(bound)
                        raise
                n, begun = begun, 0
                decision = await self._attempt(asked, course, known, n, bound)
                if decision.next is Next.SETTLE:
                    final = True
                    if decision.attempt == n:
                        return known[n].answer
                    return await self._settle(asked, decision.attempt or n, known[decision.attempt or n])
                if decision.next is Next.STOP:
                    reason = f"{known[n].outcome.detail}; stopped, every answer so far is kept"
                    self._run.stop(GenerationError(reason))
                    raise Stopped
                if decision.next is Next.GIVE_UP:
                    self._run.missing[asked.key] = known[n].outcome.detail
                    return None
                await self._run.pause(decision.wait_s)
        finally:
            if not final:
                self._store.release(asked.key)

    async def _attempt(
        self, asked: Asked, course: Course, known: dict[int, _Judged], n: int, bound: float | None
    ) -> Decision:
        """One exchange, and what came on disk.

        The money is settled when the answer is here, the slot is free when it is on disk: a kill loses no
        more answers than slots.
        """
        client, slot = await self._enter(asked, n, bound)
        rerouted = without_provider(asked.body, course.avoid) if course.avoid else None
        text = canonical_json(rerouted) if rerouted else asked.text
        self._run.tally.sent += 1
        met, retry_after_s, problem, cost = Met.NOTHING, None, "", None  # if it is torn down: cost unknown
        try:
            try:
                exchange = await client.post(asked.path, text)
                response = exchange.response
                try:
                    verdict = self._classify(asked, response)
                    judged = known[n] = self._judged(exchange, verdict)
                    decision = course.decide(n, response.status, verdict)
                except Exception:
                    await self._store.record_response(asked, n, response, exchange.problem)
                    raise
                met, retry_after_s, problem = _met(verdict), verdict.retry_after_s, judged.outcome.detail
                cost = judged.outcome.cost_usd
            finally:
                self._run.settle(self._dataset, bound or 0.0, cost)
            self._run.tally.answers += met is Met.ANSWER
            self._run.tally.completion_tokens += judged.outcome.completion_tokens or 0
            final = decision.next is Next.SETTLE and decision.attempt == n
            await self._store.finish(
                *(asked, n, response, exchange.problem, judged.outcome, judged.answer if final else None)
            )
        finally:
            self._line.done(slot, met, retry_after_s, problem)
        return decision

    async def _enter(self, asked: Asked, n: int, bound: float | None) -> tuple[Client, int]:
        """The client and a slot. What is noted as going out is taken back if it does not.

        Raises LeaseLost if, while this waited, the machine slept and another took over.
        """
        began = time.time()
        slot = None
        try:
            client = await self._line.connect()
            slot = await self._line.admit()
            if time.time() - began > _DOUBT_AFTER_S:
                await self._store.hold(asked)
        except BaseException:
            if slot is not None:
                self._line.done(slot, Met.NOTHING)
            self._give_back(bound)
            self._store.withdraw(asked, n)
            raise
        return client, slot

    async def _settle(self, asked: Asked, n: int, judged: _Judged) -> Response:
        """Make an attempt that is recorded already the answer."""
        exchange = judged.exchange
        await self._store.finish(asked, n, exchange.response, exchange.problem, judged.outcome, judged.answer)
        return judged.answer

    def _classify(self, asked: Asked, response: Response) -> Verdict:
        body = {**asked.body, "stream": True} if self._transport.stream else asked.body
        verdict = classify(response.status, response.headers, response.body, body, datetime.now(UTC))
        avoid = verdict.avoid_provider
        if avoid and without_provider(asked.body, avoid) is None:  # there is nobody else to ask
            return replace(verdict, avoid_provider=None)
        return verdict

    def _judged(self, exchange: Exchange, verdict: Verdict) -> _Judged:
        model, prompt_tokens, completion_tokens = model_and_counts(verdict.body)
        cost, source, price = verdict.cost_usd, verdict.cost_source, self._transport.price
        if exchange.never_sent:
            cost, source = 0.0, "none"
        elif source == "estimated" and price is not None:
            cost = ((prompt_tokens or 0) * price.prompt + (completion_tokens or 0) * price.completion) / 1e6
        detail = ": ".join(part for part in (exchange.problem, verdict.reason) if part)
        outcome = Outcome(
            *(verdict.action.value, " ".join(detail.split()), verdict.generation_id, cost, source),
            *(model, prompt_tokens, completion_tokens),
        )
        return _Judged(exchange, outcome, _as_plain(exchange.response, verdict))


def _met(verdict: Verdict) -> Met:
    if verdict.pushback:
        return Met.PUSHBACK
    return Met.FAILURE if verdict.action is Action.RETRY else Met.ANSWER


def _as_plain(response: Response, verdict: Verdict) -> Response:
    """What a plain request would have brought, if this was a stream that was asked for and is whole."""
    if verdict.body is None or not verdict.streamed:
        return response
    # ASCII: half a character, which has no other form in UTF-8, stays what it is.
    body = json.dumps(verdict.body, separators=(",", ":")).encode()
    headers = {name: value for name, value in response.headers.items() if name not in _OF_THE_STREAM}
    return Response(response.status, {**headers, "content-type": "application/json"}, body)
