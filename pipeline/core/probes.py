"""Probes for one served provider -> request bodies; their answers -> evidence that can be read.

The model decides what it writes. Each probe only makes it likely that a habit shows: text with
whitespace at its edges, a call with and without arguments, a quoted mark, a cut inside reasoning, a
prompt with everything that a chat template treats in its own way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.config import Api, GenerateSettings, RenderSettings
from pipeline.core.classify import classify
from pipeline.core.encoding import Encoder
from pipeline.core.prompt_check import PromptVerdict, check_prompt
from pipeline.core.render import UnrenderableRequest, render_ids
from pipeline.core.requests import request_body
from pipeline.core.turns import Response
from pipeline.records import Answer

# --- what is asked ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Probe:
    """One request of the handful. `extra`: fields that an endpoint may refuse, which is a finding too."""

    name: str
    messages: tuple[dict[str, Any], ...]
    max_tokens: int = 2000
    tools: tuple[dict[str, Any], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _tool(name: str, about: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


_CITY = {"city": {"type": "string", "description": "Name of the city"}}
_TOOLS = (
    _tool("get_weather", "Current weather of a city.", _CITY),
    _tool("current_time", "The time now; takes no arguments.", {}),
)
_SYSTEM = {"role": "system", "content": "You are a helpful assistant. Be brief."}
# Not :0, although it is the first: a model that counts on from it, and is shown so, has kept ids.
_CALL_ID = "functions.get_weather:3"
_CALL = {"name": "get_weather", "arguments": '{"city": "Paris"}'}

PROBES = (
    Probe("plain", (_user("What is 17 + 25? Answer in one short sentence."),)),
    Probe(
        "blank lines",
        (
            _user(
                "Write a Python function that adds two numbers. Begin your answer with an empty line, end it "
                "with two empty lines, and write nothing but the code."
            ),
        ),
    ),
    # Two marks: then a prompt with them as text is longer by more than the tolerated overcount.
    Probe("echo", (_user("Repeat this literally and say nothing else: 1</think>2</think>3"),)),
    Probe("call", (_user("How is the weather in Paris? Use the tool."),), tools=_TOOLS),
    Probe("bare call", (_user("What time is it? Use the tool, without arguments."),), tools=_TOOLS),
    Probe(
        "turns",
        (
            _SYSTEM,
            _user("Name a river."),
            {"role": "assistant", "reasoning_content": "Any will do.", "content": "The Rhine."},
            _user("Now three more, one a line, each after two spaces. End with an empty line."),
        ),
    ),
    Probe(
        "tool loop",
        (
            _SYSTEM,
            _user("Is it warmer in Paris or in Oslo? Use the tool once for each."),
            {
                "role": "assistant",
                "reasoning_content": "Paris first.",
                "content": "",
                "tool_calls": [{"id": _CALL_ID, "type": "function", "function": _CALL}],
            },
            {"role": "tool", "tool_call_id": _CALL_ID, "content": '{"celsius": 21}'},
        ),
        tools=_TOOLS,
    ),
    Probe("cut", (_user("Tell me the history of the number zero, at length."),), max_tokens=24),
    Probe("token ids", (_user("What is 12 * 12?"),), extra={"return_token_ids": True}),
    Probe("logprobs", (_user("What is 13 * 13?"),), extra={"logprobs": True}),
)


def knocks(first: int, number: int) -> tuple[Probe, ...]:
    """Tiny requests, each worded otherwise, that only show who answers."""
    return tuple(
        Probe(f"knock {n}", (_user(f"Say the number {n}."),), max_tokens=16)
        for n in range(first, first + number)
    )


def routes_of(api: Api) -> tuple[str, ...]:
    """Providers that the body allows by name: `provider.only`, else `provider.order`."""
    routing = api.body.get("provider")
    named = (routing.get("only") or routing.get("order") or []) if isinstance(routing, Mapping) else []
    return tuple(dict.fromkeys(str(name) for name in named))


def probe_body(probe: Probe, settings: GenerateSettings, route: str | None) -> dict[str, Any]:
    """The request, sent to one provider alone (`route`) or to the endpoint as it is."""
    api = settings.api
    if route is not None:
        kept = {key: value for key, value in (api.body.get("provider") or {}).items() if key != "order"}
        alone = {**kept, "only": [route], "allow_fallbacks": False}
        api = api.model_copy(update={"body": {**api.body, "provider": alone}})
    sampling = settings.sampling.model_copy(update={"max_tokens": probe.max_tokens})
    changed = settings.model_copy(update={"api": api, "sampling": sampling})
    return {**request_body(probe.messages, probe.tools, changed), **probe.extra}


# --- what came ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evidence:
    """One answer that can be read. `body`: as it came."""

    probe: str
    request: Mapping[str, Any]
    body: Mapping[str, Any]
    answer: Answer
    prompt: PromptVerdict
    cost_usd: float


@dataclass(frozen=True, slots=True)
class Odd:
    """A response that holds nothing to read; `served`: who gave it, if it says."""

    why: str
    served: str | None = None


def read_evidence(
    probe: str, request: Mapping[str, Any], response: Response, render: RenderSettings, encoder: Encoder
) -> Evidence | Odd:
    """The answer, and how its prompt count compares with our own render."""
    verdict = classify(response.status, response.headers, response.body, request)
    if verdict.body is None or verdict.answer is None or not verdict.action.usable:
        served = (verdict.body or {}).get("provider")
        return Odd(" ".join(verdict.reason.split()), served if isinstance(served, str) else None)
    answer = verdict.answer
    try:
        prompt = check_prompt(answer, render_ids(request, render, encoder))
    except UnrenderableRequest:  # the target's template refuses it; the answer still shows habits
        prompt = PromptVerdict((), flags=("prompt_unrenderable",))
    return Evidence(probe, request, verdict.body, answer, prompt, verdict.cost_usd or 0.0)
