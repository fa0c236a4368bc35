"""Datasets' prompts and settings -> stores with a final answer to every request, or what is missing.

All datasets of a run share one limiter a provider, one budget and one display.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from pipeline.config import GenerateSettings, Runtime, SimulatorSettings, Transport
from pipeline.core.money import Account, Ledger
from pipeline.core.requests import endpoint_identity
from pipeline.core.turns import Asked, Response, converse
from pipeline.errors import ConfigError, ExactokError, Interrupted
from pipeline.io.asking import Asker
from pipeline.io.client import Client, read_key
from pipeline.io.display import display
from pipeline.io.line import Line
from pipeline.io.prompts import read_prompts
from pipeline.io.reconcile import reconcile
from pipeline.io.run import Halted, Run, Sleep, Stopped
from pipeline.io.store import Store
from pipeline.records import Prompt

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Job:
    """One dataset to be asked for. `prompts_path` is a file of the prompts stage with so many turns.

    `recall` is called once, when the first request is found to have no answer: it may fill the store.
    """

    dataset: str
    prompts_path: Path
    turns: int
    settings: GenerateSettings
    transport: Transport
    store: Store
    recall: Callable[[], object] | None = None


def run_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """uvloop where there is one: 172 MB instead of 665 MB for 2,000 TLS connections.

    What is loaded by now lives as long as the process; the collector need not look at it again and again
    (a fifth of the time at 2,000 requests in flight).
    """
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 50)
    try:
        try:
            from uvloop import new_event_loop as factory
        except ImportError:
            return asyncio.run(work)
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(work)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def fetch(
    jobs: Sequence[Job],
    runtime: Runtime,
    *,
    label: str = "fetch",
    http: httpx.AsyncBaseTransport | None = None,
    sleep: Sleep = asyncio.sleep,
) -> Run:
    """Ask every turn of every prompt that its store has no answer to.

    What stays without one is in `Run.missing`. Whatever stops the run, or one dataset, is raised when all
    that was in flight has arrived and is kept.
    """
    _require_prices(jobs, runtime)
    limits = {name: Account(limit) for name, limit in runtime.max_cost_usd_by_dataset.items()}
    run = Run(Ledger(Account(runtime.max_cost_usd), limits), sleep=sleep)
    run.tally.total = sum(job.turns for job in jobs)
    began = time.time()
    async with AsyncExitStack() as stack:
        lines: dict[object, Line] = {}
        by_line: dict[int, list[_Dataset]] = {}
        for job in jobs:
            line = _line(lines, job, run, runtime, http, stack)
            asker = Asker(run, line, job.store, job.dataset)
            by_line.setdefault(id(line), []).append((job, asker, _once(job.recall)))
        stack.enter_context(display(label, run.tally))
        stack.enter_context(_interruptible(run))
        work = [
            _work(prompts, run)
            for asked_there in by_line.values()
            # Twice the slots: those that wait (backing off, for another process) hold none.
            for prompts in [_prompts(asked_there)] * min(run.tally.total, 2 * runtime.concurrency)
        ]
        await asyncio.gather(*work)
        if run.stop_reason is None or isinstance(run.stop_reason, ExactokError):
            await _reconcile(jobs, lines, run, began)
    reason = run.stop_reason or next(iter(run.halted.values()), None)
    if reason is not None:
        raise reason
    return run


def ask_all(
    asked: Sequence[Asked],
    provider: str,
    transport: Transport,
    simulator: SimulatorSettings | None,
    runtime: Runtime,
    store: Store,
) -> dict[str, Response]:
    """Answers to single requests, each bought unless the store has it; those that none came to are absent."""

    async def work() -> None:
        run = Run(Ledger(Account(runtime.max_cost_usd)))
        async with AsyncExitStack() as stack:
            connect = _connector(provider, transport, simulator, None, stack)
            asker = Asker(run, Line(run, transport, runtime.concurrency, connect), store, provider)
            with _interruptible(run), contextlib.suppress(Stopped):
                await asyncio.gather(*(asker.ask(one) for one in asked if store.get(one.key) is None))
        if run.stop_reason is not None:
            raise run.stop_reason

    run_loop(work())
    return store.get_many(one.key for one in asked)


def _require_prices(jobs: Sequence[Job], runtime: Runtime) -> None:
    """A limit holds only if it is known what a request can cost at most."""
    for job in jobs:
        limited = runtime.max_cost_usd is not None or job.dataset in runtime.max_cost_usd_by_dataset
        if limited and job.transport.price is None:
            raise ConfigError(
                f"conf/provider/{job.settings.provider}.yaml: transport.price: missing; runtime.max_cost_usd "
                "can be held only if the price is known (prompt and completion, US dollars a million tokens)"
            )


def _line(
    lines: dict[object, Line],
    job: Job,
    run: Run,
    runtime: Runtime,
    http: httpx.AsyncBaseTransport | None,
    stack: AsyncExitStack,
) -> Line:
    """One line an endpoint, however many datasets ask it."""
    simulator = job.settings.api.simulator
    endpoint = (job.settings.provider, simulator and (simulator.profile, simulator.seed))
    if endpoint not in lines:
        connect = _connector(job.settings.provider, job.transport, simulator, http, stack)
        lines[endpoint] = Line(run, job.transport, runtime.concurrency, connect)
    return lines[endpoint]


_Recall = Callable[[], Awaitable[None]]
_Dataset = tuple[Job, Asker, _Recall]


def _once(recall: Callable[[], object] | None) -> _Recall:
    """Everyone who calls waits for the first call, in a thread, to end."""
    done: list[asyncio.Future[object]] = []

    async def wait() -> None:
        if recall is not None:
            if not done:
                done.append(asyncio.ensure_future(asyncio.to_thread(recall)))
            await asyncio.shield(done[0])

    return wait


def _prompts(datasets: Iterable[_Dataset]) -> Iterator[tuple[_Dataset, Prompt]]:
    for dataset in datasets:
        for part in read_prompts(dataset[0].prompts_path):
            for prompt in part:
                yield dataset, prompt


async def _work(prompts: Iterator[tuple[_Dataset, Prompt]], run: Run) -> None:
    """One of several that take prompts from one iterator. Never raises, lest others' answers are lost."""
    try:
        for dataset, prompt in prompts:
            if dataset[0].dataset in run.halted:
                continue
            if await _ask_turns(prompt, dataset, run):
                await asyncio.sleep(0)  # replaying never waits, and the answers to others must be seen
    except Stopped:
        return
    except Exception as error:
        run.stop(error)


