"""Sample -> a record of SpecForge's pre-tokenised `data.prompts_path`.

Read by specforge/data/prompt_builder.py: ints only (1.0 is refused), both lists of one length, extra
keys ignored. The mode is decided from the first record.
"""

from __future__ import annotations

from typing import Any

from pipeline.core.draft_vocabulary import DraftVocabulary
from pipeline.records import ExportRow

FORM = "jsonl"


def row(sample: ExportRow) -> dict[str, Any]:
    """`input_ids` and `loss_mask` of equal length, 0 over the prompt and 1 over the completion."""
    return {"id": sample.row_id, "input_ids": sample.input_ids, "loss_mask": sample.loss_mask}


def vocabulary_files(vocabulary: DraftVocabulary) -> dict[str, dict[Any, Any]]:
    """`model.vocab_mapping_path`: int64 d2t and bool t2d (core/compact_teacher.py)."""
    return {"vocab_mapping.pt": {"d2t": vocabulary.d2t, "t2d": vocabulary.t2d}}
