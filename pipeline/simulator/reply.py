"""What a client is to get -> one response as data: status, bytes, and whether somebody pays for it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

JSON = "application/json"
EVENTS = "text/event-stream"


class Bill(StrEnum):
    """What an attempt costs. Nobody pays for an error finish, nor for no tokens without a finish reason
    (OpenRouter, zero completion insurance); text that got lost on the way is paid for."""

    NONE = "none"
    """No model worked on it: there is no generation to ask about."""
    FREE = "free"
    """There is a generation, and it costs nothing."""
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Reply:
    """A response. `promised` bytes were still to come when its connection breaks (0: it doesn't break)."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
    promised: int = 0
    bill: Bill = Bill.NONE


def error(
    status: int, message: str, metadata: dict[str, Any], headers: dict[str, str] | None = None
) -> Reply:
    """OpenRouter's envelope, under the status that it names."""
    return Reply(status, envelope(status, message, metadata).encode(), headers=headers or {})


def refusal(status: int, message: str) -> Reply:
    """An error that no retry mends."""
    kind = "not_found" if status == 404 else "invalid_request"
    return error(status, message, {"error_type": kind})


def envelope(code: int, message: str, metadata: dict[str, Any]) -> str:
    """The body of an error."""
    return dump({"error": {"code": code, "message": message, "metadata": metadata}})


def dump(value: Any) -> str:
    """JSON with all characters as they are."""
    return json.dumps(value, ensure_ascii=False)
