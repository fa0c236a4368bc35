"""(request, attempt) -> what goes wrong with it, if anything, as the response that a client would get.

Shapes follow public reports (research: api anchors 5, A and B). After `at_most` failures a request
succeeds, so a client that retries always gets through.
"""

from __future__ import annotations

from email.utils import formatdate
from enum import StrEnum
from time import time
from typing import Any

from pipeline.simulator.chance import Chance
from pipeline.simulator.profile import Faults
from pipeline.simulator.reply import Bill, Reply, dump, envelope, error

_PADDING = "\n         \n         \n"


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
    STREAM_ERROR = "stream_error"
    STREAM_CUT = "stream_cut"
    STREAM_BROKEN = "stream_broken"


_ONLY_STREAMS = (Fault.STREAM_ERROR, Fault.STREAM_CUT, Fault.STREAM_BROKEN)


def choose(faults: Faults, key: str, attempt: int, *, streamed: bool = False) -> Fault | None:
    """Attempts count from 1."""
    if attempt > faults.at_most:
        return None
    point = Chance(key, "fault", attempt).share()
    for fault in Fault:
        if fault in _ONLY_STREAMS and not streamed:
            continue
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
    text = dump(body)
    return Reply(200, (_PADDING + text if padded else text).encode(), bill=Bill.FULL)


def broken(fault: Fault, body: dict[str, Any], faults: Faults, key: str, attempt: int) -> Reply:
    """What comes in place of `body`. A gateway's page, a cut and padding hide an answer that was made."""
    chance = Chance(key, "fault shape", attempt)
    provider = body["provider"]
    match fault:
        case Fault.RATE_LIMITED:
            after = str(faults.retry_after_s)
            if chance.happens(0.3):  # the other form that RFC 9110 allows
                after = formatdate(time() + faults.retry_after_s, usegmt=True)
            metadata = {"raw": "temporarily rate-limited upstream", "provider_name": provider}
            return error(429, "Provider returned error", metadata, {"Retry-After": after})
        case Fault.UNAVAILABLE:
            status = chance.pick((502, 503))
            kind = "provider_unavailable" if status == 502 else "provider_overloaded"
            return error(status, "Provider returned error", {"error_type": kind, "provider_name": provider})
        case Fault.SERVER_ERROR:
            return error(500, "Internal Server Error", {"error_type": "server"})
        case Fault.HTML_PAGE:
            status = chance.pick((502, 520, 524))
            page = f"<!DOCTYPE html><html><head><title>gateway | {status}: Bad gateway</title></head></html>"
            return Reply(status, page.encode(), "text/html; charset=utf-8", bill=Bill.FULL)
        case Fault.CUT_BODY:
            whole = dump(body).encode()
            part = whole[: chance.between(1, len(whole) - 2)]
            promised = len(whole) - len(part) if chance.happens(0.5) else 0
            return Reply(200, part, promised=promised, bill=Bill.FULL)
        case Fault.ERROR_IN_200:
            return Reply(200, upstream_error(provider).encode(), bill=Bill.FREE)
        case Fault.ERROR_IN_CHOICE:
            return Reply(200, dump(_failed_choice(body, chance)).encode(), bill=Bill.FREE)
        case Fault.NO_CHOICES:
            nothing = {**body, "choices": None, "usage": None}
            return Reply(200, dump(nothing).encode(), bill=Bill.FREE)
        case Fault.ONLY_PADDING:
            return Reply(200, _PADDING.encode(), bill=Bill.FULL)
    raise ValueError(f"{fault}: a fault of streams only")


def upstream_error(provider: str) -> str:
    """The JSON of an error that the provider gave in place of an answer."""
    metadata = {"raw": dump({"error": {"message": "Internal server error"}}), "provider_name": provider}
    return envelope(502, "Provider returned error", metadata)


def _failed_choice(body: dict[str, Any], chance: Chance) -> dict[str, Any]:
    message = body["choices"][0]["message"]
    text = message["content"] or ""
    failure = {"code": 502, "message": "Upstream idle", "metadata": {"error_type": "provider_unavailable"}}
    choice = {
        "index": 0,
        "finish_reason": "error",
        "native_finish_reason": None,
        "error": failure,
        "message": {"role": "assistant", "content": text[: chance.below(len(text) + 1)], "refusal": None},
    }
    return {**body, "choices": [choice], "usage": None}
