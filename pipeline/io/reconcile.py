"""Exchanges of unknown cost -> their cost, as far as the endpoint can tell it by generation id.

After a timeout, a cut body or a gateway's page nobody knows whether the generation ran and was billed.
OpenRouter answers `GET /generation?id=...`, some moments after the generation ended.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

from pipeline.config import Transport
from pipeline.io.client import Client
from pipeline.io.store import Store, Unpriced

_AT_ONCE = 20
_TRIES, _WAIT_S = 3, 1.0


async def reconcile(
    store: Store, identity: str, transport: Transport, client: Client, since: float = 0.0
) -> list[tuple[Unpriced, float]]:
    """Ask for every cost of this endpoint that is unknown since `since`, and book what is told."""
    if transport.generation_path is None:
        return []
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(unpriced: Unpriced) -> tuple[Unpriced, float | None]:
        async with slots:
            path = f"{transport.generation_path}?id={quote(unpriced.generation_id, safe='')}"
            cost = await _cost(client, path)
        if cost is not None:
            await store.book(unpriced, cost)
        return unpriced, cost

    told = await asyncio.gather(*map(one, store.unpriced(identity, since)))
    return [(unpriced, cost) for unpriced, cost in told if cost is not None]


async def _cost(client: Client, path: str) -> float | None:
    """US dollars; None if the endpoint does not know this generation (yet) or can't be asked."""
    for number in range(_TRIES):
        exchange = await client.get(path)
        if exchange.problem is None and exchange.response.status == 200:
            return _total(exchange.response.body)
        if number < _TRIES - 1:
            await asyncio.sleep(_WAIT_S * 2**number)
    return None


def _total(body: bytes) -> float | None:
    try:
        data: Any = json.loads(body)["data"]["total_cost"]
    except (ValueError, KeyError, TypeError):
        return None
    if isinstance(data, bool) or not isinstance(data, int | float) or not 0 <= data < 1e9:
        return None
    return float(data)
