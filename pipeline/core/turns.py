"""One prompt -> the requests of its turns, one after another, and what became of each.

A generator drives it, so that replaying from the store and asking over the network run the same code:
it yields a request, is sent the response (None: there is none), and returns all turns of the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.config import GenerateSettings
from pipeline.core.chat import UnrenderableRequest
from pipeline.core.classify import Verdict, classify
from pipeline.core.requests import (
    Refusal,
    canonical_json,
    endpoint_identity,
    next_turn,
    request_body,
    request_key,
)
from pipeline.records import Prompt

MISSING = Refusal("missing", "no usable answer came; every attempt is in the store")


@dataclass(frozen=True, slots=True)
class Response:
    """One HTTP answer, raw. `status` None: none came; `body` may be a part where the connection broke."""

    status: int | None
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Asked:
    """One logical request. A rerouted attempt hangs under the same key.

    `text` is the body as it is sent and stored, `sample` tells apart equal requests that are asked again.
    """

    key: str
    identity: str
    path: str
    body: Mapping[str, Any]
    text: str
    sample: int = 0

    @classmethod
    def of(cls, identity: str, path: str, body: Mapping[str, Any], sample: int = 0) -> Asked:
        """The request with its key."""
        text = canonical_json(body)
        return cls(request_key(identity, path, text, sample), identity, path, body, text, sample)


@dataclass(frozen=True, slots=True)
class Turn:
    """What became of one turn: a response with its verdict, or the reason why there is none."""

    number: int
    asked: Asked | None = None
    response: Response | None = None
    verdict: Verdict | None = None
    failure: Refusal | None = None


def converse(
    prompt: Prompt, settings: GenerateSettings, sample_index: int = 0
) -> Generator[Asked, Response | None, list[Turn]]:
    """All turns, each with exactly one final state. What can't be asked is never yielded."""
    api, tools = settings.api, list(prompt.tools) if prompt.tools else None
    identity = endpoint_identity(api)
    history: list[dict[str, Any]] | Refusal = [dict(message) for message in prompt.messages]
    turns: list[Turn] = []
    last = len(prompt.following_turns)
    for number in range(last + 1):
        if number and not isinstance(history, Refusal):
            history = [*history, dict(prompt.following_turns[number - 1])]
        if isinstance(history, Refusal):
            turns.append(Turn(number, failure=history))
            continue
        try:
            body = request_body(history, tools, settings)
        except UnrenderableRequest as broken:
            history = Refusal("unrenderable_prompt", str(broken))
            turns.append(Turn(number, failure=history))
            continue
        asked = Asked.of(identity, api.path, body, sample_index)
        response = yield asked
        turn = _judged(number, asked, response)
        turns.append(turn)
        if number == last:
            break
        if turn.failure is not None or turn.verdict is None or turn.verdict.body is None:
            history = Refusal("previous_turn_failed", f"turn {number} of this prompt gave no usable answer")
        else:
            history = next_turn(history, turn.verdict.body, api.history_reasoning)
    return turns


def replay(
    prompt: Prompt, settings: GenerateSettings, answer: Callable[[Asked], Response | None]
) -> list[Turn]:
    """The turns of a prompt as far as answers are known; nothing is sent."""
    steps = converse(prompt, settings)
    try:
        asked = next(steps)
        while True:
            asked = steps.send(answer(asked))
    except StopIteration as end:
        turns: list[Turn] = end.value
        return turns


def _judged(number: int, asked: Asked, response: Response | None) -> Turn:
    if response is None:
        return Turn(number, asked, failure=MISSING)
    verdict = classify(response.status, response.headers, response.body, asked.body)
    failure = None
    if not verdict.action.usable:
        reason = verdict.flags[-1] if verdict.flags else verdict.action.value
        failure = Refusal(reason, f"{verdict.action.value}: {verdict.reason}")
    return Turn(number, asked, response, verdict, failure)
