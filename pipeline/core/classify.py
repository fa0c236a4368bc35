"""(status, headers, body, request) -> what a client should do with this exchange, and why.

Pure and free of any tokenizer: generation must not depend on one (DESIGN 2). What only the token
count can tell is decided later, in `pipeline.core.reconstruct`. Sources of the rules: OpenRouter's
error pages, and the reports named beside each rule in research; cases in tests/cases.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from pipeline.core.contradictions import find_contradiction
from pipeline.core.faults import Fault, read_fault
from pipeline.core.sse import StreamCut, assemble, looks_like_stream
from pipeline.records import Action, Answer


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on one exchange.

    `body` is the parsed (for a stream: assembled) answer, only where `action` is ok or repair.
    `cost_source`: `usage`, `upstream` (own provider key), `estimated` (price x tokens, to be booked
    by the caller), `none` (not billed) or `unknown` (maybe billed; look it up by `generation_id`).
    """

    action: Action
    reason: str
    body: dict[str, Any] | None = None
    flags: tuple[str, ...] = ()
    retry_after_s: float | None = None
    avoid_provider: str | None = None
    cost_usd: float | None = None
    cost_source: str = "unknown"
    generation_id: str | None = None
    counts_as_attempt: bool = True
    pushback: bool = False
    """The endpoint asks for fewer requests at a time."""
    streamed: bool = False
    """The body was assembled from a stream that the request had asked for."""
    answer: Answer | None = None
    """Fields of `body`."""


_JSON = json.JSONDecoder(strict=False)
_OBJECT = re.compile(r'\{\s*"')


@dataclass(slots=True)
class _Exchange:
    """What came, and what is noted while it is read."""

    status: int | None
    headers: Mapping[str, str]
    text: str
    request: Mapping[str, Any]
    flags: list[str] = field(default_factory=list)
    streamed: bool = False


def classify(
    status: int | None,
    headers: Mapping[str, str],
    body: bytes | str,
    request: Mapping[str, Any],
    now: datetime | None = None,
) -> Verdict:
    """Decide on one exchange. `status` None: no answer came. Header names are in lower case.

    `now` serves a Retry-After in date form when the answer has no Date header.
    """
    generation_id = headers.get("x-generation-id")
    if request.get("stop"):
        return Verdict(
            Action.FATAL_RUN,
            "the request sets `stop`, which cuts reasoning and hides the end token; remove that setting",
            flags=("stop_set",),
            generation_id=generation_id,
        )
    if status is None:
        return Verdict(Action.RETRY, "no answer came", generation_id=generation_id)
    try:
        text = body if isinstance(body, str) else body.decode("utf-8")
    except UnicodeDecodeError:
        return Verdict(Action.RETRY, "the body is not UTF-8", generation_id=generation_id)
    exchange = _Exchange(status, headers, text, request)
    answer, problem = _parse(exchange)
    if generation_id is None and answer is not None and isinstance(answer.get("id"), str):
        generation_id = answer["id"]
    fault = read_fault(status, answer, text)
    if fault is not None:
        return _of_fault(fault, headers, generation_id, now)
    if answer is None:
        return Verdict(Action.RETRY, problem, generation_id=generation_id)
    return _of_answer(answer, exchange, generation_id)


def _parse(exchange: _Exchange) -> tuple[dict[str, Any] | None, str]:
    """The JSON object of the body, or why there is none. Cut JSON is never repaired."""
    text = exchange.text.removeprefix("\ufeff")
    if text.startswith("{"):
        return _parse_object(text, exchange.flags)
    if looks_like_stream(text):
        exchange.streamed = bool(exchange.request.get("stream"))
        if not exchange.streamed:
            exchange.flags.append("framing")
        try:
            return assemble(text), ""
        except StreamCut as cut:
            return None, f"{cut}; partial text is never an answer"
    lines = text.splitlines(keepends=True)
    while lines and (not lines[0].strip() or lines[0].startswith(":")):
        lines.pop(0)
    bare = "".join(lines).lstrip()
    if len(bare) < len(text):
        exchange.flags.append("padding")
    if not bare:
        return None, "the body is empty or only padding"
    if not bare.startswith("{"):
        start = _OBJECT.search(bare)
        if bare.startswith("<") or exchange.status != 200 or start is None:
            return None, f"the body is no JSON but {bare[:60]!r}"
        bare = bare[start.start() :]
        exchange.flags.append("framing")
    return _parse_object(bare, exchange.flags)


