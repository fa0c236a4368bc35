"""Lengths of rows and a limit -> which rows go out, how they are cut, and what lengths mean for packing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.records import Ending, ExportRow

Policy = Literal["drop", "cut", "keep"]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

PACKED = (2048, 4096, 8192, 16_384)
"""Sequence lengths that trainers pack to or cut at (SpecForge's default is 2,048, speculators' 8,192)."""


def goes_out(lengths: Ints, prompt_lengths: Ints, limit: int | None, policy: Policy) -> Bools:
    """Rows that stay under a limit in tokens of prompt and completion; a cut one needs a supervised token."""
    if limit is None or policy == "keep":
        return np.ones(len(lengths), dtype=np.bool_)
    fits: Bools = lengths <= limit
    return fits if policy == "drop" else fits | (prompt_lengths < limit)


def cut_right(row: ExportRow, limit: int) -> ExportRow:
    """Its first `limit` ids. The end token is gone, so the ending is `length`; the text is not known then."""
    if len(row.input_ids) <= limit:
        return row
    ids, mask = row.input_ids[:limit], row.loss_mask[:limit]
    return replace(row, input_ids=ids, loss_mask=mask, text="", ending=Ending.LENGTH.value)


def describe(lengths: Ints) -> dict[str, Any]:
    """Percentiles, and for each packed length: sequences, how full they are, rows that are longer.

    Packed as a trainer does that keeps the order: a row goes beside its neighbour where both fit.
    """
    if not len(lengths):
        return {"percentiles": {}, "packed": {}}
    shares = (5, 25, 50, 75, 95, 99)
    values = np.percentile(lengths, shares, method="inverted_cdf")
    return {
        "percentiles": {f"p{share}": int(value) for share, value in zip(shares, values, strict=True)},
        "packed": {str(packed): _packed(lengths, packed) for packed in PACKED},
    }


def _packed(lengths: Ints, packed: int) -> dict[str, Any]:
    taken = np.minimum(lengths, packed)
    sequences = _next_fit(taken.tolist(), packed)
    return {
        "sequences": sequences,
        "full": round(float(taken.sum()) / (sequences * packed), 4),
        "rows_too_long": int((lengths > packed).sum()),
    }


def _next_fit(lengths: Sequence[int], packed: int) -> int:
    sequences, filled = 0, packed
    for length in lengths:
        filled += length
        if filled > packed:
            sequences, filled = sequences + 1, length
    return sequences
