"""A source row -> the request that the target is asked (a Prompt), or the reason why there is none.

A prompt is what comes before an answer: answers of the source at its end are dropped (`last`), or all of
them are, and each user turn is answered by the target itself (`each`).
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections.abc import Mapping as Map
from collections.abc import Sequence
from typing import Any

from pipeline.config import Mapping, PromptSettings
from pipeline.core.chat import ROLES, UnrenderableRequest, read_messages
from pipeline.core.shapes import Refused, read_row
from pipeline.records import Prompt

Message = dict[str, Any]

# What a request may say in a message; other columns of a message (weights, time stamps) are the source's
# own, and strict servers refuse a request that holds them. The order is fixed: it is part of the hash.
_FIELDS = ("role", "tool_call_id", "name", "content", "reasoning_content", "tool_calls")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def to_prompt(row: Map[str, Any], position: int, settings: PromptSettings) -> Prompt:
    """The row's prompt. Raises Refused with the reason, and nothing else whatever the row holds."""
    mapping = settings.mapping
    raw, tools = read_row(row, mapping)
    _require_roles(raw)
    cut = _last if settings.turns == "last" else _each
    request, following = cut(raw, mapping)
    messages = _linked([_plain(message) for message in _read(request)])
    later = [_plain(message) for message in _read(following)] if following else []
    for number, message in enumerate([*messages, *later]):
        _require_words(message, f"messages[{number}]")
    source_id = _source_id(row, mapping)
    return Prompt(
        prompt_id=_identify(messages, later, tools, source_id),
        position=position,
        messages=tuple(messages),
        following_turns=tuple(later),
        tools=tuple(tools) if tools else None,
        source_id=source_id,
    )


def sampled(prompt_ids: Sequence[str], count: int, seed: int) -> list[int]:
    """Places of `count` prompts, drawn by seeded hash, in source order.

    A row that is added to the source displaces at most one other.
    """

    def draw(place: int) -> tuple[bytes, int]:
        text = f"{seed}:{prompt_ids[place]}"
        return hashlib.blake2b(text.encode(), digest_size=16).digest(), place

    return sorted(heapq.nsmallest(count, range(len(prompt_ids)), key=draw))


def _require_roles(raw: list[Any]) -> None:
    """Of all messages, the dropped ones too: an unknown role may be one of those that end a request."""
    for number, message in enumerate(raw):
        role = message.get("role") if isinstance(message, Map) else None
        if isinstance(message, Map) and role not in ROLES:
            raise Refused("unknown_role", f"messages[{number}]: {role!r} is not one of {', '.join(ROLES)}")


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Map) else None


def _last(raw: list[Any], mapping: Mapping) -> tuple[list[Any], list[Any]]:
    roles = [_role(message) for message in raw]
    if mapping.shape == "turns" and len(raw) > 1 and roles.count("user") > 1:
        raise Refused("unanswered_turn", "user turns without answers between them: set prompts.turns: each")
    _require_user(roles)
    end = max(number for number, role in enumerate(roles) if role in ("user", "tool"))
    return raw[: end + 1], []


def _each(raw: list[Any], mapping: Mapping) -> tuple[list[Any], list[Any]]:
    roles = [_role(message) for message in raw]
    _require_user(roles)
    if "tool" in roles:
        raise Refused(
            "tool_messages",
            f"messages[{roles.index('tool')}]: a tool result answers a call that the target may not make; "
            "set prompts.turns: last",
        )
    first = roles.index("user")
    for number, role in enumerate(roles[first + 1 :], first + 1):
        if role not in ("user", "assistant"):
            raise Refused(
                "late_system", f"messages[{number}]: {role} after the first user turn; set turns: last"
            )
    return raw[: first + 1], [message for message in raw[first + 1 :] if _role(message) == "user"]


def _require_user(roles: list[Any]) -> None:
    if not roles:
        raise Refused("empty", "messages: there are none")
    if "user" not in roles:
        raise Refused("no_user_message", f"messages: only {', '.join(dict.fromkeys(map(str, roles)))}")


def _read(raw: list[Any]) -> list[Message]:
    try:
        return read_messages({"messages": raw})
    except UnrenderableRequest as broken:
        raise Refused(_label(str(broken).partition(":")[0]), str(broken)) from None


def _label(place: str) -> str:
    """The part of a message that can't be read -> the reason to count it under."""
    if ".tool_calls" in place or place.endswith(".function_call"):
        return "bad_tool_call"
    return "not_text" if "." in place else "bad_message"


def _plain(message: Message) -> Message:
    plain = {name: message[name] for name in _FIELDS if name in message}
    if "tool_calls" not in plain:
        return plain
    calls = [_plain_call(call) for call in plain.pop("tool_calls")]
    return {**plain, "tool_calls": calls} if calls else plain


def _plain_call(call: Message) -> Message:
    """Arguments as text: an object becomes what templates print for it, since APIs take only text."""
    name, arguments = call["function"].get("name"), call["function"]["arguments"]
    if not name:
        raise Refused("bad_tool_call", "tool_calls: a call without a name")
    if isinstance(arguments, Map):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        raise Refused(
            "bad_tool_call", f"{name!r}: arguments are {type(arguments).__name__}, not text or object"
        )
    function = {"name": name, "arguments": arguments}
    return {"id": call.get("id") or "", "type": "function", "function": function}


def _linked(messages: list[Message]) -> list[Message]:
    """Every call answered by a result before anyone else speaks.

    Sources without ids get them: results answer calls in their order. The form is the one that Kimi
    models were trained on; others take any.
    """
    waiting: list[str] = []
    calls = 0
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            call_id = message.get("tool_call_id") or (waiting[0] if waiting else "")
            if call_id not in waiting:
                raise Refused(
                    "orphan_tool_result", f"messages[{number}]: no open call has the id {call_id!r}"
                )
            waiting.remove(call_id)
            message["tool_call_id"] = call_id
            continue
        _require_answered(waiting, f"messages[{number}]")
        for call in message.get("tool_calls", ()):
            call["id"] = call["id"] or f"functions.{call['function']['name']}:{calls}"
            calls += 1
            waiting.append(call["id"])
    _require_answered(waiting, "the end of the request")
    return messages


def _require_answered(waiting: list[str], place: str) -> None:
    if waiting:
        raise Refused("unanswered_tool_call", f"{place}: no result yet for the call {waiting[0]!r}")


def _require_words(message: Message, place: str) -> None:
    """A result may be empty; a request or an answer that says nothing is a fault of the source."""
    content = message["content"]
    texts = [part["text"] for part in content] if isinstance(content, list) else [content or ""]
    speaks = message["role"] in ("user", "assistant") and not message.get("tool_calls")
    if speaks and not any(text.strip() for text in texts):
        raise Refused("empty", f"{place}: the {message['role']} message has no words")


def _source_id(row: Map[str, Any], mapping: Mapping) -> str | None:
    value = row.get(mapping.id_field) if mapping.id_field is not None else None
    return value if value is None or isinstance(value, str) else _json(value)


def _identify(
    messages: list[Message], following: list[Message], tools: list[Message] | None, source_id: str | None
) -> str:
    """Hash of the content, which must be JSON and Unicode text: it is sent and stored as such."""
    content = [messages, following, tools]
    half = _LONE_SURROGATE.search(_json(content)) or _LONE_SURROGATE.search(source_id or "")
    if half is not None:
        raise Refused("lone_surrogate", f"U+{ord(half[0]):04X}: half a character, which no tokenizer takes")
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()[:32]


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as broken:
        raise Refused("bad_json", f"a value that JSON can't hold ({broken})") from None
