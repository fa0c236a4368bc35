"""(request, attempt) -> what goes wrong with it, if anything, as the response that a client would get.

Shapes follow public reports (research: api anchors 5, A and B). After `at_most` failures a request
succeeds, so a client that retries always gets through.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from email.utils import formatdate
from enum import StrEnum
from time import time
from typing import Any

from pipeline.simulator.chance import Chance
from pipeline.simulator.profile import Faults

_PADDING = "\n         \n         \n"
_JSON = "application/json"


class Fault(StrEnum):
    """Names are the keys of a profile's `faults`."""

    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "unavailable"
    SERVER_ERROR = "server_error"
    HTML_PAGE = "html_page"
    CUT_BODY = "cut_body"
    ERROR_IN_200 = "error_in_200"
    ERROR_IN_CHOICE = "error_in_choice"
    NO_CHOICES = "no_choices"
    ONLY_PADDING = "only_padding"


@dataclass(frozen=True, slots=True)
class Reply:
    """A response. `promised` bytes more than `body` has: the connection breaks after the body."""

    status: int
    body: bytes
    content_type: str = _JSON
    headers: dict[str, str] = field(default_factory=dict)
    promised: int = 0


def choose(faults: Faults, key: str, attempt: int) -> Fault | None:
    """Attempts count from 1."""
    if attempt > faults.at_most:
        return None
    point = Chance(key, "fault", attempt).share()
    for fault in Fault:
        point -= getattr(faults, fault.value)
        if point < 0:
            return fault
    return None


def good(body: dict[str, Any], faults: Faults, key: str) -> Reply:
    """The answer itself, dressed by request: blank lines before it, an empty error in it."""
    chance = Chance(key, "dress")
    padded, empty_error = chance.happens(faults.padded), chance.happens(faults.empty_error)
    if empty_error:
        body = {**body, "error": {}}
    text = _dump(body)
    return Reply(200, (_PADDING + text if padded else text).encode())


def refusal(status: int, message: str) -> Reply:
    """An error that no retry mends."""
    kind = "not_found" if status == 404 else "invalid_request"
    return _error(status, message, {"error_type": kind})


def broken(fault: Fault, body: dict[str, Any], faults: Faults, key: str, attempt: int) -> Reply:
    """What comes in place of `body`."""
    chance = Chance(key, "fault shape", attempt)
    provider = body["provider"]
    match fault:
        case Fault.RATE_LIMITED:
            after = str(faults.retry_after_s)
            if chance.happens(0.3):  # the other form that RFC 9110 allows
                after = formatdate(time() + faults.retry_after_s, usegmt=True)
            metadata = {"raw": "temporarily rate-limited upstream", "provider_name": provider}
            return _error(429, "Provider returned error", metadata, {"Retry-After": after})
        case Fault.UNAVAILABLE:
            status = chance.pick((502, 503))
            kind = "provider_unavailable" if status == 502 else "provider_overloaded"
            return _error(status, "Provider returned error", {"error_type": kind, "provider_name": provider})
        case Fault.SERVER_ERROR:
            return _error(500, "Internal Server Error", {"error_type": "server"})
        case Fault.HTML_PAGE:
            status = chance.pick((502, 520, 524))
            page = f"<!DOCTYPE html><html><head><title>gateway | {status}: Bad gateway</title></head></html>"
            return Reply(status, page.encode(), "text/html; charset=utf-8")
        case Fault.CUT_BODY:
            whole = _dump(body).encode()
            part = whole[: chance.between(1, len(whole) - 2)]
            return Reply(200, part, promised=len(whole) - len(part) if chance.happens(0.5) else 0)
        case Fault.ERROR_IN_200:
            metadata = {
                "raw": _dump({"error": {"message": "Internal server error"}}),
                "provider_name": provider,
            }
            return Reply(200, _envelope(502, "Provider returned error", metadata))
        case Fault.ERROR_IN_CHOICE:
            return Reply(200, _dump(_failed_choice(body, chance)).encode())
        case Fault.NO_CHOICES:
            return Reply(200, _dump({**body, "choices": None, "usage": None}).encode())
        case Fault.ONLY_PADDING:
            return Reply(200, _PADDING.encode())


def _failed_choice(body: dict[str, Any], chance: Chance) -> dict[str, Any]:
    message = body["choices"][0]["message"]
    text = message["content"] or ""
    error = {"code": 502, "message": "Upstream idle", "metadata": {"error_type": "provider_unavailable"}}
    choice = {
        "index": 0,
        "finish_reason": "error",
        "native_finish_reason": None,
        "error": error,
        "message": {"role": "assistant", "content": text[: chance.below(len(text) + 1)], "refusal": None},
    }
    return {**body, "choices": [choice], "usage": None}


def _error(
    status: int, message: str, metadata: dict[str, Any], headers: dict[str, str] | None = None
) -> Reply:
    return Reply(status, _envelope(status, message, metadata), headers=headers or {})


def _envelope(code: int, message: str, metadata: dict[str, Any]) -> bytes:
    return _dump({"error": {"code": code, "message": message, "metadata": metadata}}).encode()


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
