"""A request body -> what is asked, and the hash that all of the answer depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class BadRequest(ValueError):
    """The endpoint refuses this request; `status` is the HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `body` is as it was sent."""

    body: Mapping[str, Any]
    hash: str
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    max_tokens: int | None
    thinking: bool
    streamed: bool
    hides_reasoning: bool

    @property
    def calls_so_far(self) -> int:
        """Calls that the conversation holds; the model counts on from there."""
        return sum(len(message.get("tool_calls") or ()) for message in self.messages)

    @property
    def last_user_text(self) -> str:
        """What the answer is about."""
        for message in reversed(self.messages):
            if message.get("role") == "user":
                return text_of(message.get("content"))
        return ""


def read_request(body: object) -> Asked:
    """Raises BadRequest for what the endpoint refuses."""
    if not isinstance(body, dict):
        raise BadRequest("the body is no JSON object")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise BadRequest("messages: an array of objects is needed")
    for number, message in enumerate(messages):
        _check_message(message, f"messages[{number}]")
    tools = [] if body.get("tools") is None else body["tools"]
    if not isinstance(tools, list) or not all(isinstance(one, dict) for one in tools):
        raise BadRequest("tools: an array of objects is needed")
    if not isinstance(body.get("stream"), bool | None):
        raise BadRequest("stream: true or false is needed")
    max_tokens = body.get("max_completion_tokens", body.get("max_tokens"))
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise BadRequest("max_tokens: a number from 1 up is needed")
    return Asked(
        body=body,
        hash=request_hash(body),
        messages=tuple(messages),
        tools=tuple(tools),
        max_tokens=max_tokens,
        thinking=_thinking(body),
        streamed=body.get("stream") is True,
        hides_reasoning=_object(body, "reasoning").get("exclude") is True
        or body.get("include_reasoning") is False,
    )


def _check_message(message: Mapping[str, Any], place: str) -> None:
    if message.get("role") not in ("system", "developer", "user", "assistant", "tool"):
        raise BadRequest(f"{place}: its role is unknown")
    content, calls = message.get("content"), message.get("tool_calls") or []
    parts = content if isinstance(content, list) else []
    if not isinstance(content, str | list | None) or any(
        not isinstance(part, dict) or part.get("type") != "text" for part in parts
    ):
        raise BadRequest(f"{place}: content is neither text nor a list of text parts")
    if not isinstance(calls, list) or any(
        not isinstance(call, dict) or not isinstance(call.get("function"), dict) for call in calls
    ):
        raise BadRequest(f"{place}: tool_calls is no list of function calls")


def request_hash(body: Mapping[str, Any]) -> str:
    """Equal for equal bodies, whatever the order of their fields and whether they ask for a stream.
    Inside a field order counts: a template prints an object's keys as they come."""
    try:
        ordered = {name: body[name] for name in sorted(body) if name not in ("stream", "stream_options")}
        canonical = json.dumps(ordered, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as broken:
        raise BadRequest(f"the body holds a lone surrogate: {broken.reason}") from None
    return hashlib.sha256(canonical).hexdigest()


def text_of(content: object) -> str:
    """The text of a content field: a string, or a list of text parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return ""


def _thinking(body: Mapping[str, Any]) -> bool:
    reasoning = _object(body, "reasoning")
    return not (
        reasoning.get("enabled") is False
        or "none" in (reasoning.get("effort"), body.get("reasoning_effort"))
        or _object(body, "chat_template_kwargs").get("thinking") is False
        or _object(body, "thinking").get("type") == "disabled"
    )


def _object(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = body.get(key)
    return value if isinstance(value, dict) else {}
