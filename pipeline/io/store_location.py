"""Repository, settings and environment -> the file that holds this project's paid answers.

`$EXACTOK_STORE` names it, else `runtime.store`, else it lies in the user's data folder under the root
commit of the repository: clones share it, and neither `git clean -fdX` nor an emptied DVC cache
reaches it. The simulator's answers live in a file of their own, always: in the cache folder, which
may be emptied at any time, or beside a store that was named. It is kept between runs, so that a second
build replays instead of sending, exactly as with a paid endpoint.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import platformdirs

VARIABLE = "EXACTOK_STORE"
_FILE = "store.sqlite"


def store_path(root: Path, configured: str | None, *, simulator: bool) -> Path:
    """Where the answers of this project are kept."""
    named = os.environ.get(VARIABLE) or configured
    if named:
        path = Path(named).expanduser()
        path = path if path.is_absolute() else root / path
        return path.with_name(f"{path.stem}.simulator{path.suffix}") if simulator else path
    folder = platformdirs.user_cache_path if simulator else platformdirs.user_data_path
    name = f"simulator.{_FILE}" if simulator else _FILE
    return folder("exactok", appauthor=False) / _project(root) / name


def _project(root: Path) -> str:
    """The first root commit of the history; DVC names the main repository in its temporary ones."""
    repository = os.environ.get("DVC_ROOT") or str(root)
    command = ["git", "-C", repository, "rev-list", "--max-parents=0", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):  # no git, no repository or no commit
        return "no-repository"
    return min(found.stdout.split(), default="no-repository")
