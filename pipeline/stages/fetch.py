"""Every dataset's requests, asked in one process -> the store; `dvc repro` then replays from it.

DVC runs one stage after another, so a build that buys as it goes waits for each dataset's slowest answer.
Here all share one limiter a provider, one budget and one display. Nothing of build/ is read or written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pipeline.config import GenerateSettings
from pipeline.errors import ConfigError, GenerationError
from pipeline.io.conf import compose_all, load_runtime, load_transport
from pipeline.io.event_loop import run_loop
from pipeline.io.fetch import Job, fetch
from pipeline.io.prompts import count_turns
from pipeline.io.store import Store
from pipeline.io.store_committed import import_committed
from pipeline.io.store_location import store_path
from pipeline.stages import prompts
from pipeline.stages.compose import settings_tree
from pipeline.stages.generate import missing_text, money_text
from pipeline.stages.shell import parse_settings


def run(names: Sequence[str], root: Path) -> str:
    """Ask for all datasets of params.yaml, or those named.

    Raises GenerationError when requests are left without an answer or a limit was reached.
    """
    tree = settings_tree(compose_all(root), root)
    listed = list(tree["profiles"]["pinned"])
    unknown = [name for name in names if name not in listed]
    if unknown:
        raise ConfigError(f"{unknown[0]}: not in params.yaml: datasets; there are: {', '.join(listed)}")
    runtime = load_runtime(root)
    with tempfile.TemporaryDirectory(prefix="exactok-") as folder, ExitStack() as stack:
        stores: dict[Path, Store] = {}
        jobs: list[Job] = []
        for name in dict.fromkeys(names or listed):
            settings = parse_settings(GenerateSettings, tree[name]["generate"], f"{name}.generate")
            path, _ = prompts.write(prompts.make(name, tree[name]["prompts"], root), name, Path(folder))
            where = store_path(root, runtime.store, simulator=settings.api.simulator is not None)
            if where not in stores:
                stores[where] = stack.enter_context(Store(where))
            transport, recall = (
                load_transport(settings.provider, root),
                partial(import_committed, stores[where], root, name, settings),
            )
            jobs.append(Job(name, path, count_turns(path), settings, transport, stores[where], recall))
        asked = run_loop(fetch(jobs, runtime))
    if asked.missing:
        raise GenerationError(f"fetch: {missing_text(asked.missing)}")
    turns = f"{asked.tally.done} turns of {len(jobs)} datasets have an answer or can't be asked"
    return f"fetch: {turns}; {money_text(asked.tally)}"
