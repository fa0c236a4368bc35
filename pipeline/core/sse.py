"""Server-sent events of one streamed answer -> the one JSON body that a plain request would have given."""

from __future__ import annotations

import json
from typing import Any

from pipeline.core.faults import stated_error

_TEXT_FIELDS = ("content", "reasoning", "reasoning_content", "thinking", "refusal")


class StreamCut(ValueError):
    """The stream ended, or broke, before the answer was complete; its text must not be used."""


def looks_like_stream(body: str) -> bool:
    """A body whose first meaningful line is an event, whatever was asked for."""
    for line in body.splitlines():
        if line.strip() and not line.startswith(":"):
            return line.startswith(("data:", "event:"))
    return False


def assemble(body: str) -> dict[str, Any]:
    """One `chat.completion` object out of the chunks; a chunk's error becomes the top-level `error`.

    The stream is whole if a finish reason came, or the end mark together with a usage (an end mark
    alone is sent by proxies after a broken upstream too; earendil-works/pi#8460). A missing `[DONE]`
    after a finish reason is harmless. Raises StreamCut otherwise.
    """
    answer: dict[str, Any] = {}
    choice: dict[str, Any] = {"index": 0, "finish_reason": None}
    message: dict[str, Any] = {"role": "assistant"}
    ended = False
    for data in _events(body):
        if data == "[DONE]":
            ended = True
            continue
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError) as broken:
            raise StreamCut(f"an event is no JSON: {broken}") from None
        if not isinstance(chunk, dict):
            raise StreamCut("an event is no JSON object")
        try:
            _merge_chunk(answer, choice, message, chunk)
        except (TypeError, AttributeError, ValueError) as odd:  # a field of another type than the API has
            raise StreamCut(f"an event is no chunk of an answer: {odd}") from None
        if stated_error(answer.get("error")) is not None:
            return answer
    if choice["finish_reason"] is None and not (ended and answer.get("usage")):
        raise StreamCut("the stream ended without a finish reason")
    choice["message"] = {key: _join_surrogates(value) for key, value in message.items()}
    return {**answer, "choices": [choice]}


def _events(body: str) -> list[str]:
    """The data of each event; comments, event names and ids are left out (WHATWG HTML, 9.2.6)."""
    events, data = [], []
    # Only \n, \r and \r\n end a line here: str.splitlines would also cut at U+2028 inside a JSON string.
    for line in [*body.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""]:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            events.append("\n".join(data))
            data = []
    return events


def _merge_chunk(
    answer: dict[str, Any], choice: dict[str, Any], message: dict[str, Any], chunk: dict[str, Any]
) -> None:
    for key, value in chunk.items():
        if key != "choices" and value is not None:
            answer[key] = value
    for part in chunk.get("choices") or []:
        if not isinstance(part, dict) or part.get("index") not in (None, 0):
            continue
        for key in ("finish_reason", "native_finish_reason", "error", "stop_reason"):
            if part.get(key) is not None:
                choice[key] = part[key]
        if part.get("token_ids"):
            choice.setdefault("token_ids", []).extend(part["token_ids"])
        if isinstance(logprobs := part.get("logprobs"), dict) and logprobs.get("content"):
            choice.setdefault("logprobs", {"content": []})["content"].extend(logprobs["content"])
        delta = part.get("delta") or part.get("message") or {}
        if isinstance(delta, dict):
            _merge_delta(message, delta)


def _merge_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for field in _TEXT_FIELDS:
        if isinstance(text := delta.get(field), str):
            message[field] = message.get(field, "") + text
        elif isinstance(text, list):
            message[field] = message.get(field, "") + "".join(
                part.get("text") or "" for part in text if isinstance(part, dict)
            )
    for part in delta.get("reasoning_details") or []:
        _merge_detail(message.setdefault("reasoning_details", []), part)
    for call in delta.get("tool_calls") or []:
        _merge_call(message.setdefault("tool_calls", []), call)


def _merge_detail(details: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Text deltas of one part arrive under one index and type."""
    for known in details:
        if (known.get("type"), known.get("index")) == (part.get("type"), part.get("index")):
            for key, value in part.items():
                if key in ("text", "summary", "data") and isinstance(value, str):
                    known[key] = (known.get(key) or "") + value
                elif value is not None:
                    known[key] = value
            return
    details.append(dict(part))


def _merge_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    index = part.get("index")
    known = next((call for call in calls if index is not None and call.get("index") == index), None)
    if known is None:
        known = {"index": index, "id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        calls.append(known)
    if part.get("id"):
        known["id"] = part["id"]
    function = part.get("function") or {}
    for key in ("name", "arguments"):
        if isinstance(function.get(key), str):
            known["function"][key] += function[key]


def _join_surrogates(value: Any) -> Any:
    """Two halves of one character that came in two deltas as \\ud83d and \\ude00 become that character."""
    if isinstance(value, str):
        return (
            value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
            if _has_surrogate(value)
            else value
        )
    if isinstance(value, list):
        return [_join_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {key: _join_surrogates(item) for key, item in value.items()}
    return value


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)
