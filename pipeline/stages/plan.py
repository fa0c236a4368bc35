"""conf/, params.yaml, dvc.lock, git, the store -> what the next build will run and send, before it does.

Each edit -> the settings that it changed -> the stages that run -> requests, tokens, cost. Settings are
composed and prompts are made in memory; build/ and the store stay as they are.
"""

from __future__ import annotations

import dataclasses
import filecmp
import json as json_text
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from pipeline.config import FileSource
from pipeline.core.estimate import Requests, total_cost
from pipeline.core.plan import RUNNING, Fate, Plan, changed_keys, outlooks, with_files
from pipeline.io.build_state import read_edits, read_stages
from pipeline.io.code import STAGES, files_of
from pipeline.io.conf import Composed, compose_all, load_runtime
from pipeline.io.prompts import read_prompts
from pipeline.records import Prompt
from pipeline.stages import prompts as prompts_stage
from pipeline.stages.compose import settings_tree
from pipeline.stages.plan_requests import Asking
from pipeline.stages.plan_screen import show


def run(root: Path, console: Console, *, json: bool = False) -> None:
    """Print the plan. Raises what composing and making prompts raise: the build would stop there too."""
    plan = make_plan(root)
    if json:
        text = json_text.dumps(dataclasses.asdict(plan), ensure_ascii=False, indent=1)
        console.print(text, soft_wrap=True, markup=False, highlight=False, emoji=False)
    else:
        show(plan, console)


def make_plan(root: Path) -> Plan:
    """Everything that follows from what is edited now."""
    composed = compose_all(root)
    tree = settings_tree(composed, root)
    stages, edits = read_stages(root), read_edits(root)
    code = {name: [path.relative_to(root).as_posix() for path in files_of(name, root)] for name in STAGES}
    changes = with_files(changed_keys(stages, tree), edits.files, code, _sources(composed))
    recorded = {stage.name: stage.recorded for stage in stages}
    same: set[str] = set()
    requests = []
    with TemporaryDirectory(prefix="exactok-plan-") as work, Asking(root, composed) as asking:
        for dataset in composed.datasets:
            prompts: Iterable[Prompt] = _built_prompts(dataset, root)
            made, name = f"prompts@{dataset}", f"generate@{dataset}"
            if outlooks(stages, changes)[made].fate is not Fate.STAYS:
                prompts, unchanged = _made_prompts(dataset, tree[dataset]["prompts"], root, Path(work))
                same |= {made} if unchanged else set()
            if outlooks(stages, changes, same)[name].fate in RUNNING:
                before = recorded[name].get(f"{dataset}.generate")
                asking.add(dataset, prompts, tree[dataset]["generate"], before)
        requests = asking.requests()
    found = list(outlooks(stages, changes, same).values())
    built = any(stage.built for stage in stages)
    notes = _notes(requests, root)
    return Plan(edits, built, changes, found, requests, total_cost(requests), notes)


def _sources(composed: Composed) -> dict[str, str]:
    """Dataset -> its prompt file, or the repository that it comes from."""
    sources = {name: dataset.prompts.source for name, dataset in composed.datasets.items()}
    return {
        name: source.path if isinstance(source, FileSource) else source.repo
        for name, source in sources.items()
    }


def _built_prompts(dataset: str, root: Path) -> Iterator[Prompt]:
    for part in read_prompts(root / f"build/prompts/{dataset}.parquet"):
        yield from part


def _made_prompts(dataset: str, subtree: dict[str, Any], root: Path, work: Path) -> tuple[list[Prompt], bool]:
    """What the prompts stage will make, and whether its files stay as they are, byte for byte."""
    made = prompts_stage.make(dataset, subtree, root)
    written = prompts_stage.write(made, dataset, work)
    before = [root / "build/prompts" / path.name for path in written]
    pairs = zip(written, before, strict=True)
    return made.prompts, all(old.exists() and filecmp.cmp(new, old, shallow=False) for new, old in pairs)


def _notes(requests: list[Requests], root: Path) -> list[str]:
    """What to know before starting: budgets that may not suffice, prices that are missing."""
    runtime, notes = load_runtime(root), []
    cost = total_cost(requests)
    limits = [("max_cost_usd", runtime.max_cost_usd, cost)]
    limits += [
        (f"max_cost_usd_by_dataset.{line.dataset}", limit, line.cost)
        for line in requests
        if (limit := runtime.max_cost_usd_by_dataset.get(line.dataset)) is not None
    ]
    for key, limit, most in limits:
        if limit is not None and most is not None and most.high > limit:
            notes.append(
                f"up to ${most.high:,.2f} is more than runtime.{key} (${limit:,.2f}): the run may stop "
                "there, keeping every answer; raise it in conf/runtime/default.yaml"
            )
    for provider in dict.fromkeys(line.provider for line in requests if line.cost is None):
        notes.append(
            f"no price: set transport.price in conf/provider/{provider}.yaml to see what it may cost"
        )
    return notes