async def _ask_turns(prompt: Prompt, dataset: _Dataset, run: Run) -> bool:
    """Whether all of it was in the store."""
    job, asker, recall = dataset
    steps, tally, last = converse(prompt, job.settings), run.tally, len(prompt.following_turns)
    turns, replayed = 0, True
    try:
        asked = next(steps)
        while True:
            response = job.store.get(asked.key)
            if response is None:
                await recall()
                response = job.store.get(asked.key) if job.recall is not None else None
            if response is None:
                replayed = False
                response = await asker.ask(asked)
                tally.failed += response is None
            else:
                tally.cached += 1
            turns += 1
            tally.done += 1
            if turns > last:
                return replayed  # nobody needs the last answer's next request
            asked = steps.send(response)
    except StopIteration:
        pass
    except Halted:
        return False
    tally.done += 1 + last - turns  # turns that can't be asked
    tally.cached += 1 + last - turns
    return replayed


async def _reconcile(jobs: Sequence[Job], lines: dict[object, Line], run: Run, began: float) -> None:
    """Ask endpoints that can tell for the costs that this run had to book as unknown."""
    for job in jobs:
        simulator = job.settings.api.simulator
        line = lines[job.settings.provider, simulator and (simulator.profile, simulator.seed)]
        if job.transport.generation_path is None or not line.connected:
            continue
        identity = endpoint_identity(job.settings.api)
        for unpriced, cost in await reconcile(
            job.store, identity, job.transport, await line.connect(), began
        ):
            run.ledger.reconcile(job.dataset, unpriced.bound_usd or 0.0, cost)
    run.show_money()


def _connector(
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


@contextmanager
def _interruptible(run: Run) -> Iterator[None]:
    """Ctrl-C or SIGTERM stops sending and waits for what is in flight (it is paid for); a second does not."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def interrupt() -> None:
        for one in signals:
            loop.remove_signal_handler(one)
        run.stop(Interrupted("interrupted; every answer is kept, run again to go on"))

    try:
        for one in signals:
            loop.add_signal_handler(one, interrupt)
    except (NotImplementedError, RuntimeError, ValueError):  # not the main thread, or Windows
        yield
        return
    try:
        yield
    finally:
        for one in signals:
            loop.remove_signal_handler(one)
