"""The turns of one prompt -> rows of build/responses: what was asked, what came, raw, and who gave it.

Only what the answers determine: attempts, times and estimates vary between two builds of the same
thing and stay in the store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pipeline.core.turns import Response, Turn

_KEPT_HEADERS = (
    "content-type",
    "x-generation-id",
    "x-openrouter-cache-source-id",
    "x-openrouter-cache-status",
)
"""What later stages read. The last two say that the zeros in `usage` are no counts."""


def response_rows(prompt_id: str, turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """One row a turn. `request` is the logical one: how an attempt was routed is not part of it."""
    return [
        {
            "row_id": f"{prompt_id}:{turn.number}",
            "prompt_id": prompt_id,
            "turn": turn.number,
            "request": None if turn.asked is None else turn.asked.text,
            "request_key": None if turn.asked is None else turn.asked.key,
            **_answer(turn),
            "failure": None if turn.failure is None else turn.failure.reason,
            "failure_detail": None if turn.failure is None else turn.failure.detail,
        }
        for turn in turns
    ]


def _answer(turn: Turn) -> dict[str, Any]:
    response, verdict = turn.response, turn.verdict
    if response is None or verdict is None:
        return {"headers": "{}", "body": ""}
    body = verdict.body or {}
    choice = (body.get("choices") or [{}])[0]
    return {
        "status": response.status,
        "headers": _headers(response),
        "body": response.body.decode("utf-8", "replace"),
        "served_provider": _text(body.get("provider")),
        "served_model": _text(body.get("model")),
        "generation_id": verdict.generation_id,
        "finish_reason": _text(choice.get("finish_reason")),
        "cost_usd": verdict.cost_usd,
        "cost_source": verdict.cost_source,
    }


def _headers(response: Response) -> str:
    kept = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
    return json.dumps(kept, ensure_ascii=False)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
