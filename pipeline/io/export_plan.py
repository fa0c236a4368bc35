"""Samples + verdicts + settings -> which rows go out and where each stands; some 20 bytes a row are held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.config import ExportSettings
from pipeline.core.lengths import Bools, Ints, goes_out
from pipeline.core.selection import in_validation, shuffle_key
from pipeline.errors import StageError
from pipeline.io.tables import read_samples
from pipeline.records import Fidelity


@dataclass
class ChosenRows:
    """Of one shard: `keep` bool [rows]; `validation` bool and `places` int64 [rows kept], by split."""

    keep: Bools
    validation: Bools
    keys: NDArray[np.uint64]
    lengths: Ints
    places: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass
class ExportPlan:
    """`lengths` int64 [rows]: as written, in the order of writing, train before validation."""

    shards: list[ChosenRows]
    left_out: dict[str, int]
    too_long: dict[str, Any]
    fidelity: dict[str, int]
    conversations: int
    prompt_tokens: int
    in_order: bool
    lengths: Ints

    @property
    def rows(self) -> int:
        """Rows that go out."""
        return len(self.lengths)


def make_plan(root: Path, dataset: str, settings: ExportSettings) -> ExportPlan:
    """Raises StageError when samples and verdicts do not belong together, or there is nothing to export."""
    least = Fidelity(settings.min_fidelity).rank
    sure_enough = [fidelity.value for fidelity in Fidelity if fidelity.rank <= least]
    left_out: Counter[str] = Counter(not_valid=0, below_min_fidelity=0, too_long=0)
    fidelity: Counter[str] = Counter()
    longer = conversations = prompt_tokens = 0
    shards: list[ChosenRows] = []
    before = None
    for table, valid in _with_verdicts(root, dataset):
        sure = np.asarray(pa.compute.is_in(table.column("fidelity"), pa.array(sure_enough)))
        lengths = np.asarray(pa.compute.list_value_length(table.column("input_ids"))).astype(np.int64)
        prompts = table.column("prompt_length").to_numpy().astype(np.int64)
        fits = goes_out(lengths, prompts, settings.max_length, settings.too_long)
        keep = valid & sure & fits
        left_out["not_valid"] += int((~valid).sum())
        left_out["below_min_fidelity"] += int((valid & ~sure).sum())
        left_out["too_long"] += int((valid & sure & ~fits).sum())
        if settings.max_length is not None:
            longer += int((lengths[keep] > settings.max_length).sum())
        kept = table.select(["prompt_id", "fidelity"]).filter(pa.array(keep))
        fidelity.update(kept.column("fidelity").to_pylist())
        written = lengths[keep]
        if settings.max_length is not None and settings.too_long == "cut":
            written = np.minimum(written, settings.max_length)
        prompt_tokens += int(np.minimum(prompts[keep], written).sum())
        ids = kept.column("prompt_id").to_pylist()
        for prompt_id in ids:
            conversations += prompt_id != before
            before = prompt_id
        shards.append(_chosen(keep, ids, written, settings))
    if not shards:
        raise StageError(f"{dataset}: no samples to export; see build/rejects/{dataset}.parquet")
    order = _place(shards, shuffle=settings.shuffle_seed is not None)
    every = np.concatenate([shard.lengths for shard in shards])
    too_long: dict[str, Any] = {"limit": settings.max_length, "policy": settings.too_long}
    if settings.too_long != "drop":
        too_long["rows_cut" if settings.too_long == "cut" else "rows_kept"] = longer
    return ExportPlan(
        shards,
        dict(left_out),
        too_long,
        dict(sorted(fidelity.items())),
        conversations,
        prompt_tokens,
        settings.shuffle_seed is None and not settings.validation_share,
        every[order],
    )


def _with_verdicts(root: Path, dataset: str) -> Iterator[tuple[pa.Table, Bools]]:
    """Each shard with whether its rows passed; validate writes one part a shard."""
    path = root / f"build/verdicts/{dataset}.parquet"
    if not path.exists():
        raise StageError(f"{path}: missing; the validate stage writes it: run `dvc repro`")
    with pq.ParquetFile(path) as verdicts:
        for number, shard in enumerate(read_samples(root / f"build/samples/{dataset}")):
            part = verdicts.read_row_group(number) if number < verdicts.num_row_groups else None
            if part is None or not part.column("row_id").equals(shard.table.column("row_id")):
                raise StageError(f"{path}: not the verdicts of these samples; run `dvc repro -f validate`")
            yield shard.table, np.asarray(part.column("passed"))


def _chosen(keep: Bools, ids: list[str], lengths: Ints, settings: ExportSettings) -> ChosenRows:
    held_out = [in_validation(prompt_id, settings.validation_share) for prompt_id in ids]
    seed = settings.shuffle_seed
    keys = [0 if seed is None else shuffle_key(prompt_id, seed) for prompt_id in ids]
    return ChosenRows(keep, np.array(held_out, dtype=np.bool_), np.array(keys, dtype=np.uint64), lengths)


def _place(shards: list[ChosenRows], *, shuffle: bool) -> Ints:
    """Give every row its place in its split; returns all rows in the order of writing."""
    validation = np.concatenate([shard.validation for shard in shards])
    places = np.zeros(len(validation), dtype=np.int64)
    orders = []
    for held_out in (False, True):
        rows = np.flatnonzero(validation == held_out)
        if shuffle:
            keys = np.concatenate([shard.keys for shard in shards])[rows]
            rows = rows[np.argsort(keys, kind="stable")]
        places[rows] = np.arange(len(rows))
        orders.append(rows)
    start = 0
    for shard in shards:
        shard.places = places[start : start + len(shard.validation)]
        start += len(shard.validation)
    return np.concatenate(orders)
