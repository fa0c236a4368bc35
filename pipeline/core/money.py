"""Requests and prices -> what may be spent: reserved before sending, settled after, never over a limit.

A limit holds under concurrency only if the most that each request can cost is set aside before it goes
out (litellm#38176, #26672: budgets that were checked afterwards leaked).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pipeline.config import Price

TEMPLATE_TOKENS = 256
"""What a chat template may add of its own (a default system prompt) beyond the bytes of the request."""


def most_usd(body: Mapping[str, Any], text: str, price: Price) -> float:
    """The most that one request can cost: no token is shorter than a byte, no answer longer than allowed.

    `text` is the request as it is sent; its JSON syntax outweighs the template's role marks.
    """
    allowed = body.get("max_tokens") or body.get("max_completion_tokens") or 0
    prompt = len(text.encode("utf-8", "replace")) + TEMPLATE_TOKENS
    return (prompt * price.prompt + allowed * price.completion) / 1_000_000


class Fit(StrEnum):
    """Whether a reservation fits."""

    YES = "yes"
    LATER = "later"
    """Not while so much is reserved; what is in flight may turn out cheaper."""
    NEVER = "never"


@dataclass
class Account:
    """Dollars under one limit (None: no limit)."""

    limit: float | None = None
    spent: float = 0.0
    reserved: float = 0.0

    def fit(self, amount: float) -> Fit:
        """Whether `amount` may be reserved now."""
        if self.limit is None or self.spent + self.reserved + amount <= self.limit:
            return Fit.YES
        return Fit.LATER if self.spent + amount <= self.limit and self.reserved > 0 else Fit.NEVER


@dataclass
class Ledger:
    """The accounts of one run: the whole, and each dataset's own."""

    run: Account = field(default_factory=Account)
    datasets: dict[str, Account] = field(default_factory=dict)
    unknown: float = 0.0
    """Part of what is spent that stands for exchanges whose cost nobody told: their bound."""
    above_bound: float = 0.0
    """The largest excess of a real cost over its bound: the price in conf/ is too low."""

    def account(self, dataset: str) -> Account:
        """The dataset's account; without a limit unless one was set."""
        return self.datasets.setdefault(dataset, Account())

    def fit(self, dataset: str, amount: float) -> Fit:
        """The worse of both accounts' answers."""
        fits = (self.run.fit(amount), self.account(dataset).fit(amount))
        return next((fit for fit in (Fit.NEVER, Fit.LATER) if fit in fits), Fit.YES)

    def reserve(self, dataset: str, amount: float) -> None:
        """Set aside. Ask `fit` first."""
        for account in (self.run, self.account(dataset)):
            account.reserved += amount

    def settle(self, dataset: str, reserved: float, cost: float | None) -> None:
        """Replace a reservation by the cost; None: unknown, so the bound stays booked."""
        booked = reserved if cost is None else cost
        for account in (self.run, self.account(dataset)):
            account.reserved = max(0.0, account.reserved - reserved)
            account.spent += booked
        if cost is None:
            self.unknown += reserved
        elif reserved > 0:
            self.above_bound = max(self.above_bound, cost - reserved)

    def reconcile(self, dataset: str, bound: float, cost: float) -> None:
        """An unknown cost became known."""
        for account in (self.run, self.account(dataset)):
            account.spent += cost - bound
        self.unknown = max(0.0, self.unknown - bound)
