"""build/responses/d.parquet -> build/samples/d/ (exact ids, in shards) and build/rejects/d.parquet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from pipeline.config import Profile, ReconstructSettings, Runtime
from pipeline.errors import StageError
from pipeline.io.files import count_parquet, read_json, table_of, write_bytes, write_parquet_parts
from pipeline.io.sharded import MANY_ROWS, work_on
from pipeline.io.shards import read_shards
from pipeline.io.tables import write_index
from pipeline.schemas import REJECTS
from pipeline.stages.reconstruct_shard import Reading, read_shard
from pipeline.stages.shell import parse_settings


def run(dataset: str, subtree: dict[str, Any], root: Path, runtime: Runtime) -> str:
    """Read every response of one dataset; rows in = samples + rejects."""
    settings = parse_settings(ReconstructSettings, subtree, f"{dataset}.reconstruct")
    path = root / f"build/responses/{dataset}.parquet"
    total = count_parquet(path)
    folder = root / "build/tokenizer"
    profiles = _profiles(root, dataset)
    reading = Reading(settings, folder, profiles, total >= MANY_ROWS and runtime.fast_encoder)
    made_of = [
        settings.model_dump(mode="json"),
        {name: profile.model_dump(mode="json") for name, profile in profiles.items()},
        read_json(folder / "contract.json")["fingerprint"],
    ]
    out = root / f"build/samples/{dataset}"
    out.mkdir(parents=True, exist_ok=True)
    index: list[tuple[str, int]] = []
    fidelities: Counter[str] = Counter()
    rejected = 0

    def reject_parts() -> Iterator[pa.Table]:
        nonlocal rejected
        shards = ((shard.name, shard.table) for shard in read_shards(path, settings.shard_rows))
        work = partial(read_shard, reading)
        for name, (samples, rejects) in work_on(work, shards, "reconstruct", made_of, runtime, total):
            kept = table_of(samples, ["fidelity"]).column("fidelity").to_pylist()
            fidelities.update(kept)
            if kept:
                write_bytes(out / f"{name}.parquet", samples)
                index.append((f"{name}.parquet", len(kept)))
            table = table_of(rejects)
            rejected += table.num_rows
            if table.num_rows:
                yield table

    write_parquet_parts(root / f"build/rejects/{dataset}.parquet", REJECTS, reject_parts())
    write_index(out, index)
    made = fidelities.total()
    if made + rejected != total:
        raise StageError(f"{dataset}: {total} responses became {made} samples + {rejected} rejects")
    split = ", ".join(f"{count} {name}" for name, count in sorted(fidelities.items()))
    counts = f"{total} responses -> {made} samples ({split or 'none'}), {rejected} rejects"
    return f"reconstruct {dataset}: {counts}"


def _profiles(root: Path, dataset: str) -> dict[str, Profile]:
    """Profiles of the served providers, as the profiles stage wrote them for this dataset."""
    path = root / "build/profiles.yaml"
    if not path.exists():
        raise StageError(f"{path}: missing; it is written by the profiles stage: run `dvc repro`")
    known = yaml.safe_load(path.read_text(encoding="utf-8"))[dataset]
    return {served: Profile.model_validate(values) for served, values in known.items()}
