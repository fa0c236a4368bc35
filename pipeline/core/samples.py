"""A judged exchange -> the sample it gives, or the reject that keeps why it gives none."""

from __future__ import annotations

from pipeline.core.judge import Exchange, Judgement
from pipeline.records import Fidelity, Reject, Sample


def to_sample(
    row_id: str, prompt_id: str, turn: int, raw: str, exchange: Exchange, judged: Judgement
) -> Sample | Reject:
    """One row out for one row in.

    Without a pinned or learned profile the count may hide what the provider does to whitespace:
    such a row is `unverified` at most (DESIGN 3).
    """
    result = judged.result
    if (
        judged.completion_ids is None
        or judged.answer is None
        or result.ending is None
        or result.fidelity is None
    ):
        detail = f"{judged.action.value}: {judged.reason}"
        return Reject(row_id, "reconstruct", judged.label, detail, raw, result.candidates)
    fidelity, flags = result.fidelity, judged.flags
    if exchange.profile is None and fidelity is Fidelity.COUNTED:
        fidelity, flags = Fidelity.UNVERIFIED, (*flags, "profile_unknown")
    return Sample(
        row_id=row_id,
        prompt_id=prompt_id,
        turn=turn,
        input_ids=(*judged.prompt.ids, *judged.completion_ids),
        prompt_length=len(judged.prompt.ids),
        ending=result.ending,
        fidelity=fidelity,
        flags=flags,
        spans=result.spans,
        text=result.text,
        provider=judged.answer.served_provider or "",
        model=judged.answer.served_model or "",
        prompt_delta=judged.prompt.delta,
    )
