"""Messages, tools, settings -> the body of one request and its key; an answer -> the next turn's history.

Two bodies have one key only if the model reads the same: the order of keys counts inside messages,
tools and response_format (templates print a tool's properties in the order given, guided decoding
follows a schema's), and nowhere else, so that a reordered settings file buys nothing again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config import Api, GenerateSettings
from pipeline.core.answer import UnreadableAnswer, read_answer
from pipeline.core.chat import read_messages
from pipeline.errors import ConfigError

Message = dict[str, Any]

_ORDER_COUNTS = frozenset({"messages", "tools", "response_format"})
_RESERVED = {
    "messages": "messages come from the dataset's prompts",
    "tools": "tools come from the dataset (mapping.tools_field)",
    "model": "the model's name stands in conf/target, models.<provider>",
    "stream": "whether answers are streamed stands in transport.stream",
    "stop": "stop strings cut reasoning and hide the end token (vllm#38499)",
}
_CUT = frozenset({"length", "max_tokens", "MAX_TOKENS"})
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the next turn can't be asked; it becomes the failure of that row and of those after it."""

    reason: str
    detail: str


def request_body(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    settings: GenerateSettings,
) -> dict[str, Any]:
    """What is asked for one generation; `api.body` is laid on top.

    Raises ConfigError for a body that would falsify rows, UnrenderableRequest for messages whose prompt
    can't be known: such a row is refused before it is paid for.
    """
    api = settings.api
    for name in sorted(_RESERVED.keys() & api.body.keys()):
        raise ConfigError(f"conf/provider: api.body.{name}: {_RESERVED[name]}; remove it")
    if api.body.get("n", 1) != 1:
        raise ConfigError(
            "conf/provider: api.body.n: only the first choice of an answer is read and all are "
            "paid for; remove it"
        )
    read_messages({"messages": messages})
    sampling = settings.sampling.model_dump(exclude_none=True)
    body: dict[str, Any] = {
        "model": settings.model,
        "messages": [_outgoing(message, api.history_reasoning) for message in messages],
        api.max_tokens_field: sampling.pop("max_tokens"),
        **sampling,
    }
    if tools:
        body["tools"] = [dict(tool) for tool in tools]
    return body | api.body


def _outgoing(message: Mapping[str, Any], reasoning_field: str) -> Message:
    """The message as it is, without nulls, its reasoning once and under the name that this endpoint reads.

    `reasoning_details` goes too: a second copy that no check could compare.
    """
    kept = {name: value for name, value in message.items() if value is not None or name == "content"}
    if kept.get("role") != "assistant":
        return kept
    copies = [kept.pop(name, "") for name in ("reasoning_content", "reasoning", "reasoning_details")]
    text = copies[0] or copies[1]
    return {**kept, reasoning_field: text} if text else kept


def canonical_json(body: Mapping[str, Any]) -> str:
    """One text for one request: this is what is sent, stored and hashed."""
    parts = {name: value if name in _ORDER_COUNTS else _sorted(value) for name, value in sorted(body.items())}
    text = _ENCODER.encode(parts)
    if text.isascii():
        return text
    # A lone surrogate has no UTF-8 form; as an escape it stays valid JSON.
    return _LONE_SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(one) for key, one in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [_sorted(one) for one in value]
    return value


def endpoint_identity(api: Api) -> str:
    """Who answers, as far as answers depend on it. The simulator's names all that its answers follow from."""
    if api.simulator is None:
        return api.identity
    made_of = api.simulator
    return f"{api.identity}#simulator:{made_of.profile}:{made_of.seed}:{made_of.code}"


def request_key(identity: str, path: str, body: Mapping[str, Any] | str, sample_index: int = 0) -> str:
    """sha256 that names this request in the store, on every machine. `body` may be canonical already."""
    text = body if isinstance(body, str) else canonical_json(body)
    parts = json.dumps([identity, path, text, sample_index])
    return hashlib.sha256(parts.encode()).hexdigest()


def without_provider(body: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The same request, routed past one served provider (OpenRouter, provider routing).

    None if the request allows no other. Answers name a provider as people do (`Moonshot AI`), requests by
    its slug (`moonshotai`, `deepinfra/turbo`).
    """
    routing = body.get("provider") or {}
    if routing.get("only"):
        others = [slug for slug in routing["only"] if _bare(slug.split("/")[0]) != _bare(name)]
        return {**body, "provider": {**routing, "only": others}} if others else None
    return {**body, "provider": {**routing, "ignore": [*routing.get("ignore", []), name]}}


def _bare(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def next_turn(
    messages: Sequence[Mapping[str, Any]], answer: Mapping[str, Any], reasoning_field: str
) -> list[Message] | Refusal:
    """The history for the turn that follows `answer`: its text verbatim, as the model wrote it."""
    try:
        read = read_answer(answer)
    except UnreadableAnswer as odd:
        return Refusal("previous_turn_unreadable", str(odd))
    if not _CUT.isdisjoint((str(read.finish_reason), str(read.native_finish_reason))):
        return Refusal("previous_turn_cut", "the answer before this turn ended at its token limit")
    if read.tool_calls:
        return Refusal("previous_turn_calls_tools", "the answer before this turn calls tools; nobody answers")
    if read.reasoning_variants:
        return Refusal("previous_turn_ambiguous", "the copies of the reasoning before this turn differ")
    if _LONE_SURROGATE.search(read.content + read.reasoning):
        return Refusal("previous_turn_not_text", "the answer before this turn holds half a character")
    reply: Message = {"role": "assistant", "content": read.content}
    if read.reasoning:
        reply[reasoning_field] = read.reasoning
    return [*(dict(message) for message in messages), reply]
