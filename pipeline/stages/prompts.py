"""A dataset's prompt source -> build/prompts/d.parquet, and what it could not use in d.rejects.parquet."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.config import PromptSettings
from pipeline.core.prompts import sampled, to_prompt
from pipeline.core.shapes import Refused
from pipeline.errors import SourceError, StageError
from pipeline.io.files import write_parquet, write_parquet_parts
from pipeline.io.prompts import AT_ONCE
from pipeline.io.sources import SourceRow, read_source
from pipeline.io.tables import rejects_table
from pipeline.records import Prompt, Reject
from pipeline.schemas import PROMPTS
from pipeline.stages.shell import parse_settings


@dataclass(frozen=True, slots=True)
class Made:
    """What one source gives. Rows in = prompts + rejects + duplicates + left out by `limit` or `sample`."""

    prompts: list[Prompt]
    rejects: list[Reject]
    rows: int
    duplicates: int
    left_out: int


def run(dataset: str, subtree: dict[str, Any], root: Path) -> str:
    """Make a dataset's prompts and write them."""
    made = make(dataset, subtree, root)
    write(made, dataset, root / "build/prompts")
    parts = [f"{len(made.rejects)} rejected", f"{made.duplicates} duplicates", f"{made.left_out} left out"]
    return f"prompts {dataset}: {made.rows} rows -> {len(made.prompts)} prompts ({', '.join(parts)})"


def write(made: Made, dataset: str, folder: Path) -> list[Path]:
    """The stage's two files."""
    paths = [folder / f"{dataset}.parquet", folder / f"{dataset}.rejects.parquet"]
    parts = (_table(made.prompts[at : at + AT_ONCE]) for at in range(0, len(made.prompts), AT_ONCE))
    write_parquet_parts(paths[0], PROMPTS, parts)  # a reader holds one part in memory
    write_parquet(paths[1], rejects_table(made.rejects))
    return paths


def make(dataset: str, subtree: dict[str, Any], root: Path) -> Made:
    """Prompts in memory. Raises SourceError when no row gives a prompt or a column is misspelt."""
    settings = parse_settings(PromptSettings, subtree, f"{dataset}.prompts")
    prompts: list[Prompt] = []
    rejects: list[Reject] = []
    seen: set[str] = set()
    rows = duplicates = 0
    columns: set[str] = set()
    for row in read_source(settings.source, dataset, root):
        rows += 1
        columns.update(row.values or ())
        made = _make(row, settings)
        if isinstance(made, Reject):
            rejects.append(made)
        elif settings.dedupe and made.prompt_id in seen:
            duplicates += 1
        else:
            seen.add(made.prompt_id)
            prompts.append(made)
    usable = len(prompts)
    if not usable:
        often = Counter(reject.reason for reject in rejects).most_common(1)
        why = f"{often[0][1]} times {often[0][0]}: {rejects[0].detail}" if often else "it is empty"
        raise SourceError(f"{dataset}: no row of its source gives a prompt ({why})")
    for key in ("tools_field", "id_field"):
        name = getattr(settings.mapping, key)
        if name is not None and name not in columns:
            there_are = ", ".join(sorted(columns))
            raise SourceError(
                f"{dataset}: prompts.mapping.{key}: no row has {name!r}; there are: {there_are}"
            )
    prompts = prompts[: settings.limit]
    if settings.sample is not None:
        kept = sampled([prompt.prompt_id for prompt in prompts], settings.sample, settings.seed)
        prompts = [prompts[number] for number in kept]
    left_out = usable - len(prompts)
    if rows != len(prompts) + len(rejects) + duplicates + left_out:
        raise StageError(f"{dataset}: {rows} source rows are not all accounted for")
    return Made(prompts, rejects, rows, duplicates, left_out)


def _make(row: SourceRow, settings: PromptSettings) -> Prompt | Reject:
    row_id = f"source:{row.position}"
    if row.values is None:
        return Reject(row_id, "prompts", "unreadable", row.problem, row.raw)
    try:
        return to_prompt(row.values, row.position, settings)
    except Refused as refused:
        raw = json.dumps(row.values, default=str)
        return Reject(row_id, "prompts", refused.reason, str(refused), raw)


def _table(prompts: list[Prompt]) -> pa.Table:
    rows = [
        {
            "prompt_id": prompt.prompt_id,
            "position": prompt.position,
            "messages": _json(prompt.messages),
            "following_turns": _json(prompt.following_turns),
            "tools": None if prompt.tools is None else _json(prompt.tools),
            "source_id": prompt.source_id,
        }
        for prompt in prompts
    ]
    return pa.Table.from_pylist(rows, schema=PROMPTS)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
