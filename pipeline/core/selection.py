"""Conversation ids -> the order and split in which an export writes them.

Trainers split train and validation by row order (speculators) and must not see one conversation on
both sides, so whole conversations are moved, by a hash: adding rows moves no other row across.
"""

from __future__ import annotations

import hashlib


def in_validation(conversation_id: str, share: float) -> bool:
    """The split of a conversation, decided by its id alone."""
    return _fraction("split", conversation_id) < share


def shuffle_key(conversation_id: str, seed: int) -> int:
    """64 bits to sort by (stably): rows of one conversation stay together and in order."""
    return _hash(str(seed), conversation_id)


def _fraction(salt: str, text: str) -> float:
    return _hash(salt, text) / 2**64


def _hash(salt: str, text: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{salt}:{text}".encode(), digest_size=8).digest(), "big")
