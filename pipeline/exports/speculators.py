"""Sample -> a record of speculators' own generator, which `prepare_data` passes through as ids.

Source: speculators data_generation/preprocessing.py: `id`, `primary_id` (the conversation),
`input_ids`, `loss_mask`, `text`, `metadata`.
"""

from __future__ import annotations

from typing import Any

from pipeline.core.draft_vocabulary import DraftVocabulary
from pipeline.records import ExportRow

FORM = "jsonl"


def row(sample: ExportRow) -> dict[str, Any]:
    """`text` is the completion with special tokens spelled out."""
    metadata = {
        "turn": sample.turn,
        "ending": sample.ending,
        "fidelity": sample.fidelity,
        "provider": sample.provider,
        "model": sample.model,
    }
    return {
        "id": sample.row_id,
        "primary_id": sample.prompt_id,
        "input_ids": sample.input_ids,
        "loss_mask": sample.loss_mask,
        "text": sample.text,
        "metadata": metadata,
    }


def vocabulary_files(vocabulary: DraftVocabulary) -> dict[str, dict[Any, Any]]:
    """`token_freq.pt`, counts by token id; always written: an old one in the folder would be used unseen."""
    return {"token_freq.pt": vocabulary.frequencies}
