"""Prompts and settings -> a store that holds a final answer to every request, or knows what is missing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from pipeline.config import GenerateSettings, Runtime, Transport
from pipeline.core.turns import Turn, converse
from pipeline.errors import ConfigError, GenerationError
from pipeline.io.asking import Asker, Sleep, Stopped
from pipeline.io.client import Client, read_key
from pipeline.io.files import count_parquet
from pipeline.io.progress import progress
from pipeline.io.prompts import read_prompts
from pipeline.io.store import Store
from pipeline.records import Prompt

Result = TypeVar("Result")


def run_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """uvloop where there is one: 172 MB instead of 665 MB for 2,000 TLS connections."""
    try:
        from uvloop import new_event_loop as factory
    except ImportError:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


async def fetch(
    dataset: str,
    prompts_path: Path,
    settings: GenerateSettings,
    transport: Transport,
    runtime: Runtime,
    store: Store,
    *,
    http: httpx.AsyncBaseTransport | None = None,
    sleep: Sleep = asyncio.sleep,
) -> Asker:
    """Ask every turn of every prompt that the store has no answer to.

    What stays without one is in `Asker.missing`; whatever stops the run is raised when all that was in
    flight has arrived and is kept.
    """
    async with AsyncExitStack() as stack:
        asker = Asker(
            store,
            transport,
            runtime.concurrency,
            _connector(settings, transport, http, stack),
            max_cost_usd=runtime.max_cost_usd,
            sleep=sleep,
        )
        prompts = (prompt for part in read_prompts(prompts_path) for prompt in part)
        total = count_parquet(prompts_path)
        shown = progress(f"generate {dataset}", total, lambda: f"{asker.sent} sent, ${asker.cost_usd:.4f}")
        with shown as step, _interruptible(asker):
            # Twice the slots: those that wait (backing off, for another process) hold none.
            workers = min(total, 2 * runtime.concurrency)
            await asyncio.gather(*(_work(prompts, settings, store, asker, step) for _ in range(workers)))
    if asker.stop_reason is not None:
        raise asker.stop_reason
    return asker


async def _work(
    prompts: Iterator[Prompt],
    settings: GenerateSettings,
    store: Store,
    asker: Asker,
    step: Callable[[], None],
) -> None:
    """One of several that take prompts from one iterator. Never raises, lest others' answers are lost."""
    try:
        for prompt in prompts:
            await _ask_turns(prompt, settings, store, asker)
            step()
            await asyncio.sleep(0)  # replaying never waits, and the answers to others must be seen
    except Stopped:
        return
    except Exception as error:
        asker.stop(error)


async def _ask_turns(prompt: Prompt, settings: GenerateSettings, store: Store, asker: Asker) -> None:
    steps = converse(prompt, settings)
    try:
        asked = next(steps)
        while True:
            asked = steps.send(store.get(asked.key) or await asker.ask(asked))
    except StopIteration:
        return


def replay(prompt: Prompt, settings: GenerateSettings, store: Store) -> list[Turn]:
    """The turns of a prompt as the store knows them; nothing is sent."""
    steps = converse(prompt, settings)
    try:
        asked = next(steps)
        while True:
            asked = steps.send(store.get(asked.key))
    except StopIteration as end:
        turns: list[Turn] = end.value
        return turns


def _connector(
    settings: GenerateSettings,
    transport: Transport,
    http: httpx.AsyncBaseTransport | None,
    stack: AsyncExitStack,
) -> Callable[[], Awaitable[Client]]:
    """Opens the client at its first call: a replay needs no key, no server and no network."""
    lock, opened = asyncio.Lock(), list[Client]()

    async def connect() -> Client:
        async with lock:
            if not opened:
                key = read_key(transport)
                base_url = _simulated(settings, stack) or transport.base_url
                if base_url is None:
                    raise ConfigError(
                        f"conf/provider/{settings.provider}.yaml: transport.base_url: missing; it is the "
                        "address that requests go to"
                    )
                client = Client(base_url, transport, key=key, http=http)
                opened.append(await stack.enter_async_context(client))
            return opened[0]

    return connect


def _simulated(settings: GenerateSettings, stack: AsyncExitStack) -> str | None:
    """The simulator's address, if it is the provider; it ends with the run."""
    if settings.api.simulator is None:
        return None
    from pipeline.simulator.process import serve

    running = stack.enter_context(serve(settings.api.simulator.profile, settings.api.simulator.seed))
    return running.base_url


@contextmanager
def _interruptible(asker: Asker) -> Iterator[None]:
    """Ctrl-C stops sending and waits for what is in flight (it is paid for); a second one does not wait."""
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        asker.stop(GenerationError("interrupted; every answer is kept, run again to go on"))

    try:
        loop.add_signal_handler(signal.SIGINT, interrupt)
    except (NotImplementedError, RuntimeError, ValueError):  # not the main thread, or Windows
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
