"""(streamed request, attempt) -> its server-sent events, whole and dressed, or with what goes wrong.

What goes wrong before a stream begins (a status, a gateway's page) is the same as for a plain request.
Whatever breaks a stream does so before its finish reason. Shapes: research, api anchors 1.5, 1.8 and 5.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipeline.simulator import faults
from pipeline.simulator.chance import Chance
from pipeline.simulator.faults import Fault
from pipeline.simulator.profile import Faults
from pipeline.simulator.reply import EVENTS, Bill, Reply, dump
from pipeline.simulator.stream import Chunk, stream_of

_COMMENT = ": OPENROUTER PROCESSING\n\n"
_KEEP_ALIVES = (_COMMENT, ": keep-alive\n\n", "\n", ":\n")
_DONE = "data: [DONE]\n\n"
_UPSTREAM_IDLE = {
    "code": 502,
    "message": "Upstream idle",
    "metadata": {"error_type": "provider_unavailable"},
}


def good(body: dict[str, Any], profile: Faults, key: str) -> Reply:
    """The answer itself, dressed by request: comments between its events, no end mark, an empty error."""
    stream, chance = stream_of(body, key), Chance(key, "stream dress")
    keeps_alive, no_done = chance.happens(profile.keep_alives), chance.happens(profile.no_done)
    first, *others = [*stream.deltas, *stream.ending]
    if chance.happens(profile.empty_error):
        first = {**first, "error": {}}
    events = [_opening(key)]
    for chunk in (first, *others):
        if keeps_alive:
            events += [chance.pick(_KEEP_ALIVES) for _ in range(chance.below(4))]
        events.append(_written([chunk]))
    if not no_done:
        events.append(_DONE)
    return _reply("".join(events), Bill.FULL)


def broken(fault: Fault, body: dict[str, Any], profile: Faults, key: str, attempt: int) -> Reply:
    """What comes in place of the stream of `body`."""
    stream, chance = stream_of(body, key), Chance(key, "stream fault shape", attempt)
    frame = {name: stream.deltas[0][name] for name in ("id", "object", "created", "model", "provider")}
    # The first delta has no text: where there are more, some text comes before the trouble.
    taken = chance.between(min(2, len(stream.deltas)), len(stream.deltas))
    opening, told = _opening(key), _written(stream.deltas[:taken])
    failed = {"index": 0, "delta": {"content": ""}, "finish_reason": "error", "native_finish_reason": None}
    match fault:
        case Fault.STREAM_ERROR if chance.happens(0.5):
            last = _written([{**frame, "error": _UPSTREAM_IDLE, "choices": [failed]}])
            return _reply(opening + told + last, Bill.FREE)
        case Fault.STREAM_ERROR:  # no error finish (OmniRoute#8210), so its tokens are paid for
            last = _written([{**frame, "error": _UPSTREAM_IDLE, "choices": []}])
            return _reply(opening + told + last, Bill.FULL)
        case Fault.ERROR_IN_CHOICE:
            last = _written([{**frame, "choices": [{**failed, "error": _UPSTREAM_IDLE}]}])
            return _reply(opening + told + last + _DONE, Bill.FREE)
        case Fault.STREAM_CUT:
            return _reply(opening + told, Bill.FULL)
        case Fault.STREAM_BROKEN:
            rest = _written(stream.deltas[taken:] + stream.ending).encode()
            part = rest[: chance.between(1, rest.index(b"\n") - 1)]
            return _reply((opening + told).encode() + part, Bill.FULL, promised=len(rest) - len(part))
        case Fault.CUT_BODY:
            whole = (opening + told).encode()
            part = whole[: chance.between(1, len(whole))]
            return _reply(part, Bill.FULL, promised=1 if chance.happens(0.5) else 0)
        case Fault.ERROR_IN_200:
            return _reply(f"{opening}data: {faults.upstream_error(body['provider'])}\n\n", Bill.FREE)
        case Fault.NO_CHOICES:
            return _reply(opening + _written([{**frame, "choices": None, "usage": None}]) + _DONE, Bill.FREE)
        case Fault.ONLY_PADDING:
            return _reply(_COMMENT * 5, Bill.FULL)
    return faults.broken(fault, body, profile, key, attempt)


def _opening(key: str) -> str:
    return _COMMENT * Chance(key, "stream opening").between(1, 3)


def _written(chunks: Iterable[Chunk]) -> str:
    return "".join(f"data: {dump(chunk)}\n\n" for chunk in chunks)


def _reply(events: str | bytes, bill: Bill, promised: int = 0) -> Reply:
    body = events.encode() if isinstance(events, str) else events
    return Reply(200, body, EVENTS, {"Cache-Control": "no-cache"}, promised, bill)
