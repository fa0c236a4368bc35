"""Name of an installed package -> the module here that reads a vocabulary out of it.

A module offers `read(vocabulary) -> Vocabulary`; a new package is one new module.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.errors import ConfigError


@dataclass(frozen=True)
class Vocabulary:
    """What a package carries of one model."""

    tiktoken_model: bytes
    """The rank file as the vendor publishes it."""
    special: Mapping[str, int]
    """The package's own table of special tokens: a second witness, never the source of an id."""


def read(package: str, vocabulary: str) -> Vocabulary:
    """Raises ConfigError when there is no such module or the package has no such vocabulary."""
    known = sorted(module.name for module in pkgutil.iter_modules(__path__))
    if package not in known:
        raise ConfigError(
            f"tokenizer.source.package {package!r} is not known: use one of {', '.join(known)}, "
            "or add a module to pipeline/io/vocabularies"
        )
    found: Vocabulary = importlib.import_module(f"{__name__}.{package}").read(vocabulary)
    return found
