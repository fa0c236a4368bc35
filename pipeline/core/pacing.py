"""What exchanges with one endpoint met -> how many may be in flight now, and when to stop trying.

AIMD as in TCP Reno (RFC 5681): the full ceiling until the endpoint pushes back (429, 503, a hold on the
account's in-flight budget), then what it carried, less a quarter; growth by one an answer up to three
quarters of where it last broke, by one in 25 answers above. Failures in a row open a circuit breaker:
one request at a time, with growing pauses, until an answer comes or the endpoint is given up.

No clock: callers say what time it is, so that hours of trouble can be tried in a millisecond.
"""

from __future__ import annotations

from enum import StrEnum

DECREASE = 0.75
ANSWERS_A_STEP = 25
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class Met(StrEnum):
    """How one exchange ended, as far as the endpoint's load is concerned."""

    ANSWER = "answer"
    """The endpoint works, whatever it thinks of the request."""
    PUSHBACK = "pushback"
    FAILURE = "failure"
    NOTHING = "nothing"
    """No exchange took place."""


class Pacer:
    """The window of one endpoint. `admit` before an exchange, `done` after it.

    `most_failures`, `most_failing_s`: given up after so many failures in a row that lasted so long.
    """

    def __init__(self, ceiling: int, most_failures: int, most_failing_s: float) -> None:
        self.ceiling = ceiling
        self.in_flight = 0
        self.pushbacks = 0
        self._window = float(ceiling)
        self._broke_at = float(ceiling)
        self._epoch = 0
        self._not_before = 0.0
        self._pauses = 0
        self._most_failures = most_failures
        self._most_failing_s = most_failing_s
        self._failures = 0
        self._failing_since = 0.0

    @property
    def window(self) -> int:
        """Exchanges that may be in flight; 1 while the breaker is open."""
        return 1 if self.open else int(self._window)

    @property
    def failures(self) -> int:
        """In a row, up to now."""
        return self._failures

    @property
    def open(self) -> bool:
        """The breaker: nothing but failures came lately."""
        return self._failures >= self._most_failures

    def admit(self, now: float) -> int | None:
        """A ticket for one exchange, to be given to `done`; None: not now."""
        if self.in_flight >= self.window or now < self._not_before:
            return None
        self.in_flight += 1
        return self._epoch

    def wait_s(self, now: float) -> float:
        """How long nothing at all is admitted."""
        return max(0.0, self._not_before - now)

    def done(self, ticket: int, met: Met, now: float, retry_after_s: float | None = None) -> None:
        """Book the end of an exchange."""
        self.in_flight -= 1
        if met is Met.ANSWER:
            self._answered()
        elif met is Met.PUSHBACK:
            self._failures = 0  # a server that asks for patience is alive
            self._pushed_back(ticket, now, retry_after_s)
        elif met is Met.FAILURE:
            self._failed(now)

    def given_up(self, now: float) -> bool:
        """Whether it is time to stop: failures only, enough of them, for long enough."""
        return self.open and now - self._failing_since >= self._most_failing_s

    def _answered(self) -> None:
        self._failures = self._pauses = 0
        if self._window < self.ceiling:
            step = 1.0 if self._window < self._broke_at * DECREASE else 1.0 / ANSWERS_A_STEP
            self._window = min(float(self.ceiling), self._window + step)

    def _pushed_back(self, ticket: int, now: float, retry_after_s: float | None) -> None:
        """One decrease for each burst: what was admitted before the last one says nothing new.

        But it was not carried either, so the window never stays above what is still in flight.
        """
        self.pushbacks += 1
        carried = max(1.0, min(self._window, float(self.in_flight)))
        if ticket == self._epoch:
            self._epoch += 1
            self._broke_at = self._window
            carried = max(1.0, min(self._window, self.in_flight + 1.0) * DECREASE)
        self._window = min(self._window, carried)
        if self.in_flight == 0:  # not even one at a time
            self._pause(now, retry_after_s)

    def _failed(self, now: float) -> None:
        if self._failures == 0:
            self._failing_since = now
        self._failures += 1
        if self.open:
            self._pause(now, None)

    def _pause(self, now: float, asked_s: float | None) -> None:
        own = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self._pauses)
        if now >= self._not_before:
            self._pauses = min(self._pauses + 1, 16)
        self._not_before = max(self._not_before, now + (own if asked_s is None else asked_s))
