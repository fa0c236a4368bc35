"""build/samples/d/ + rejects -> build/verdicts/d.parquet and the report build/reports/d.json."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.config import Runtime, ValidateSettings
from pipeline.core.rules import RULES
from pipeline.errors import StageError
from pipeline.io.files import read_json, read_parquet_parts, table_of, write_json, write_parquet_parts
from pipeline.io.sharded import work_on
from pipeline.io.tables import count_samples, read_samples
from pipeline.schemas import VERDICTS
from pipeline.stages.shell import parse_settings
from pipeline.stages.validate_shard import Checking, check_shard

_COUNTED = ("rules", "rejects", "fidelity", "endings", "flags")
_SUMMED = ("samples", "prompt_tokens", "completion_tokens", "unparsable")


def run(dataset: str, subtree: dict[str, Any], root: Path, runtime: Runtime) -> str:
    """Check every sample against the table's schema and every rule.

    Raises StageError when more rows than `rules.max_reject_share` are lost; the report is written first.
    """
    settings = parse_settings(ValidateSettings, subtree, f"{dataset}.validate")
    tally = _Tally()
    path = root / f"build/verdicts/{dataset}.parquet"
    write_parquet_parts(path, VERDICTS, _verdicts(dataset, settings, root, runtime, tally))
    reasons = _reject_reasons(root / f"build/rejects/{dataset}.parquet")
    report = tally.report(reasons)
    write_json(root / f"build/reports/{dataset}.json", report)
    lost = report["responses"] - report["rows"]
    if report["responses"] and lost / report["responses"] > settings.rules.max_reject_share:
        said = ", ".join(f"{count} {name}" for name, count in report["rejects"].items())
        raise StageError(
            f"{dataset}: {lost} of {report['responses']} responses give no row ({said}), more than "
            f"rules.max_reject_share {settings.rules.max_reject_share}; see build/reports/{dataset}.json"
        )
    return f"validate {dataset}: {report['responses']} responses, {report['rows']} rows pass, {lost} rejected"


def _verdicts(
    dataset: str, settings: ValidateSettings, root: Path, runtime: Runtime, tally: _Tally
) -> Iterator[pa.Table]:
    """One part a shard. Raises StageError for a row id that stands in two shards."""
    folder = root / f"build/samples/{dataset}"
    tokenizer = root / "build/tokenizer"
    made_of = [settings.model_dump(mode="json"), read_json(tokenizer / "contract.json")["fingerprint"]]
    shards = ((shard.name, shard.table) for shard in read_samples(folder))
    work = partial(check_shard, Checking(settings, tokenizer, dataset))
    seen: list[np.ndarray[Any, Any]] = []
    for _, (verdicts, counts) in work_on(work, shards, "validate", made_of, runtime, count_samples(folder)):
        table = table_of(verdicts)
        seen.append(_hashes(table))
        tally.add(json.loads(counts))
        yield table
    every = np.concatenate(seen) if seen else np.zeros(0, np.uint64)
    if len(np.unique(every)) != len(every):
        raise StageError(f"{dataset}: a row id stands in two shards; run `dvc repro -f reconstruct`")


def _hashes(verdicts: pa.Table) -> np.ndarray[Any, Any]:
    """8 bytes a row id instead of 64, as a million of them are held at once."""
    ids = verdicts.column("row_id").to_pylist()
    digests = (hashlib.blake2b(row_id.encode(), digest_size=8).digest() for row_id in ids)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def _reject_reasons(path: Path) -> Counter[str]:
    reasons: Counter[str] = Counter()
    for part in read_parquet_parts(path, 10_000, ["reason"]):
        reasons.update(part.column("reason").to_pylist())
    return reasons


class _Tally:
    """Counts over all shards of a dataset."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}
        self._sums: Counter[str] = Counter()

    def add(self, counts: dict[str, Any]) -> None:
        """Of one shard."""
        for name in _COUNTED:
            self._counts[name].update(counts[name])
        self._sums.update({name: counts[name] for name in _SUMMED})

    def report(self, rejects: Counter[str]) -> dict[str, Any]:
        """Numbers that DVC tracks as metrics; rows + rejects = responses."""
        samples, broken = self._sums["samples"], self._counts["rejects"]
        return {
            "responses": samples + rejects.total(),
            "rows": samples - broken.total(),
            "rejects": dict(sorted((broken + rejects).items())),
            "rules": {
                rule.__name__: {"responses": samples, "issues": self._counts["rules"][rule.__name__]}
                for rule in RULES
            },
            "notes": {"tool_arguments_no_json": self._sums["unparsable"]},
            **{name: dict(sorted(self._counts[name].items())) for name in ("fidelity", "endings", "flags")},
            "prompt_tokens": self._sums["prompt_tokens"],
            "completion_tokens": self._sums["completion_tokens"],
        }
