"""Requests that are being answered -> whether one more may be, by number and by the dollars they hold.

The hold of a request is what it may cost at most; OpenRouter keeps it while the request runs
(limits, "in-flight budget"; research, api anchors 1.6).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.simulator.native import Generation
from pipeline.simulator.profile import Profile
from pipeline.simulator.reply import Reply, error


class OverLimit(Exception):
    """The request is refused before anything is done; `limit` is the profile's key."""

    def __init__(self, limit: str, reply: Reply) -> None:
        super().__init__(limit)
        self.limit = limit
        self.reply = reply


class Limits:
    """`most` requests were in flight at once, until now."""

    def __init__(self, profile: Profile) -> None:
        self.most = 0
        self._profile = profile
        self._now = 0
        self._held_usd = 0.0

    def check_number(self) -> None:
        """Raises OverLimit."""
        limit = self._profile.faults.most_in_flight
        if limit is not None and self._now >= limit:
            headers = {"X-RateLimit-Limit": str(limit), "X-RateLimit-Remaining": "0", **self._later()}
            metadata = {"error_type": "rate_limit_exceeded"}
            raise OverLimit("most_in_flight", error(429, "Rate limit exceeded", metadata, headers))

    @contextmanager
    def in_flight(self, generation: Generation) -> Iterator[None]:
        """Counted for as long as the block lasts. Raises OverLimit if its hold does not fit."""
        hold = self._hold_usd(generation)
        self._check_budget(hold)
        self._now += 1
        self._held_usd += hold
        self.most = max(self.most, self._now)
        try:
            yield
        finally:
            self._now -= 1
            # Sums of floats keep crumbs; nothing in flight holds nothing.
            self._held_usd = self._held_usd - hold if self._now else 0.0

    def _hold_usd(self, generation: Generation) -> float:
        price = self._profile.price
        most_tokens = generation.asked.max_tokens or self._profile.default_max_tokens
        return (len(generation.prompt) * price.prompt + most_tokens * price.completion) / 1e6

    def _check_budget(self, hold: float) -> None:
        budget = self._profile.faults.in_flight_budget
        if budget is None:
            return
        if hold > budget:  # waiting would not help
            metadata = {"reason": "weight_exceeds_budget", "limit_source": "openrouter_credits"}
            message = "This request requires more credits, or fewer max_tokens"
            raise OverLimit("in_flight_budget", error(402, message, metadata))
        if self._held_usd + hold > budget:
            metadata = {
                "reason": "in_flight_budget_exhausted",
                "limit_source": "openrouter_in_flight_budget",
                "remedy_hint": "wait for requests in flight, or lower max_tokens",
            }
            message = "In-flight budget exhausted"
            raise OverLimit("in_flight_budget", error(402, message, metadata, self._later()))

    def _later(self) -> dict[str, str]:
        return {"Retry-After": str(self._profile.faults.retry_after_s)}
