"""A repository -> its stages as dvc.lock recorded them, and the files edited since; nothing is written.

DVC itself reads dvc.yaml and dvc.lock and compares files, so that what is said here is what `dvc repro`
will find. It is not asked about build/config.yaml, which is not written yet: those settings are compared
in memory (pipeline.core.plan).
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from dvc.dependency.param import ParamsDependency
from dvc.exceptions import DvcException
from dvc.repo import Repo

from pipeline.core.plan import Edits, Stage
from pipeline.errors import StageError

SETTINGS = "build/config.yaml"
MADE_FROM = ("conf", "params.yaml", "pipeline", "requirements.lock")
"""Where an edit can change settings or code."""
_IN_WORDS = {
    "deleted": "is missing",
    "modified": "differs from what was built",
    "new": "was not there",
    "not in cache": "is not in DVC's cache",
}


def read_stages(root: Path) -> list[Stage]:
    """All stages in the order of dvc.yaml. Raises StageError when DVC can't read its files."""
    try:
        with Repo(str(root)) as repo:
            index = repo.index
            composer = {stage.name for stage in index.stages if _writes_settings(stage)}
            return [_stage(stage, index.graph, composer) for stage in index.stages]
    except DvcException as broken:
        raise StageError(f"dvc.yaml: {' '.join(str(broken).split())}") from None


def _stage(stage: Any, graph: Any, composer: set[str]) -> Stage:
    params = [dep for dep in stage.deps if isinstance(dep, ParamsDependency) and dep.def_path == SETTINGS]
    after = {upstream.name for upstream in graph.successors(stage)} - composer
    if not any(out.hash_info for out in stage.outs):
        return Stage(stage.name, tuple(sorted(after)), built=False)
    inputs = _problems([dep for dep in stage.deps if dep not in params])
    if after:  # what an earlier stage lost is that stage's matter
        inputs = [text for text in inputs if not text.endswith(_IN_WORDS["deleted"])]
    command = ["its command differs"] if stage.cmd_changed else []
    outputs = _problems(stage.outs)
    return Stage(
        name=stage.name,
        after=tuple(sorted(after)),
        keys=tuple(key for dep in params for key in dep.params),
        recorded={key: value for dep in params for key, value in (dep.hash_info.value or {}).items()},
        inputs=(*command, *inputs),
        outputs=tuple(outputs),
        restorable=bool(outputs) and stage.outs_cached(),
    )


def _writes_settings(stage: Any) -> bool:
    return any(out.def_path == SETTINGS for out in stage.outs)


def _problems(entries: list[Any]) -> list[str]:
    """What DVC says of files and of settings that earlier stages write, in words."""
    found = []
    for entry in entries:
        for state in entry.status().values():
            keys = state if isinstance(state, dict) else {"": state}
            found += [
                f"{entry.def_path}{key and f': {key}'} {_IN_WORDS.get(how, how)}" for key, how in keys.items()
            ]
    return found


# --- git -----------------------------------------------------------------------------------------


def read_edits(root: Path) -> Edits:
    """Edited since the commit that last changed dvc.lock; since the last commit if dvc.lock is newer."""
    head = _git(root, "rev-parse", "--short", "HEAD")
    if not head:
        return Edits(None, "no git commit here: edited files can't be told")
    lock = _git(root, "log", "-1", "--format=%h", "--", "dvc.lock")
    if lock and not _git(root, "status", "--porcelain", "--", "dvc.lock"):
        base, since = lock[0], f"the build of commit {lock[0]}"
    else:
        base, since = head[0], f"the last commit ({head[0]}), since dvc.lock is not committed"
    changed = _git(root, "diff", "--relative", "--name-only", base, "--", *MADE_FROM)
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "--", *MADE_FROM)
    return Edits(base, since, tuple(dict.fromkeys([*changed, *untracked])))


def _git(root: Path, *arguments: str) -> list[str]:
    """Lines of output; none where git, a repository or a commit is missing."""
    command = ["git", "-C", str(root), "-c", "core.quotePath=false", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return []
    return done.stdout.splitlines()
