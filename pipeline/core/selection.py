"""Conversation ids -> the order and split in which an export writes them.

Trainers split train and validation by row order (speculators) and must not see one conversation on
both sides, so whole conversations are moved, by a hash: adding rows moves no other row across.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def in_validation(conversation_id: str, share: float) -> bool:
    """The split of a conversation, decided by its id alone."""
    return _fraction("split", conversation_id) < share


def shuffled(conversation_ids: Sequence[str], seed: int | None) -> list[int]:
    """Row numbers in export order; rows of one conversation stay together and in order. None: as they are."""
    rows = range(len(conversation_ids))
    if seed is None:
        return list(rows)
    return sorted(
        rows, key=lambda row: (_fraction(str(seed), conversation_ids[row]), conversation_ids[row], row)
    )


def _fraction(salt: str, text: str) -> float:
    digest = hashlib.blake2b(f"{salt}:{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
