"""Columns of every table on disk: pyarrow types for the one writer, pandera rules for its readers.

pandera runs on eager polars frames: on a LazyFrame it checks the schema and silently skips the data
(pandera#1566).
"""

from __future__ import annotations

import pandera.polars as pa
import polars as pl
import pyarrow as arrow

from pipeline.records import Ending, Fidelity

_ids = arrow.list_(arrow.int32())
_spans = arrow.list_(
    arrow.struct([("kind", arrow.string()), ("start", arrow.int32()), ("end", arrow.int32())])
)

PROMPTS = arrow.schema(
    [
        ("prompt_id", arrow.string()),
        ("position", arrow.int64()),
        ("messages", arrow.string()),
        ("following_turns", arrow.string()),
        ("tools", arrow.string()),
        ("source_id", arrow.string()),
    ]
)

RESPONSES = arrow.schema(
    [
        ("row_id", arrow.string()),
        ("prompt_id", arrow.string()),
        ("turn", arrow.int32()),
        ("request", arrow.string()),
        ("request_key", arrow.string()),
        ("status", arrow.int32()),
        ("headers", arrow.string()),
        ("body", arrow.string()),
        ("served_provider", arrow.string()),
        ("served_model", arrow.string()),
        ("generation_id", arrow.string()),
        ("finish_reason", arrow.string()),
        ("cost_usd", arrow.float64()),
        ("cost_source", arrow.string()),
        ("failure", arrow.string()),
        ("failure_detail", arrow.string()),
    ]
)

SAMPLES = arrow.schema(
    [
        ("row_id", arrow.string()),
        ("prompt_id", arrow.string()),
        ("turn", arrow.int32()),
        ("input_ids", _ids),
        ("prompt_length", arrow.int32()),
        ("ending", arrow.string()),
        ("fidelity", arrow.string()),
        ("flags", arrow.list_(arrow.string())),
        ("spans", _spans),
        ("text", arrow.string()),
        ("provider", arrow.string()),
        ("model", arrow.string()),
        ("prompt_delta", arrow.int32()),
    ]
)

REJECTS = arrow.schema(
    [
        ("row_id", arrow.string()),
        ("stage", arrow.string()),
        ("reason", arrow.string()),
        ("detail", arrow.string()),
        ("raw", arrow.string()),
        ("candidates", arrow.string()),
    ]
)

VERDICTS = arrow.schema([("row_id", arrow.string()), ("passed", arrow.bool_()), ("reason", arrow.string())])


class Samples(pa.DataFrameModel):
    """A shard of build/samples/<dataset>/."""

    row_id: str = pa.Field(unique=True)
    prompt_id: str
    turn: int = pa.Field(ge=0)
    input_ids: pl.List(pl.Int32)  # type: ignore[valid-type]
    prompt_length: int = pa.Field(gt=0)
    ending: str = pa.Field(isin=[ending.value for ending in Ending])
    fidelity: str = pa.Field(isin=[fidelity.value for fidelity in Fidelity])
    text: str
    provider: str
    model: str

    class Config:
        """Other columns are described by SAMPLES alone; numbers keep their stored width."""

        strict = False
        coerce = True
