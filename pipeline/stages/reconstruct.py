"""build/responses/d.parquet -> build/samples/d/ (exact ids, in shards) and build/rejects/d.parquet."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.config import Profile, ReconstructSettings
from pipeline.core.classify import classify
from pipeline.core.encoding import Encoder
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.judge import Exchange, judge_batch
from pipeline.core.render import RenderedPrompt, UnrenderableRequest, render_ids
from pipeline.core.samples import to_sample
from pipeline.core.shards import cut, shard_names
from pipeline.errors import StageError
from pipeline.io.conf import load_runtime
from pipeline.io.files import read_parquet
from pipeline.io.tables import write_index, write_rejects, write_samples
from pipeline.io.tokenizers import load, load_fast
from pipeline.records import Reject, Sample
from pipeline.stages.shell import parse_settings

Row = dict[str, Any]

FAST_FROM_ROWS = 15_000
"""From here on the faster encoder saves more than the second that it takes to load and compare."""


def run(dataset: str, subtree: dict[str, Any], root: Path) -> str:
    """Read every response of one dataset; rows in = samples + rejects."""
    settings = parse_settings(ReconstructSettings, subtree, f"{dataset}.reconstruct")
    table = read_parquet(root / f"build/responses/{dataset}.parquet")
    fast = table.num_rows >= FAST_FROM_ROWS and load_runtime(root).fast_encoder
    encoder = (load_fast if fast else load)(root / "build/tokenizer", settings.render.encoding)
    grammar = CompiledGrammar(settings.grammar, encoder.special, thinking=settings.render.thinking)
    profiles = _profiles(root, dataset)
    prompt_ids = table.column("prompt_id").to_pylist()
    folder = root / f"build/samples/{dataset}"
    folder.mkdir(parents=True, exist_ok=True)
    ranges = cut(prompt_ids, settings.shard_rows)
    shards: list[tuple[str, int]] = []
    rejects: list[Reject] = []
    fidelities: Counter[str] = Counter()
    for name, rows in zip(shard_names(prompt_ids, ranges), ranges, strict=True):
        part = table.slice(rows.start, len(rows)).to_pylist()
        samples, refused = read_rows(part, settings, encoder, grammar, profiles)
        rejects += refused
        fidelities.update(sample.fidelity.value for sample in samples)
        if samples:
            write_samples(folder / f"{name}.parquet", samples)
            shards.append((f"{name}.parquet", len(samples)))
    write_index(folder, shards)
    write_rejects(root / f"build/rejects/{dataset}.parquet", rejects)
    made = sum(count for _, count in shards)
    if made + len(rejects) != table.num_rows:
        raise StageError(
            f"{dataset}: {table.num_rows} responses became {made} samples + {len(rejects)} rejects"
        )
    split = ", ".join(f"{count} {name}" for name, count in sorted(fidelities.items()))
    counts = f"{table.num_rows} responses -> {made} samples ({split or 'none'}), {len(rejects)} rejects"
    return f"reconstruct {dataset}: {counts}"


def read_rows(
    rows: Sequence[Row],
    settings: ReconstructSettings,
    encoder: Encoder,
    grammar: CompiledGrammar,
    profiles: dict[str, Profile],
) -> tuple[list[Sample], list[Reject]]:
    """Samples and rejects of one shard; each keeps the order of the rows."""
    outcomes: list[Reject | Exchange] = [_exchange(row, settings, encoder, profiles) for row in rows]
    judged = iter(judge_batch([item for item in outcomes if isinstance(item, Exchange)], encoder, grammar))
    done: Iterable[Sample | Reject] = (
        to_sample(row["row_id"], row["prompt_id"], row["turn"], row["body"], outcome, next(judged))
        if isinstance(outcome, Exchange)
        else outcome
        for row, outcome in zip(rows, outcomes, strict=True)
    )
    samples, rejects = [], []
    for item in done:
        samples.append(item) if isinstance(item, Sample) else rejects.append(item)
    return samples, rejects


def _exchange(
    row: Row, settings: ReconstructSettings, encoder: Encoder, profiles: dict[str, Profile]
) -> Reject | Exchange:
    """The answer of one row with its rendered prompt, or the reject that it already is."""
    raw = row["body"] or ""
    if row["failure"] is not None:
        return Reject(row["row_id"], "generate", row["failure"], row["failure_detail"] or "", raw)
    request = json.loads(row["request"])
    headers = json.loads(row["headers"])
    verdict = classify(row["status"], headers, raw, request)
    if verdict.body is None or not verdict.action.usable:
        reason = verdict.flags[-1] if verdict.flags else verdict.action.value
        return Reject(row["row_id"], "reconstruct", reason, f"{verdict.action.value}: {verdict.reason}", raw)
    try:
        rendered: RenderedPrompt = render_ids(request, settings.render, encoder)
    except UnrenderableRequest as broken:
        return Reject(row["row_id"], "reconstruct", "unrenderable_prompt", str(broken), raw)
    served = row["served_provider"] or ""
    profile = profiles.get(served, profiles.get("default"))
    return Exchange(verdict.body, request, rendered, verdict, profile)


def _profiles(root: Path, dataset: str) -> dict[str, Profile]:
    """Profiles of the served providers, as the profiles stage wrote them for this dataset."""
    path = root / "build/profiles.yaml"
    if not path.exists():
        raise StageError(f"{path}: missing; it is written by the profiles stage: run `dvc repro`")
    known = yaml.safe_load(path.read_text(encoding="utf-8"))[dataset]
    return {served: Profile.model_validate(values) for served, values in known.items()}
