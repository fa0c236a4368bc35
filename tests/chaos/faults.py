"""Name of a fault -> what is served in place of the good answer: status, headers and steps on the wire.

Two kinds: the cases of tests/cases/provider_responses.jsonl, served as they stand, and faults of a stream,
made from the good answer of the request that they hit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.answers import Body, as_events, good_answer

Step = dict[str, Any]
"""`{"send", "every_s", "times"}` or `{"close": "clean" | "abrupt"}`, as in the cases."""

CASES: dict[str, Any] = {
    case["id"]: case
    for case in map(
        json.loads,
        (Path(__file__).parent.parent / "cases/provider_responses.jsonl")
        .read_text(encoding="utf-8")
        .splitlines(),
    )
}
FATAL_FOR_THE_RUN = tuple(name for name, case in CASES.items() if case["expect"]["action"] == "fatal_run")
PASSING = tuple(name for name in CASES if name not in FATAL_FOR_THE_RUN)
REFUSED_SETTING = "C15"
"""Not a fault of the server: the request itself sets `stop`."""


@dataclass(frozen=True)
class Served:
    """One exchange, as it goes over the wire; `body` whole, or `steps` where timing matters."""

    status: int
    headers: dict[str, str]
    body: bytes | None = None
    steps: tuple[Step, ...] = ()


def of_case(case: Any) -> Served:
    """The exchange of a given case."""
    http = case["http"]
    if "body" in http:
        return Served(http["status"], dict(http["headers"]), http["body"].encode())
    return Served(http["status"], dict(http["headers"]), steps=tuple(http["script"]))


def served(fault: str, body: Body) -> Served:
    """What is served to a request that the named fault hits."""
    return _of_stream(fault, body) if fault in STREAM_FAULTS else of_case(CASES[fault])


_CLEAN: Step = {"close": "clean"}
_ABRUPT: Step = {"close": "abrupt"}


def _send(*texts: str, every_s: float = 0.0, times: int = 1) -> Step:
    return {"send": "".join(texts), "every_s": every_s, "times": times}


def _error(code: int, choices: list[Body]) -> str:
    error = {
        "code": code,
        "message": "the worker is gone",
        "metadata": {"error_type": "provider_unavailable"},
    }
    return f"data: {json.dumps({'error': error, 'choices': choices})}\n\n"


_ERROR_CHOICE = [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]

STREAM_FAULTS: dict[str, Callable[[list[str]], tuple[Step, ...]]] = {
    "cut abruptly": lambda events: (_send(*events[:5]), _ABRUPT),
    "cut cleanly": lambda events: (_send(*events[:7]), _CLEAN),
    "cut inside an event": lambda events: (_send(*events[:4], events[4][:40]), _CLEAN),
    "error event": lambda events: (_send(*events[:6], _error(502, _ERROR_CHOICE)), _CLEAN),
    "error event without choices": lambda events: (_send(*events[:3], _error(503, [])), _CLEAN),
    "error event first": lambda events: (_send(_error(429, [])), _CLEAN),
    "end mark alone": lambda events: (_send("data: [DONE]\n\n"), _CLEAN),
    "broken event": lambda events: (_send(*events[:3], 'data: {"choices": [\n\n', *events[3:]), _CLEAN),
    "comments without end": lambda events: (_send(": PROCESSING\n\n", every_s=0.2, times=150), _CLEAN),
    "nothing": lambda events: (_CLEAN,),
    # Harmless: the answer is whole.
    "no end mark": lambda events: (_send(*events[:-1]), _CLEAN),
    "no end mark, cut after usage": lambda events: (_send(*events[:-1]), _ABRUPT),
    "lines end with CR LF": lambda events: (
        _send(*(event.replace("\n", "\r\n") for event in events)),
        _CLEAN,
    ),
}


def _of_stream(fault: str, body: Body) -> Served:
    answer = good_answer(body)
    headers = {"content-type": "text/event-stream", "x-generation-id": answer["id"]}
    return Served(200, headers, steps=STREAM_FAULTS[fault](as_events(answer)))
