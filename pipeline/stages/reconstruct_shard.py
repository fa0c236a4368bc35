"""One shard of responses -> its samples and rejects; what a worker process of the reconstruct stage runs."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.config import Profile, PromptEncoding, ReconstructSettings
from pipeline.core.classify import classify
from pipeline.core.encoding import Encoder
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.judge import Exchange, judge_batch
from pipeline.core.render import RenderedPrompt, UnrenderableRequest, render_ids
from pipeline.core.samples import to_sample
from pipeline.io.files import parquet_bytes
from pipeline.io.tables import rejects_table, samples_table
from pipeline.io.tokenizers import load, load_fast
from pipeline.records import Reject, Sample

Row = dict[str, Any]

_AT_ONCE = 250
"""Rows as Python objects at a time."""


@dataclass(frozen=True)
class Reading:
    """All that a shard is read with. Pickled once a shard."""

    settings: ReconstructSettings
    tokenizer: Path
    """Folder that the tokenizer stage has built."""
    profiles: dict[str, Profile]
    fast: bool


def read_shard(reading: Reading, table: pa.Table) -> tuple[bytes, bytes]:
    """Files of samples and of rejects. Rows in = samples + rejects, each in the order of the rows."""
    encoder = _encoder(reading.tokenizer, reading.settings.render.encoding.model_dump_json(), reading.fast)
    grammar = CompiledGrammar(
        reading.settings.grammar, encoder.special, thinking=reading.settings.render.thinking
    )
    samples, rejects = [], []
    for start in range(0, table.num_rows, _AT_ONCE):
        rows = table.slice(start, _AT_ONCE).to_pylist()
        good, bad = read_rows(rows, reading.settings, encoder, grammar, reading.profiles)
        samples.append(samples_table(good))
        rejects.append(rejects_table(bad))
    return parquet_bytes(_whole(samples)), parquet_bytes(_whole(rejects))


def _whole(tables: list[pa.Table]) -> pa.Table:
    """One chunk: the bytes of the file must not depend on how the rows were worked on."""
    return pa.concat_tables(tables).combine_chunks()


@lru_cache(maxsize=1)
def _encoder(folder: Path, prompt: str, fast: bool) -> Encoder:
    """Once a process. What stands in memory then is not walked by the garbage collector again."""
    encoder = (load_fast if fast else load)(folder, PromptEncoding.model_validate_json(prompt))
    gc.freeze()
    return encoder


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
