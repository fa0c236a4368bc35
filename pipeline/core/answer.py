"""One answer's JSON body -> its fields, text verbatim; null, missing and empty are the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.records import Answer, ToolCall, Usage

_MOST_TOKENS = 1 << 40  # beyond it a count is damage (also Infinity, which JSON parsers let through)
_REASONING_FIELDS = ("reasoning", "reasoning_content", "thinking")


class UnreadableAnswer(ValueError):
    """The message has a shape that holds no text of the model; the argument says which part."""


def read_answer(body: Mapping[str, Any], *, cache_hit: bool = False) -> Answer:
    """Fields of the first choice.

    Raises UnreadableAnswer for content that is not text. `cache_hit`: the all-zero usage of a
    response-cache hit is no count (OpenRouter, response caching).
    """
    choice = body["choices"][0]
    message = choice.get("message") or {}
    content, thinking = _content(message.get("content"))
    details = [part for part in _list(message, "reasoning_details") if isinstance(part, dict)]
    copies = [_text(message, field) for field in _REASONING_FIELDS]
    copies += [_details_text(details), thinking]
    summary = "".join(_text(part, "summary") for part in details if part.get("type") == "reasoning.summary")
    variants = tuple(dict.fromkeys(copy for copy in copies if copy))
    usage, flags = _usage(body, choice)
    if cache_hit and not usage.completion_tokens:
        usage, flags = Usage(), ["cache_hit"]
    return Answer(
        reasoning=variants[0] if variants else "",
        content=content,
        tool_calls=_calls(message),
        finish_reason=_text_or_none(choice.get("finish_reason")),
        native_finish_reason=_text_or_none(choice.get("native_finish_reason")),
        usage=usage,
        reasoning_variants=variants if len(variants) > 1 else (),
        # A summary copied into the reasoning field is not the model's text either.
        has_reasoning_field=bool(variants) and (variants != (summary,) or bool(_details_text(details))),
        encrypted=any(part.get("type") in ("reasoning.encrypted", "reasoning.summary") for part in details),
        native_ids=_ids(
            choice.get("token_ids") or choice.get("response_token_ids") or _sglext(body, "output_ids")
        ),
        native_prompt_ids=_ids(
            body.get("prompt_token_ids") or choice.get("prompt_token_ids") or _sglext(body, "input_ids")
        ),
        served_provider=_text_or_none(body.get("provider")),
        served_model=_text_or_none(body.get("model")),
        flags=tuple(flags),
    )


def model_and_counts(body: Mapping[str, Any] | None) -> tuple[str | None, int | None, int | None]:
    """Served model, prompt tokens and completion tokens of an answer, as far as it tells them."""
    if body is None:
        return None, None, None
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    usage, _ = _usage(body, choice)
    return _text_or_none(body.get("model")), usage.prompt_tokens, usage.completion_tokens


def _content(content: Any) -> tuple[str, str]:
    """Text and reasoning of a content field: a string, null, or a list of parts."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, list):
        raise UnreadableAnswer("content is neither text nor a list of parts")
    text: list[str] = []
    thinking: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            text.append(part)
        elif kind in ("text", "output_text") and "text" in part:
            text.append(_text(part, "text"))
        elif kind in ("thinking", "reasoning"):
            if text:
                raise UnreadableAnswer("content has a reasoning part after its text")
            thinking.append(_text(part, "text") or _text(part, "thinking"))
        else:
            raise UnreadableAnswer(f"content has a part of type {kind!r}")
    return "".join(text), "".join(thinking)


def _list(owner: Mapping[str, Any], field: str) -> list[Any]:
    """A list field; null and missing are empty. A damaged one is not dropped in silence."""
    value = owner.get(field)
    if value is None:
        return []
    if not isinstance(value, list):
        raise UnreadableAnswer(f"{field} is no list")
    return value


def _text(owner: Mapping[str, Any], field: str) -> str:
    value = owner.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UnreadableAnswer(f"{field} is not text")
    return value


def _details_text(details: list[dict[str, Any]]) -> str:
    return "".join(_text(part, "text") for part in details if part.get("type") == "reasoning.text")


def _calls(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    calls = _list(message, "tool_calls")
    if not calls and message.get("function_call"):  # the form before 2023-11
        calls = [{"id": None, "function": message["function_call"]}]
    read = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(name := function.get("name"), str):
            raise UnreadableAnswer("a tool call has no function name")
        arguments = function.get("arguments")
        rewritten = arguments is not None and not isinstance(arguments, str)
        text = json.dumps(arguments, ensure_ascii=False) if rewritten else arguments or ""
        read.append(ToolCall(_text_or_none(call.get("id")), name, text, rewritten))
    return tuple(read)


def _usage(body: Mapping[str, Any], choice: Mapping[str, Any]) -> tuple[Usage, list[str]]:
    """Counts; `count_elsewhere` is flagged when they come from another field than usage.completion_tokens."""
    usage = body.get("usage") or choice.get("usage") or {}
    if not isinstance(usage, dict):
        return Usage(), []
    details = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    prompt = _count(usage, "prompt_tokens", "input_tokens", "native_tokens_prompt")
    reasoning = _count(details, "reasoning_tokens") if isinstance(details, dict) else None
    completion, flags = _count(usage, "completion_tokens"), []
    if not completion:
        completion = _count(usage, "output_tokens", "native_tokens_completion")
        total = _count(usage, "total_tokens")
        if not completion and total and prompt and total > prompt:
            completion = total - prompt
        if completion:
            flags.append("count_elsewhere")
    return Usage(prompt or None, completion or None, reasoning), flags


def _count(usage: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = usage.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if 0 <= value <= _MOST_TOKENS and value == int(value):
            return int(value)
    return None


def _ids(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return tuple(value)
    return None


def _sglext(body: Mapping[str, Any], key: str) -> Any:
    """SGLang's `return_output_ids_in_sglext`: output ids come as one list a choice."""
    value = (body.get("sglext") or {}).get(key) if isinstance(body.get("sglext"), dict) else None
    return value[0] if isinstance(value, list) and value and isinstance(value[0], list) else value


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
