"""build/samples/d/ + rejects -> build/verdicts/d.parquet and the report build/reports/d.json."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandera.errors
import polars as pl
import pyarrow as pa

from pipeline.config import ValidateSettings
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.rules import RULES, Columns, Facts, check, unparsable_arguments
from pipeline.errors import StageError
from pipeline.io.files import read_parquet, write_json, write_parquet
from pipeline.io.tables import Shard, read_samples, to_columns
from pipeline.io.tokenizers import load
from pipeline.schemas import VERDICTS, Samples
from pipeline.stages.shell import parse_settings


def run(dataset: str, subtree: dict[str, Any], root: Path) -> str:
    """Check every sample against the table's schema and every rule.

    Raises StageError when more rows than `rules.max_reject_share` are lost; the report is written first.
    """
    settings = parse_settings(ValidateSettings, subtree, f"{dataset}.validate")
    encoder = load(root / "build/tokenizer", settings.render.encoding)
    grammar = CompiledGrammar(settings.grammar, encoder.special, thinking=settings.render.thinking)
    facts = Facts(encoder, grammar, settings.rules.max_length)
    rejects = read_parquet(root / f"build/rejects/{dataset}.parquet")
    tally = _Tally()
    verdicts: list[pa.Table] = []
    for shard in read_samples(root / f"build/samples/{dataset}"):
        _check_schema(dataset, shard)
        columns = to_columns(shard.table)
        broken = check(columns, facts)
        blame = _blame(broken, columns.rows)
        tally.add(shard.table, columns, broken, blame, int(unparsable_arguments(columns, facts).sum()))
        passed = [reason is None for reason in blame]
        verdicts.append(pa.table([columns.row_ids, passed, blame], schema=VERDICTS))
    table = pa.concat_tables(verdicts) if verdicts else VERDICTS.empty_table()
    if len(set(table.column("row_id").to_pylist())) != table.num_rows:
        raise StageError(f"{dataset}: a row id stands in two shards; run `dvc repro -f reconstruct`")
    write_parquet(root / f"build/verdicts/{dataset}.parquet", table)
    report = tally.report(rejects)
    write_json(root / f"build/reports/{dataset}.json", report)
    lost = report["responses"] - report["rows"]
    if report["responses"] and lost / report["responses"] > settings.rules.max_reject_share:
        reasons = ", ".join(f"{count} {name}" for name, count in report["rejects"].items())
        raise StageError(
            f"{dataset}: {lost} of {report['responses']} responses give no row ({reasons}), more than "
            f"rules.max_reject_share {settings.rules.max_reject_share}; see build/reports/{dataset}.json"
        )
    return f"validate {dataset}: {report['responses']} responses, {report['rows']} rows pass, {lost} rejected"


def _check_schema(dataset: str, shard: Shard) -> None:
    """Names, types and value sets of the table; a broken one is a fault of the build, not of a row."""
    try:
        Samples.validate(pl.DataFrame(pl.from_arrow(shard.table)), lazy=True)
    except pandera.errors.SchemaErrors as broken:
        first = broken.failure_cases.row(0, named=True)
        raise StageError(
            f"build/samples/{dataset}/{shard.name}: column {first['column']} breaks {first['check']} "
            f"({broken.failure_cases.height} such cells); run `dvc repro -f reconstruct`"
        ) from None


def _blame(broken: dict[str, np.ndarray[Any, Any]], rows: int) -> list[str | None]:
    """The first broken rule of every row."""
    blame: list[str | None] = [None] * rows
    for rule in reversed(RULES):
        for row in np.flatnonzero(broken[rule.__name__]):
            blame[row] = rule.__name__
    return blame


class _Tally:
    """Counts over all shards of a dataset."""

    def __init__(self) -> None:
        self.samples = 0
        self.rules: Counter[str] = Counter()
        self.rejects: Counter[str] = Counter()
        self.fidelity: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.flags: Counter[str] = Counter()
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.unparsable = 0

    def add(
        self,
        table: pa.Table,
        columns: Columns,
        broken: dict[str, np.ndarray[Any, Any]],
        blame: list[str | None],
        unparsable: int,
    ) -> None:
        self.samples += columns.rows
        self.unparsable += unparsable
        for name, rows in broken.items():
            self.rules[name] += int(rows.sum())
        self.rejects.update(reason for reason in blame if reason is not None)
        passed = np.array([reason is None for reason in blame], dtype=bool)
        self.fidelity.update(np.array(table.column("fidelity").to_pylist(), dtype=object)[passed].tolist())
        self.endings.update(np.array(columns.endings, dtype=object)[passed].tolist())
        self.flags.update(flag for flags in columns.flags for flag in flags)
        self.prompt_tokens += int(columns.prompt_length[passed].sum())
        self.completion_tokens += int((np.diff(columns.starts) - columns.prompt_length)[passed].sum())

    def report(self, rejects: pa.Table) -> dict[str, Any]:
        """Numbers that DVC tracks as metrics; rows + rejects = responses."""
        reasons = self.rejects + Counter(rejects.column("reason").to_pylist())
        return {
            "responses": self.samples + rejects.num_rows,
            "rows": self.samples - self.rejects.total(),
            "rejects": dict(sorted(reasons.items())),
            "rules": {
                rule.__name__: {"responses": self.samples, "issues": self.rules[rule.__name__]}
                for rule in RULES
            },
            "notes": {"tool_arguments_no_json": self.unparsable},
            "fidelity": dict(sorted(self.fidelity.items())),
            "endings": dict(sorted(self.endings.items())),
            "flags": dict(sorted(self.flags.items())),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }
