"""A provider's settings -> its client, opened at the first need; the simulator is started then, too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import httpx

from pipeline.config import SimulatorSettings, Transport
from pipeline.errors import ConfigError
from pipeline.io.client import Client, read_key


def connector(
    provider: str,
    transport: Transport,
    simulator: SimulatorSettings | None,
    http: httpx.AsyncBaseTransport | None,
    stack: AsyncExitStack,
) -> Callable[[], Awaitable[Client]]:
    """Opens the client at its first call: a replay needs no key, no server and no network."""
    lock, opened = asyncio.Lock(), list[Client]()

    async def connect() -> Client:
        if opened:
            return opened[0]
        async with lock:
            if not opened:
                key = read_key(transport)
                base_url = _simulated(simulator, stack) or transport.base_url
                if base_url is None:
                    raise ConfigError(
                        f"conf/provider/{provider}.yaml: transport.base_url: missing; it is the "
                        "address that requests go to"
                    )
                client = Client(base_url, transport, key=key, http=http)
                opened.append(await stack.enter_async_context(client))
            return opened[0]

    return connect


def _simulated(simulator: SimulatorSettings | None, stack: AsyncExitStack) -> str | None:
    """The simulator's address, if it is the provider; it ends with the run."""
    if simulator is None:
        return None
    from pipeline.simulator.process import serve

    return stack.enter_context(serve(simulator.profile, simulator.seed)).base_url
