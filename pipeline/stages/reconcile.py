"""Exchanges whose cost nobody told -> what the provider now says that they have cost."""

from __future__ import annotations

from pathlib import Path

from pipeline.core.requests import endpoint_identity
from pipeline.errors import ConfigError
from pipeline.io.client import Client, read_key
from pipeline.io.conf import load_provider, load_runtime
from pipeline.io.event_loop import run_loop
from pipeline.io.reconcile import reconcile
from pipeline.io.store import Store
from pipeline.io.store_location import store_path


def run(provider: str, root: Path) -> str:
    """Of all runs so far. Raises ConfigError for a provider that has nobody to ask."""
    endpoint = load_provider(provider, root)
    transport, identity = endpoint.transport, endpoint_identity(endpoint.api)
    if transport.generation_path is None or transport.base_url is None:
        raise ConfigError(
            f"conf/provider/{provider}.yaml: transport.generation_path: missing; it is where an "
            "endpoint tells what a generation cost"
        )
    base_url, key = transport.base_url, read_key(transport)
    with Store(store_path(root, load_runtime(root).store, simulator=False)) as store:
        unknown = store.unpriced(identity)

        async def ask() -> float:
            async with Client(base_url, transport, key=key) as client:
                told = await reconcile(store, identity, transport, client)
                return sum(cost for _, cost in told)

        dollars = run_loop(ask())
        left = len(store.unpriced(identity))
    return f"{provider}: {len(unknown) - left} of {len(unknown)} unknown costs are known now: ${dollars:.4f}"
