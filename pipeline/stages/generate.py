"""build/prompts/d.parquet -> build/responses/d.parquet: one row for each turn, from the store or asked now.

First every request is asked that the store has no answer to; only when all have a final state are the
rows written, and they are written from the store alone. So a run that fails, or is killed, loses
nothing (the next asks for what is missing), and two builds of the same answers are byte-identical.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import httpx
import pyarrow as pa

from pipeline.config import GenerateSettings, Runtime, Transport
from pipeline.core.response_rows import response_rows
from pipeline.core.tally import Tally
from pipeline.core.turns import Asked, Response, replay
from pipeline.errors import GenerationError, StageError
from pipeline.io.event_loop import run_loop
from pipeline.io.fetch import Job, fetch
from pipeline.io.files import write_parquet_parts
from pipeline.io.prompts import count_turns, read_prompts
from pipeline.io.run import Sleep
from pipeline.io.store import Store
from pipeline.io.store_committed import import_committed
from pipeline.io.store_location import store_path
from pipeline.schemas import RESPONSES


def run(
    prompts_path: Path,
    settings: GenerateSettings,
    transport: Transport,
    runtime: Runtime,
    out: Path,
    *,
    root: Path = Path(),
    http: httpx.AsyncBaseTransport | None = None,
    sleep: Sleep = asyncio.sleep,
) -> str:
    """Ask for what is missing, then write. `http` and `sleep` stand in for the world in tests.

    Raises GenerationError when requests are left without an answer, unless `api.accept_missing`.
    """
    dataset, expected = out.stem, count_turns(prompts_path)
    path = store_path(root, runtime.store, simulator=settings.api.simulator is not None)
    with Store(path) as store:
        recall = partial(import_committed, store, root, dataset, settings)
        job = Job(dataset, prompts_path, expected, settings, transport, store, recall)
        asked = run_loop(fetch([job], runtime, label=f"generate {dataset}", http=http, sleep=sleep))
        if asked.missing and not settings.api.accept_missing:
            raise GenerationError(f"{dataset}: {missing_text(asked.missing)}, or set api.accept_missing")
        counts = _write(prompts_path, settings, store, out, expected)
    split = f"{counts['answers']} answers, {counts['failures']} failures"
    return f"generate {dataset}: {expected} rows ({split}); {money_text(asked.tally)}"


def _write(
    prompts_path: Path, settings: GenerateSettings, store: Store, out: Path, expected: int
) -> Counter[str]:
    """Every row, from the store alone. Raises StageError if they are not as many as the turns."""
    counts: Counter[str] = Counter()

    def answer(asked: Asked) -> Response | None:
        return store.get(asked.key)

    def parts() -> Iterator[pa.Table]:
        for prompts in read_prompts(prompts_path):
            turns = [(prompt.prompt_id, replay(prompt, settings, answer)) for prompt in prompts]
            rows = [row for prompt_id, of_prompt in turns for row in response_rows(prompt_id, of_prompt)]
            counts.update("answers" if row["failure"] is None else "failures" for row in rows)
            yield pa.Table.from_pylist(rows, schema=RESPONSES)
        if counts.total() != expected:
            raise StageError(f"{prompts_path}: {expected} turns became {counts.total()} rows")

    write_parquet_parts(out, RESPONSES, parts())
    return counts


def missing_text(missing: Mapping[str, str]) -> str:
    """How many requests are without an answer, and what met them most often."""
    often, times = Counter(missing.values()).most_common(1)[0]
    return (
        f"{len(missing)} requests have no answer ({times} times: {often}); the others are kept: run again to "
        "ask for these alone"
    )


def money_text(tally: Tally) -> str:
    """What was sent and what it cost."""
    unknown = f", of it up to ${tally.unknown_usd:.4f} of unknown cost" if tally.unknown_usd else ""
    return f"{tally.sent} requests sent, ${tally.spent_usd:.4f}{unknown}"
