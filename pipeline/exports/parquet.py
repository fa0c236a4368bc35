"""Sample -> a row of Parquet files that `datasets.load_dataset("parquet")` and polars read."""

from __future__ import annotations

from typing import Any

from pipeline.records import ExportRow

FORM = "parquet"


def row(sample: ExportRow) -> dict[str, Any]:
    """Ids, mask and what a filter may want; one row a generation."""
    return {
        "id": sample.row_id,
        "conversation_id": sample.prompt_id,
        "turn": sample.turn,
        "input_ids": sample.input_ids,
        "loss_mask": sample.loss_mask,
        "ending": sample.ending,
        "fidelity": sample.fidelity,
        "flags": sample.flags,
        "provider": sample.provider,
        "model": sample.model,
    }
