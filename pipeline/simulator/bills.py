"""Attempts that a model worked on -> what they cost, in all and one by one, as GET /generation tells it.

Billing does not ask whether the answer arrived: who hangs up, or gets half a body, has paid (plain
requests can't be cancelled, and not every provider stops a stream; research, api anchors 1.8).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline.simulator.answer import cost_of, counts_of
from pipeline.simulator.native import Generation
from pipeline.simulator.profile import Price
from pipeline.simulator.reply import Bill

_REMEMBERED = 200_000
"""Bills that can be asked for; the oldest go first (the total keeps them)."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """Keys of OpenRouter's `data`; costs in US dollars."""

    id: str
    total_cost: float
    usage: float
    model: str | None
    provider_name: str
    native_tokens_prompt: int
    native_tokens_completion: int
    finish_reason: str | None
    streamed: bool
    cancelled: bool = False
    is_byok: bool = False


class Bills:
    """The bill of one application. `cost` in US dollars; `paid` attempts cost something."""

    def __init__(self, price: Price) -> None:
        self.cost = 0.0
        self.paid = 0
        self._price = price
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def book(self, attempt_id: str, generation: Generation, finish_reason: str | None, bill: Bill) -> None:
        """Nothing is booked where no model worked."""
        if bill is Bill.NONE:
            return
        free = bill is Bill.FREE
        prompt, completion = counts_of(generation)
        cost = 0.0 if free else cost_of(generation, self._price)
        self.cost += cost
        self.paid += not free
        self._entries[attempt_id] = _Entry(
            id=attempt_id,
            total_cost=cost,
            usage=cost,
            model=generation.asked.body.get("model"),
            provider_name=generation.served.name,
            native_tokens_prompt=prompt,
            native_tokens_completion=0 if free else completion,
            finish_reason="error" if free else finish_reason,
            streamed=generation.asked.streamed,
        )
        if len(self._entries) > _REMEMBERED:
            self._entries.popitem(last=False)

    def cancel(self, attempt_id: str) -> None:
        """The client hung up while it was told."""
        if attempt_id in self._entries:
            self._entries[attempt_id] = replace(self._entries[attempt_id], cancelled=True)

    def tell(self, attempt_id: str) -> dict[str, Any] | None:
        """The `data` of GET /generation; None for an attempt that no model of this process worked on."""
        entry = self._entries.get(attempt_id)
        return None if entry is None else asdict(entry)
