"""build/samples/d/ + verdicts -> build/exports/d/<format>/: the rows that passed, in a trainer's format."""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

import pipeline.exports
from pipeline.config import ExportSettings
from pipeline.core.selection import in_validation, shuffled
from pipeline.errors import ConfigError, StageError
from pipeline.io.files import read_json, read_parquet, write_json, write_jsonl, write_parquet
from pipeline.io.tables import read_samples
from pipeline.records import ExportRow, Fidelity
from pipeline.stages.shell import parse_settings


def run(dataset: str, format_name: str, subtree: dict[str, Any], root: Path) -> str:
    """Write the files of one format and their card."""
    settings = parse_settings(ExportSettings, subtree, f"{dataset}.export.{format_name}")
    format_module = find_format(format_name)
    folder = root / f"build/exports/{dataset}/{format_name}"
    folder.mkdir(parents=True, exist_ok=True)
    passed = _passed(root, dataset)
    table, left_out = _selected(root, dataset, passed, settings)
    conversations = table.column("prompt_id").to_pylist()
    order = shuffled(conversations, settings.shuffle_seed)
    splits: dict[str, list[int]] = {"train": [], "validation": []}
    for row in order:
        held_out = in_validation(conversations[row], settings.validation_share)
        splits["validation" if held_out else "train"].append(row)
    files: dict[str, int] = {}
    for split, rows in splits.items():
        for start in range(0, len(rows), settings.rows_per_file):
            part = rows[start : start + settings.rows_per_file]
            name = f"{split}-{start // settings.rows_per_file:05d}.{format_module.FORM}"
            _write(folder / name, format_module, table, part)
            files[name] = len(part)
    card = _card(dataset, format_name, subtree, root, table, files, left_out)
    write_json(folder / "card.json", card)
    out = sum(left_out.values())
    return f"export {dataset} {format_name}: {table.num_rows} rows in {len(files)} files, {out} left out"


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


def _passed(root: Path, dataset: str) -> set[str]:
    verdicts = read_parquet(root / f"build/verdicts/{dataset}.parquet")
    return set(verdicts.filter(verdicts.column("passed")).column("row_id").to_pylist())


def _selected(
    root: Path, dataset: str, passed: set[str], settings: ExportSettings
) -> tuple[pa.Table, dict[str, int]]:
    """Passing rows of enough fidelity, in source order, and how many were left out and why."""
    least = Fidelity(settings.min_fidelity).rank
    parts: list[pa.Table] = []
    left_out = {"not_valid": 0, "below_min_fidelity": 0}
    for shard in read_samples(root / f"build/samples/{dataset}"):
        valid = np.array(
            [row_id in passed for row_id in shard.table.column("row_id").to_pylist()], dtype=bool
        )
        sure = np.array(
            [Fidelity(f).rank <= least for f in shard.table.column("fidelity").to_pylist()], dtype=bool
        )
        left_out["not_valid"] += int((~valid).sum())
        left_out["below_min_fidelity"] += int((valid & ~sure).sum())
        parts.append(shard.table.filter(pa.array(valid & sure)))
    if not parts:
        raise StageError(f"{dataset}: no samples to export; see build/rejects/{dataset}.parquet")
    return pa.concat_tables(parts), left_out


def _write(path: Path, format_module: ModuleType, table: pa.Table, rows: Sequence[int]) -> None:
    records = (format_module.row(item) for item in _rows(table.take(rows)))
    if format_module.FORM == "jsonl":
        write_jsonl(path, records)
    else:
        write_parquet(path, pa.Table.from_pylist(list(records)))


def _rows(table: pa.Table) -> Iterator[ExportRow]:
    for batch in table.to_batches(max_chunksize=256):
        for row in batch.to_pylist():
            ids, prompt = row["input_ids"], row["prompt_length"]
            mask = [0] * prompt + [1] * (len(ids) - prompt)
            values = {
                name: row[name] for name in ExportRow.__slots__ if name not in ("input_ids", "loss_mask")
            }
            yield ExportRow(input_ids=ids, loss_mask=mask, **values)


def _card(
    dataset: str,
    format_name: str,
    subtree: dict[str, Any],
    root: Path,
    table: pa.Table,
    files: dict[str, int],
    left_out: dict[str, int],
) -> dict[str, Any]:
    """What a colleague must know of these files; nothing that changes between identical builds."""
    contract = read_json(root / "build/tokenizer/contract.json")
    lengths = np.asarray(pyarrow.compute.list_value_length(table.column("input_ids")))
    prompt = table.column("prompt_length").to_numpy()
    fidelity = table.column("fidelity").to_pylist()
    settings = json.dumps(subtree, sort_keys=True, ensure_ascii=False)
    return {
        "dataset": dataset,
        "format": format_name,
        "target": contract["target"],
        "tokenizer_fingerprint": contract["fingerprint"],
        "settings_sha256": hashlib.sha256(settings.encode()).hexdigest(),
        "files": files,
        "rows": table.num_rows,
        "left_out": left_out,
        "conversations": len(set(table.column("prompt_id").to_pylist())),
        "prompt_tokens": int(prompt.sum()),
        "completion_tokens": int(lengths.sum() - prompt.sum()),
        "longest_row": int(lengths.max(initial=0)),
        "fidelity": {name: fidelity.count(name) for name in sorted(set(fidelity))},
    }
