"""Messages and tools of a request -> the same in one shape, or UnrenderableRequest with the reason.

Prompt sets bring nulls, two names for reasoning, lists of text parts. Templates differ in what they
do with those (a null prints "None" in some), servers drop nulls before they render. So: null means
absent, `reasoning` becomes `reasoning_content`, and what can't be told apart from a mistake is refused
here, with the place named, before anything is paid for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Message = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")


class UnrenderableRequest(ValueError):
    """This request has no prompt; the message says where and why, and becomes the reject's detail."""


def read_messages(request: Mapping[str, Any]) -> list[Message]:
    """The request's messages: known fields checked, nulls gone (`content` always there, maybe None)."""
    messages = request.get("messages")
    if not isinstance(messages, list | tuple) or not messages:
        raise UnrenderableRequest("messages: an array with at least one message is needed")
    return [_message(one, f"messages[{number}]") for number, one in enumerate(messages)]


def read_tools(request: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """The request's tools as they are; None for none."""
    tools = request.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
        raise UnrenderableRequest("tools: an array of objects is needed")
    return list(tools) or None


def change_texts(messages: Sequence[Message], change: Callable[[str], str]) -> list[Message]:
    """Copies of read messages with every text of the caller's changed (roles and keys are no texts)."""

    def changed(record: Message, *names: str) -> Message:
        return {
            name: change_values(value, change) if name in names else value for name, value in record.items()
        }

    copies = []
    for message in messages:
        copy = changed(message, "name", "reasoning_content", "tool_call_id")
        if isinstance(copy["content"], list):
            copy["content"] = [changed(part, "text") for part in copy["content"]]
        else:
            copy["content"] = change_values(copy["content"], change)
        if "tool_calls" in copy:
            copy["tool_calls"] = [
                {**changed(call, "id"), "function": changed(call["function"], "name", "arguments")}
                for call in copy["tool_calls"]
            ]
        copies.append(copy)
    return copies


def change_values(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with every text in it changed, keys left alone."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: change_values(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [change_values(one, change) for one in value]
    return value


def _present(record: Any, place: str) -> Message:
    if not isinstance(record, Mapping):
        raise UnrenderableRequest(f"{place}: an object is needed, got {type(record).__name__}")
    return {name: value for name, value in record.items() if value is not None}


def _check_text(record: Message, name: str, place: str) -> None:
    if not isinstance(record.get(name, ""), str):
        raise UnrenderableRequest(f"{place}.{name}: text is needed, got {type(record[name]).__name__}")


def _message(raw: Any, place: str) -> Message:
    message = _present(raw, place)
    role = message.get("role")
    if role not in ROLES:
        raise UnrenderableRequest(f"{place}.role: {role!r} is not one of {', '.join(ROLES)}")
    for name in ("name", "tool_call_id"):
        _check_text(message, name, place)
    message["content"] = _content(message.get("content"), f"{place}.content")
    if role == "assistant":
        _merge_reasoning(message, place)
        if message.get("function_call"):
            raise UnrenderableRequest(f"{place}.function_call: old form, templates lose it; use tool_calls")
        if "tool_calls" in message:
            message["tool_calls"] = _calls(message["tool_calls"], f"{place}.tool_calls")
    else:
        message.pop("tool_calls", None)
    return message


def _content(content: Any, place: str) -> str | list[Message] | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise UnrenderableRequest(
            f"{place}: text or an array of parts is needed, got {type(content).__name__}"
        )
    parts = []
    for number, raw in enumerate(content):
        part = _present(raw, f"{place}[{number}]")
        if part.get("type") != "text":
            raise UnrenderableRequest(
                f"{place}[{number}]: only text can be rendered, this part is {part.get('type')!r}"
            )
        if not isinstance(part.get("text"), str):
            raise UnrenderableRequest(f"{place}[{number}].text: text is needed")
        parts.append(part)
    return parts


def _merge_reasoning(message: Message, place: str) -> None:
    """Servers name the field either way; which of two different texts they rendered can't be known."""
    names = ("reasoning_content", "reasoning")
    for name in names:
        _check_text(message, name, place)
    texts = [text for text in (message.pop(name, "") for name in names) if text]
    if len(set(texts)) > 1:
        raise UnrenderableRequest(f"{place}: reasoning_content and reasoning differ; keep one")
    if texts:
        message["reasoning_content"] = texts[0]
    elif message.get("reasoning_details"):
        raise UnrenderableRequest(
            f"{place}.reasoning_details: stands alone; put the text into reasoning_content"
        )


def _calls(calls: Any, place: str) -> list[Message]:
    if not isinstance(calls, list | tuple):
        raise UnrenderableRequest(f"{place}: an array is needed, got {type(calls).__name__}")
    read = []
    for number, raw in enumerate(calls):
        at = f"{place}[{number}]"
        call = _present(raw, at)
        _check_text(call, "id", at)
        call["function"] = function = _present(call.get("function"), f"{at}.function")
        _check_text(function, "name", f"{at}.function")
        if "arguments" not in function:
            raise UnrenderableRequest(
                f"{at}.function.arguments: missing; a call without any has an empty text"
            )
        read.append(call)
    return read