def _parse_object(bare: str, flags: list[str]) -> tuple[dict[str, Any] | None, str]:
    """JSON from its first brace on, and whatever stands behind it."""
    try:
        answer, end = _JSON.raw_decode(bare)
    except json.JSONDecodeError as broken:
        return None, f"the JSON is cut or broken ({broken.msg}); it is never repaired"
    except (ValueError, RecursionError):  # a number of over 4,300 digits; brackets without end
        return None, "the JSON is beyond what can be read"
    rest = "".join(line for line in bare[end:].splitlines(keepends=True) if not line.startswith(":"))
    if rest.strip():
        flags.append("framing")
    return answer, ""


def _of_fault(
    fault: Fault, headers: Mapping[str, str], generation_id: str | None, now: datetime | None
) -> Verdict:
    waits = [_retry_after(headers, now), fault.retry_after_s]
    return Verdict(
        fault.action,
        fault.reason,
        flags=fault.flags,
        retry_after_s=next((wait for wait in waits if wait is not None), None),
        avoid_provider=fault.provider if fault.action is Action.REROUTE else None,
        cost_usd=None if fault.maybe_billed else 0.0,
        cost_source="unknown" if fault.maybe_billed else "none",
        generation_id=generation_id,
        counts_as_attempt=fault.counts_as_attempt,
        pushback=fault.pushback,
    )


def _of_answer(answer: dict[str, Any], exchange: _Exchange, generation_id: str | None) -> Verdict:
    cost, source = _cost(answer)
    flags = tuple(exchange.flags)
    common: dict[str, Any] = {
        "cost_usd": cost,
        "cost_source": source,
        "generation_id": generation_id,
        "streamed": exchange.streamed,
    }
    read, found = find_contradiction(answer, exchange.request, cache_hit=is_cache_hit(exchange.headers))
    common["answer"] = read
    if found is not None:
        return Verdict(
            found.action,
            found.reason,
            flags=(*flags, found.flag),
            avoid_provider=answer.get("provider") if found.action is Action.REROUTE else None,
            body=answer if found.keep else None,
            **common,
        )
    action = Action.REPAIR if "framing" in flags else Action.OK
    return Verdict(action, "a complete answer", body=answer, flags=flags, **common)


def is_cache_hit(headers: Mapping[str, str]) -> bool:
    """OpenRouter's response cache answered (its usage is all zero)."""
    return (
        "x-openrouter-cache-source-id" in headers
        or headers.get("x-openrouter-cache-status", "").upper() == "HIT"
    )


def _cost(answer: Mapping[str, Any]) -> tuple[float | None, str]:
    usage = answer.get("usage")
    if not isinstance(usage, dict) or not usage:
        return None, "unknown"
    cost = usage.get("cost")
    details = usage.get("cost_details") or {}
    upstream = details.get("upstream_inference_cost") if isinstance(details, dict) else None
    own, theirs = _dollars(cost), _dollars(upstream)
    if theirs is not None and (own is None or usage.get("is_byok")):
        return theirs + (own or 0.0), "upstream"
    if own is not None:
        return own, "usage"
    return None, "estimated"


def _dollars(value: Any) -> float | None:
    """A plausible amount; anything else is no statement of cost."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        return None
    return float(value)


def _retry_after(headers: Mapping[str, str], now: datetime | None) -> float | None:
    """Seconds to wait; both forms of RFC 9110, 10.2.3. A date in the past is 0, an unreadable value None."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        seconds = float(value)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    except ValueError:
        pass
    try:
        then = parsedate_to_datetime(value)
        base = parsedate_to_datetime(headers["date"]) if "date" in headers else now
        return None if base is None else max(0.0, (_aware(then) - _aware(base)).total_seconds())
    except (ValueError, OverflowError):
        return None


def _aware(moment: datetime) -> datetime:
    """HTTP dates are GMT, said or not (RFC 9110, 5.6.7)."""
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
