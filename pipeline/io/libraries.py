"""Locked versions of the libraries that make bytes -> part of a stage's settings, checked when it runs.

A new version of such a library makes the stages that use it run again, and a stage never runs with
another version than the one that its outputs are recorded under.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pipeline.errors import ConfigError

LOCK = "requirements.lock"
# Whatever reads the tokenizer depends on its fingerprint instead (DESIGN 2), not on tokenizer libraries.
BY_STAGE: Mapping[str, tuple[str, ...]] = {
    "tokenizer": ("splintr-rs", "tiktoken", "tokenizers", "transformers"),
    "prompts": ("pyarrow", "polars"),
    "generate": ("pyarrow",),
    "reconstruct": ("jinja2", "pyarrow"),
    "validate": ("numpy", "pandera", "polars", "pyarrow"),
    "export": ("pyarrow",),
}


def locked(stage: str, root: Path) -> dict[str, str]:
    """Version of each library that the stage's bytes depend on. Raises ConfigError for one not locked."""
    text = (root / LOCK).read_text(encoding="utf-8")
    versions: dict[str, str] = {}
    for name in BY_STAGE[stage]:
        found = re.search(rf"^{re.escape(name)}==([^\s;\\]+)", text, re.M)
        if found is None:
            raise ConfigError(f"{LOCK}: {name} is not pinned; run `make lock`")
        versions[name] = found[1]
    return versions


def installed(stage: str) -> dict[str, str]:
    """Version of each library that the stage's bytes depend on, as it is installed."""
    return {name: version(name) for name in BY_STAGE[stage]}


def check_installed(versions: Mapping[str, str]) -> None:
    """Raises ConfigError naming the first library that is installed in another version."""
    for name, wanted in versions.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            found = "nothing"
        if found != wanted:
            raise ConfigError(f"{LOCK} has {name} {wanted}, installed is {found}: run `make setup`")
