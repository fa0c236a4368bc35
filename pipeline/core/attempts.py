"""Verdicts on the attempts of one request, in order -> what to do next: settle, ask again, give up, stop.

Nothing here waits or sends, so every course of events can be tried without a network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pipeline.core.classify import Verdict
from pipeline.records import Action

FIRST_WAIT_S = 1.0
LONGEST_BACKOFF_S = 60.0
LONGEST_WAIT_S = 600.0
"""A server that asks for more patience than this is left alone until the next run."""
MOST_UNCOUNTED = 100
"""Attempts that do not count (429, a hold on the account's in-flight budget) still end some time."""
_UNCOUNTED_DOUBLINGS = 4

_ACCOUNT = frozenset({401, 402, 403})
_SETTLED = (Action.OK, Action.REPAIR, Action.AMBIGUOUS)


class Next(StrEnum):
    """What follows an attempt."""

    SETTLE = "settle"
    AGAIN = "again"
    GIVE_UP = "give_up"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Decision:
    """`attempt`: the one whose response is the final state (SETTLE). `wait_s`: before the next (AGAIN)."""

    next: Next
    attempt: int | None = None
    wait_s: float = 0.0


class Course:
    """The attempts of one request in one run. `avoid`: the provider that the next one is routed past."""

    def __init__(self, max_attempts: int, jitter: Callable[[float, float], float]) -> None:
        self._max_attempts = max_attempts
        self._jitter = jitter
        self._counted = 0
        self._uncounted = 0
        self._rerouted_after: int | None = None
        self.avoid: str | None = None

    def recall(self, attempt: int, status: int | None, verdict: Verdict) -> int | None:
        """Take an earlier run's attempt into account; the attempt to settle with, if that ends the matter.

        Its response is judged anew: what an interrupted run had received, and what a better
        `classify` can now read, was paid for and is not bought again. Old failures do not count.
        """
        decision = self.decide(attempt, status, verdict)
        self._counted = self._uncounted = 0
        return decision.attempt if decision.next is Next.SETTLE else None

    def decide(self, attempt: int, status: int | None, verdict: Verdict) -> Decision:
        """What to do after this attempt's verdict."""
        action = verdict.action
        if action in _SETTLED:
            return Decision(Next.SETTLE, attempt)
        if action is Action.REROUTE:
            if self._rerouted_after is not None or not verdict.avoid_provider:
                return Decision(Next.SETTLE, attempt)
            self._rerouted_after, self.avoid = attempt, verdict.avoid_provider
            return Decision(Next.AGAIN)
        if action is Action.FATAL_ROW and status == 402:
            # The account can't afford it now. As a final state it would outlive the next top-up.
            return Decision(Next.GIVE_UP)
        if action is Action.FATAL_RUN and status in _ACCOUNT:
            return Decision(Next.STOP)
        if action is Action.RETRY:
            return self._again(verdict)
        if self._rerouted_after is not None:
            # Without the one provider nobody is left (404) or the others refuse: what came first stands.
            return Decision(Next.SETTLE, self._rerouted_after)
        return Decision(Next.STOP) if action is Action.FATAL_RUN else Decision(Next.SETTLE, attempt)

    def _again(self, verdict: Verdict) -> Decision:
        if verdict.counts_as_attempt:
            self._counted += 1
        else:
            self._uncounted += 1
        if self._counted >= self._max_attempts or self._uncounted >= MOST_UNCOUNTED:
            return self._end(Next.GIVE_UP)
        failures = self._counted + min(self._uncounted, _UNCOUNTED_DOUBLINGS)
        backoff = min(LONGEST_BACKOFF_S, FIRST_WAIT_S * 2 ** max(0, failures - 1))
        wait = (verdict.retry_after_s or 0.0) + self._jitter(0.0, backoff)
        if wait > LONGEST_WAIT_S:
            return self._end(Next.GIVE_UP)
        return Decision(Next.AGAIN, wait_s=wait)

    def _end(self, otherwise: Next) -> Decision:
        """Once rerouted there is a paid answer that can stand; it is never bought again."""
        if self._rerouted_after is not None:
            return Decision(Next.SETTLE, self._rerouted_after)
        return Decision(otherwise)
