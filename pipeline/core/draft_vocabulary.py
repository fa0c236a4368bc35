"""How often each token is supervised -> the draft vocabulary and the maps between it and the target's.

d2t[i] = target id - draft id, int64 [draft vocabulary]; t2d[id] says whether the draft vocabulary has it,
bool [target vocabulary]; draft ids follow the order of target ids, so that
nonzero(t2d) == arange(draft vocabulary) + d2t (SpecForge core/compact_teacher.py checks just that).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class DraftVocabulary:
    """`counts` int64 [target vocabulary] over supervised tokens; `covered`: their share that it can write."""

    counts: Counts
    d2t: NDArray[np.int64]
    t2d: NDArray[np.bool_]
    covered: float

    @property
    def frequencies(self) -> dict[int, int]:
        """Counts of the tokens that occur, by id."""
        return {int(token): int(self.counts[token]) for token in np.flatnonzero(self.counts)}

    @property
    def summary(self) -> dict[str, Any]:
        """Numbers for the card."""
        return {
            "draft_vocabulary": len(self.d2t),
            "target_vocabulary": len(self.t2d),
            "distinct_tokens": int(np.count_nonzero(self.counts)),
            "covered_share": round(self.covered, 6),
        }


def choose(counts: Counts, size: int) -> DraftVocabulary:
    """The `size` most frequent tokens; of equals the lowest ids, so unused ones fill up from 0.

    Ties broken otherwise make two equal builds differ (SpecForge follows the order of insertion).
    """
    if size > len(counts):
        raise ValueError(f"a draft vocabulary of {size} of {len(counts)} tokens")
    chosen = np.sort(np.argsort(-counts, kind="stable")[:size])
    t2d = np.zeros(len(counts), dtype=np.bool_)
    t2d[chosen] = True
    total = int(counts.sum())
    covered = float(counts[chosen].sum() / total) if total else 1.0
    return DraftVocabulary(counts, chosen - np.arange(size, dtype=np.int64), t2d, covered)
