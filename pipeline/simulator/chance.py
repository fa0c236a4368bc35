"""Names of a draw -> draws that are the same on every machine and in every order of requests."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Chance:
    """Draws that depend on the given parts only.

    All of them rest on `Random.random`, whose sequence Python keeps the same across versions;
    `choice` and `shuffle` come without that promise.
    """

    def __init__(self, *parts: object) -> None:
        digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
        self._random = random.Random(int.from_bytes(digest[:8], "big")).random

    def share(self) -> float:
        """A number from 0 up to 1."""
        return self._random()

    def happens(self, rate: float) -> bool:
        """True in `rate` of the cases; draws nothing for a rate of 0."""
        return rate > 0 and self._random() < rate

    def below(self, count: int) -> int:
        """A number from 0 to count - 1."""
        return int(self._random() * count)

    def between(self, low: int, high: int) -> int:
        """A number from low to high, both included."""
        return low + self.below(high - low + 1)

    def pick(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[self.below(len(items))]

    def weighted(self, weights: Mapping[Item, float]) -> Item:
        """One of the keys, by weight."""
        point = self._random() * sum(weights.values())
        for item, weight in weights.items():
            point -= weight
            if point < 0:
                return item
        return next(reversed(list(weights)))

    def mixed(self, items: Sequence[Item]) -> list[Item]:
        """The items in another order."""
        left, order = list(items), []
        while left:
            order.append(left.pop(self.below(len(left))))
        return order
