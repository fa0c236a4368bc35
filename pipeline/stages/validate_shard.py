"""One shard of samples -> its verdicts and counts; what a worker process of the validate stage runs."""

from __future__ import annotations

import gc
import json
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandera.errors
import polars as pl
import pyarrow as pa

from pipeline.config import PromptEncoding, ValidateSettings
from pipeline.core.encoding import Encoder
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.rules import RULES, Bools, Columns, Facts, check, unparsable_arguments
from pipeline.errors import StageError
from pipeline.io.files import parquet_bytes
from pipeline.io.tables import to_columns
from pipeline.io.tokenizers import load
from pipeline.schemas import VERDICTS, Samples


@dataclass(frozen=True)
class Checking:
    """All that a shard is checked with. Pickled once a shard."""

    settings: ValidateSettings
    tokenizer: Path
    """Folder that the tokenizer stage has built."""
    dataset: str


def check_shard(checking: Checking, table: pa.Table) -> tuple[bytes, bytes]:
    """File of verdicts, row for row, and the counts as JSON. Raises StageError for another schema."""
    _check_schema(checking.dataset, table)
    settings = checking.settings
    encoder = _encoder(checking.tokenizer, settings.render.encoding.model_dump_json())
    grammar = CompiledGrammar(settings.grammar, encoder.special, thinking=settings.render.thinking)
    facts = Facts(encoder, grammar, settings.rules.max_length)
    columns = to_columns(table)
    broken = check(columns, facts)
    blame = _blame(broken, columns.rows)
    passed = np.array([reason is None for reason in blame], dtype=bool)
    counts = _counts(table, columns, broken, blame, passed)
    counts["unparsable"] = int(unparsable_arguments(columns, facts).sum())
    verdicts = pa.table([columns.row_ids, passed, blame], schema=VERDICTS)
    return parquet_bytes(verdicts), json.dumps(counts).encode()


@lru_cache(maxsize=1)
def _encoder(folder: Path, prompt: str) -> Encoder:
    """Once a process."""
    encoder = load(folder, PromptEncoding.model_validate_json(prompt))
    gc.freeze()
    return encoder


def _check_schema(dataset: str, table: pa.Table) -> None:
    """Names, types and value sets of the table; a broken one is a fault of the build, not of a row."""
    try:
        Samples.validate(pl.DataFrame(pl.from_arrow(table)), lazy=True)
    except pandera.errors.SchemaErrors as broken:
        first = broken.failure_cases.row(0, named=True)
        raise StageError(
            f"build/samples/{dataset}: column {first['column']} breaks {first['check']} "
            f"({broken.failure_cases.height} such cells); run `dvc repro -f reconstruct`"
        ) from None


def _blame(broken: dict[str, Bools], rows: int) -> list[str | None]:
    """The first broken rule of every row."""
    blame: list[str | None] = [None] * rows
    for rule in reversed(RULES):
        for row in np.flatnonzero(broken[rule.__name__]):
            blame[row] = rule.__name__
    return blame


def _counts(
    table: pa.Table, columns: Columns, broken: dict[str, Bools], blame: list[str | None], passed: Bools
) -> dict[str, Any]:
    """Numbers of one shard; those of all shards are their sums."""
    kept = table.filter(pa.array(passed))
    lengths = np.diff(columns.starts)
    return {
        "samples": columns.rows,
        "rules": {name: int(rows.sum()) for name, rows in broken.items()},
        "rejects": Counter(reason for reason in blame if reason is not None),
        "fidelity": Counter(kept.column("fidelity").to_pylist()),
        "endings": Counter(kept.column("ending").to_pylist()),
        "flags": Counter(flag for flags in columns.flags for flag in flags),
        "prompt_tokens": int(columns.prompt_length[passed].sum()),
        "completion_tokens": int((lengths - columns.prompt_length)[passed].sum()),
    }
