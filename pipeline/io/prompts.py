"""build/prompts/d.parquet -> prompts, some at a time, in the order of the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.errors import StageError
from pipeline.io.files import read_parquet_parts
from pipeline.records import Prompt

AT_ONCE = 500
"""Prompts in memory at a time; a row group of the responses holds the turns of as many."""


def read_prompts(path: Path) -> Iterator[list[Prompt]]:
    """Prompts in file order. Raises StageError naming the place that can't be read."""
    for part in read_parquet_parts(path, AT_ONCE):
        try:
            yield [_prompt(row) for row in part.to_pylist()]
        except (KeyError, json.JSONDecodeError) as broken:
            raise StageError(f"{path}: not what the prompts stage writes ({broken!r}); rebuild it") from None


def _prompt(row: dict[str, Any]) -> Prompt:
    return Prompt(
        prompt_id=row["prompt_id"],
        position=row["position"],
        messages=tuple(json.loads(row["messages"])),
        following_turns=tuple(json.loads(row["following_turns"] or "[]")),
        tools=tuple(json.loads(row["tools"] or "null") or ()) or None,
        source_id=row["source_id"],
    )


def count_turns(path: Path) -> int:
    """How many rows the prompts become. Raises StageError for a prompt that stands there twice."""
    seen: set[str] = set()
    turns = 0
    for prompt in (prompt for part in read_prompts(path) for prompt in part):
        if prompt.prompt_id in seen:
            raise StageError(
                f"{path}: prompt_id {prompt.prompt_id!r} stands there twice (again at position "
                f"{prompt.position}), so row ids would not be unique: set prompts.dedupe"
            )
        seen.add(prompt.prompt_id)
        turns += 1 + len(prompt.following_turns)
    return turns
