"""A format's name -> its module in pipeline/exports/."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import pipeline.exports
from pipeline.errors import ConfigError


def find_format(name: str) -> ModuleType:
    """The module of a format. Raises ConfigError listing what exists."""
    known = sorted(module.name for module in pkgutil.iter_modules(pipeline.exports.__path__))
    if name not in known:
        raise ConfigError(f"params.yaml: exports: unknown format {name!r}; there are: {', '.join(known)}")
    module = importlib.import_module(f"pipeline.exports.{name}")
    if getattr(module, "FORM", None) not in ("jsonl", "parquet") or not callable(
        getattr(module, "row", None)
    ):
        raise ConfigError(
            f'pipeline/exports/{name}.py: it needs FORM = "jsonl" or "parquet" and row(sample) -> dict'
        )
    return module
