"""Datasets' prompts and settings -> stores with a final answer to every request, or what is missing.

All datasets of a run share one limiter a provider, one budget and one display.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

from pipeline.config import GenerateSettings, Runtime, SimulatorSettings, Transport
from pipeline.core.money import Account, Ledger
from pipeline.core.requests import endpoint_identity
from pipeline.core.turns import Asked, Response, Turn, converse
from pipeline.errors import ConfigError, ExactokError
from pipeline.io.asking import Asker
from pipeline.io.connecting import connector
from pipeline.io.display import display
from pipeline.io.event_loop import interruptible, run_loop
from pipeline.io.line import Line
from pipeline.io.prompts import read_prompts
from pipeline.io.reconcile import reconcile
from pipeline.io.run import Halted, Run, Sleep, Stopped
from pipeline.io.store import Store
from pipeline.records import Prompt

_GROUP = 20


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
    for store in {id(job.store): job.store for job in jobs}.values():
        store.warm_up()
    async with AsyncExitStack() as stack:
        lines: dict[object, Line] = {}
        by_line: dict[int, list[_Dataset]] = {}
        for job in jobs:
            line = _line(lines, job, run, runtime, http, stack)
            asker = Asker(run, line, job.store, job.dataset)
            by_line.setdefault(id(line), []).append((job, asker, _once(job.recall)))
        stack.enter_context(display(label, run.tally))
        stack.enter_context(interruptible(run))
        # Twice the slots: those that wait (backing off, for the disk, for another process) hold none.
        many = min(run.tally.total, 2 * runtime.concurrency)
        await asyncio.gather(*(_crew(_talks(there), many, run) for there in by_line.values()))
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
            connect = connector(provider, transport, simulator, None, stack)
            asker = Asker(run, Line(run, transport, runtime.concurrency, connect), store, provider)
            with interruptible(run), contextlib.suppress(Stopped):
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
        connect = connector(job.settings.provider, job.transport, simulator, http, stack)
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


@dataclass(frozen=True, slots=True)
class _Talk:
    """One prompt under way. `known`: the store had its first answer when it was last looked at."""

    dataset: _Dataset
    prompt: Prompt
    steps: Generator[Asked, Response | None, list[Turn]]
    first: Asked | None
    known: bool


def _talks(datasets: Iterable[_Dataset]) -> Iterator[_Talk]:
    """Hundreds of first requests are looked up at once: looking up each cost more than sending it."""
    for dataset in datasets:
        job = dataset[0]
        for prompts in read_prompts(job.prompts_path):
            all_steps = [converse(prompt, job.settings) for prompt in prompts]
            firsts = [next(steps, None) for steps in all_steps]
            known = job.store.known([first.key for first in firsts if first is not None])
            for prompt, steps, first in zip(prompts, all_steps, firsts, strict=True):
                yield _Talk(dataset, prompt, steps, first, first is not None and first.key in known)


async def _crew(talks: Iterator[_Talk], many: int, run: Run) -> None:
    """Workers who share the prompts. They begin in small groups, lest all prepare before one has sent."""
    workers = []
    for number in range(many):
        workers.append(asyncio.create_task(_work(talks, run)))
        if number % _GROUP == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*workers)


async def _work(talks: Iterator[_Talk], run: Run) -> None:
    """One of several that take prompts from one iterator. Never raises, lest others' answers are lost."""
    try:
        for talk in talks:
            if talk.dataset[0].dataset in run.halted:
                continue
            if await _ask_turns(talk, run):
                await asyncio.sleep(0)  # replaying never waits, and the answers to others must be seen
    except Stopped:
        return
    except Exception as error:
        run.stop(error)


async def _ask_turns(talk: _Talk, run: Run) -> bool:
    """Whether all of it was in the store."""
    (job, asker, recall), tally, last = talk.dataset, run.tally, len(talk.prompt.following_turns)
    turns, replayed, asked, known = 0, True, talk.first, talk.known
    try:
        while asked is not None:
            response = job.store.get(asked.key) if known else None
            if response is None and job.recall is not None:
                await recall()
                response = job.store.get(asked.key)
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
            asked, known = talk.steps.send(response), True
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
