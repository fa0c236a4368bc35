"""A prompt file -> its sha256, and whether compose reads that hash by itself."""

from __future__ import annotations

import hashlib
from pathlib import Path

SHIPPED = "conf/prompts"


def sha256_of(path: Path) -> str:
    """Of the content, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_shipped(path: Path, root: Path) -> bool:
    """Below conf/prompts/: DVC sees its edits, so that no pin is needed."""
    return path.resolve().is_relative_to((root / SHIPPED).resolve())
