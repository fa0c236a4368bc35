"""What a run has done so far -> one line that a person can read while it goes on.

Rates are those of the last half minute; the projected cost takes what is left for as dear as what came.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

RECENT_S = 30.0


@dataclass
class Tally:
    """Counts of one run. `total` and `done` are turns (rows); `sent` are requests on the wire."""

    total: int = 0
    done: int = 0
    cached: int = 0
    """Turns whose answer was in the store, or that can't be asked."""
    failed: int = 0
    sent: int = 0
    answers: int = 0
    completion_tokens: int = 0
    spent_usd: float = 0.0
    unknown_usd: float = 0.0
    in_flight: int = 0
    window: int = 0
    _recent: deque[tuple[float, int, int, int]] = field(default_factory=deque)

    def line(self, now: float) -> str:
        """The state at `now` (seconds of a clock that never goes back)."""
        per_s, tokens_per_s, done_per_s = self._rates(now)
        parts = [
            f"{self.cached} cached",
            f"{self.failed} failed",
            f"{self.in_flight}/{self.window} in flight",
        ]
        parts += [f"{per_s:.1f} answers/s", f"{_short(tokens_per_s)} tokens/s", self._dollars()]
        if done_per_s > 0 and self.done < self.total:
            parts.append(f"{_duration((self.total - self.done) / done_per_s)} left")
        return ", ".join(parts)

    def projected_usd(self) -> float:
        """Spent, and what is left at the mean cost of a turn that was bought."""
        bought = self.done - self.cached
        left = self.total - self.done
        return self.spent_usd + (self.spent_usd / bought * left if bought > 0 else 0.0)

    def _dollars(self) -> str:
        unknown = f" (of it up to ${self.unknown_usd:.2f} unknown)" if self.unknown_usd else ""
        return f"${self.spent_usd:.2f}{unknown} of ~${self.projected_usd():.2f}"

    def _rates(self, now: float) -> tuple[float, float, float]:
        self._recent.append((now, self.answers, self.completion_tokens, self.done))
        while len(self._recent) > 2 and now - self._recent[1][0] >= RECENT_S:
            self._recent.popleft()
        then, answers, tokens, done = self._recent[0]
        passed = max(now - then, 1e-9)
        if len(self._recent) < 2:
            return 0.0, 0.0, 0.0
        return (
            (self.answers - answers) / passed,
            (self.completion_tokens - tokens) / passed,
            (self.done - done) / passed,
        )


def _short(number: float) -> str:
    return f"{number / 1000:.1f}k" if number >= 10_000 else f"{number:.0f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
    )
