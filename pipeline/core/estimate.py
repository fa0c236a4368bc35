"""Prompts + the answers that are there -> what would be sent, how many tokens it has, what it may cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.config import Price
from pipeline.core.answer import UnreadableAnswer, read_answer
from pipeline.core.turns import MISSING, Turn
from pipeline.records import Prompt

PER_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request to send. `unknown_answers`: turns before it that come first; `messages` lack them."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    unknown_answers: int


class EvenSample:
    """At most 2 x `size` of the items added, evenly spread over them; all of them up to there."""

    def __init__(self, size: int) -> None:
        self._size, self._step, self.added = size, 1, 0
        self.items: list[Outgoing] = []

    @property
    def complete(self) -> bool:
        """Nothing was left out."""
        return self._step == 1

    def add(self, item: Outgoing) -> None:
        """Keep every step-th item; with twice too many the step doubles."""
        if self.added % self._step == 0:
            self.items.append(item)
        self.added += 1
        if len(self.items) > 2 * self._size:
            self.items, self._step = self.items[::2], 2 * self._step


@dataclass
class Tally:
    """Requests of one dataset, counted prompt by prompt. `seen` is shared: equal requests count once."""

    seen: set[str]
    outgoing: EvenSample
    to_send: int = 0
    """Known to the letter, and no answer is there."""
    later: int = 0
    """Turns whose request depends on an answer that is not there; at most so many are sent."""
    paid: int = 0
    shared: int = 0
    """Equal to a request counted before."""
    refused: int = 0
    """Turns that can't be asked."""
    lengths: list[int] = field(default_factory=list)
    """Completion tokens of the answers that are there."""

    def add(self, prompt: Prompt, turns: Sequence[Turn]) -> None:
        """Count one prompt's turns."""
        missing: Turn | None = None
        for turn in turns:
            if missing is not None and missing.asked is not None:
                self.later += 1
                following = prompt.following_turns[missing.number : turn.number]
                messages = [*missing.asked.body["messages"], *following]
                self.outgoing.add(Outgoing(messages, prompt.tools, turn.number - missing.number))
            elif turn.asked is None:
                self.refused += 1
            elif turn.asked.key in self.seen:
                self.shared += 1
                missing = turn if turn.failure is MISSING else None
            else:
                self.seen.add(turn.asked.key)
                if turn.failure is MISSING:
                    self.to_send += 1
                    missing = turn
                    self.outgoing.add(Outgoing(turn.asked.body["messages"], prompt.tools, 0))
                else:
                    self.paid += 1
                    self.lengths += completion_tokens(turn.verdict.body if turn.verdict else None)


def completion_tokens(body: Mapping[str, Any] | None) -> Iterator[int]:
    """How long the provider says that its answer is, if it says so."""
    try:
        count = read_answer(body or {}).usage.completion_tokens
    except UnreadableAnswer:
        return
    if count:
        yield count


@dataclass(frozen=True, slots=True)
class Tokens:
    """Of all requests to send, later turns included. `sampled`: worked out from a part of them.

    `prompt` leaves out what earlier turns will have answered, `prompt_most` reckons with answers of
    `max_tokens` there. `completion`: answers as long as those already there; None: there are none.
    """

    prompt: int
    prompt_most: int
    completion: int | None
    completion_most: int
    sampled: bool


def count_tokens(
    outgoing: EvenSample,
    prompt_tokens: Callable[[Outgoing], int],
    max_tokens: int,
    lengths: Sequence[int],
) -> Tokens:
    """`prompt_tokens` renders and encodes one request. `lengths`: completion tokens of known answers."""
    counts = [prompt_tokens(item) for item in outgoing.items]
    unknown = sum(item.unknown_answers for item in outgoing.items)
    scale = outgoing.added / len(counts) if counts else 0.0
    usual = min(sum(lengths) / len(lengths), max_tokens) if lengths else None
    if not outgoing.added:
        usual = 0.0
    return Tokens(
        prompt=round(sum(counts) * scale),
        prompt_most=round((sum(counts) + unknown * max_tokens) * scale),
        completion=None if usual is None else round(usual * outgoing.added),
        completion_most=max_tokens * outgoing.added,
        sampled=not outgoing.complete,
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """US dollars, without what failed attempts may cost. `low` None: nobody knows how long answers are."""

    low: float | None
    high: float


def cost_of(tokens: Tokens, price: Price) -> Cost:
    """low: answers as long as those already there; high: every answer as long as allowed."""
    low = None
    if tokens.completion is not None:
        low = (tokens.prompt * price.prompt + tokens.completion * price.completion) / PER_MILLION
    high = (tokens.prompt_most * price.prompt + tokens.completion_most * price.completion) / PER_MILLION
    return Cost(low, high)


@dataclass(frozen=True, slots=True)
class Requests:
    """One dataset's line of the plan. `cost` None: it sends something and nobody knows the price."""

    dataset: str
    provider: str
    to_send: int
    later: int
    paid: int
    shared: int
    refused: int
    tokens: Tokens
    cost: Cost | None
    simulated: bool = False
    """The loopback server answers; without a price in its settings it costs nothing."""


def total_tokens(lines: Sequence[Requests]) -> Tokens:
    """Of all datasets together."""
    tokens = [line.tokens for line in lines]
    usual = [one.completion for one in tokens]
    return Tokens(
        prompt=sum(one.prompt for one in tokens),
        prompt_most=sum(one.prompt_most for one in tokens),
        completion=None if None in usual else sum(one for one in usual if one is not None),
        completion_most=sum(one.completion_most for one in tokens),
        sampled=any(one.sampled for one in tokens),
    )


def total_cost(lines: Sequence[Requests]) -> Cost | None:
    """None as soon as one is unknown; the low end only where all have one."""
    costs = [line.cost for line in lines]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return None
    lows = [cost.low for cost in known]
    low = None if None in lows else sum(low for low in lows if low is not None)
    return Cost(low, sum(cost.high for cost in known))
