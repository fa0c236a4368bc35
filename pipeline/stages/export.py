"""build/samples/d/ + verdicts -> build/exports/d/<format>/: the rows that passed, in a trainer's format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.config import ExportSettings
from pipeline.core.draft_vocabulary import DraftVocabulary, choose
from pipeline.core.lengths import cut_right, describe
from pipeline.errors import ConfigError, StageError
from pipeline.io.export_files import ExportFiles
from pipeline.io.export_plan import ExportPlan, make_plan
from pipeline.io.files import read_json, write_json
from pipeline.io.formats import find_format
from pipeline.io.tables import read_samples
from pipeline.io.vocabulary_files import write_arrays
from pipeline.records import ExportRow
from pipeline.stages.shell import parse_settings

_Placed = tuple[str, int, dict[str, Any]]


def run(dataset: str, format_name: str, subtree: dict[str, Any], root: Path) -> str:
    """Write the files of one format and their card."""
    settings = parse_settings(ExportSettings, subtree, f"{dataset}.export.{format_name}")
    module = find_format(format_name)
    folder = root / f"build/exports/{dataset}/{format_name}"
    folder.mkdir(parents=True, exist_ok=True)
    plan = make_plan(root, dataset, settings)
    files = ExportFiles(folder, module.FORM, settings.rows_per_file)
    counts = np.zeros(_target_vocabulary(root, settings, format_name), dtype=np.int64)
    rows = _rows(root / f"build/samples/{dataset}", plan, settings, module, counts)
    if plan.in_order:
        files.write("train", (record for _, _, record in rows))
    else:
        files.write_placed(rows)
    vocabulary = None
    if settings.draft_vocabulary is not None:
        vocabulary = _vocabulary(counts, settings, format_name)
        write_arrays(folder, module, vocabulary, settings.vocabulary_as, format_name)
    card = _card(dataset, format_name, subtree, root, plan, files.files, vocabulary)
    write_json(folder / "card.json", card)
    out = sum(plan.left_out.values())
    return f"export {dataset} {format_name}: {plan.rows} rows in {len(files.files)} files, {out} left out"


def _rows(
    samples: Path, plan: ExportPlan, settings: ExportSettings, module: ModuleType, counts: Any
) -> Iterator[_Placed]:
    """Every row that goes out, shard by shard, with its place; supervised tokens of `train` are counted."""
    for shard, chosen in zip(read_samples(samples), plan.shards, strict=True):
        table = shard.table.filter(pa.array(chosen.keep))
        places = zip(chosen.validation.tolist(), chosen.places.tolist(), strict=True)
        for row, (held_out, place) in zip(_export_rows(table), places, strict=True):
            if settings.max_length is not None and settings.too_long == "cut":
                row = cut_right(row, settings.max_length)
            if settings.draft_vocabulary is not None and not held_out:
                first = row.loss_mask.index(1)
                np.add.at(counts, row.input_ids[first:], 1)
            yield "validation" if held_out else "train", place, module.row(row)


def _export_rows(table: pa.Table) -> Iterator[ExportRow]:
    for batch in table.to_batches(max_chunksize=256):
        for row in batch.to_pylist():
            ids, prompt = row["input_ids"], row["prompt_length"]
            mask = [0] * prompt + [1] * (len(ids) - prompt)
            values = {
                name: row[name] for name in ExportRow.__slots__ if name not in ("input_ids", "loss_mask")
            }
            yield ExportRow(input_ids=ids, loss_mask=mask, **values)


def _target_vocabulary(root: Path, settings: ExportSettings, format_name: str) -> int:
    ids = int(read_json(root / "build/tokenizer/contract.json")["settings"]["contract"]["vocab_size"])
    wanted = settings.target_vocabulary or ids
    if wanted < ids or (settings.draft_vocabulary or 0) > wanted:
        raise ConfigError(
            f"conf/export/{format_name}.yaml: target_vocabulary {wanted} must be at least the tokenizer's "
            f"{ids} ids and draft_vocabulary at most as large"
        )
    return wanted


def _vocabulary(counts: Any, settings: ExportSettings, format_name: str) -> DraftVocabulary:
    assert settings.draft_vocabulary is not None
    if not counts.any():
        raise StageError(f"{format_name}: no supervised token to choose a draft vocabulary by")
    return choose(counts, settings.draft_vocabulary)


def _card(
    dataset: str,
    format_name: str,
    subtree: dict[str, Any],
    root: Path,
    plan: ExportPlan,
    files: dict[str, int],
    vocabulary: DraftVocabulary | None,
) -> dict[str, Any]:
    """What a colleague must know of these files; nothing that changes between identical builds."""
    contract = read_json(root / "build/tokenizer/contract.json")
    settings = json.dumps(subtree, sort_keys=True, ensure_ascii=False)
    return {
        "dataset": dataset,
        "format": format_name,
        "target": contract["target"],
        "tokenizer_fingerprint": contract["fingerprint"],
        "settings_sha256": hashlib.sha256(settings.encode()).hexdigest(),
        "files": files,
        "rows": plan.rows,
        "left_out": plan.left_out,
        "too_long": plan.too_long,
        "conversations": plan.conversations,
        "prompt_tokens": plan.prompt_tokens,
        "completion_tokens": int(plan.lengths.sum()) - plan.prompt_tokens,
        "longest_row": int(plan.lengths.max(initial=0)),
        "lengths": describe(plan.lengths),
        "fidelity": plan.fidelity,
        **({"draft_vocabulary": vocabulary.summary} if vocabulary else {}),
    }
