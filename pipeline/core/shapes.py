"""A source row + its mapping -> raw messages and tools in OpenAI form, or Refused with the reason.

Only the form is read here: what the messages must keep to is the business of `pipeline.core.prompts`.
Columns may hold JSON as text (CSV has nothing else, and Parquet files often keep tools so).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from collections.abc import Mapping as Map
from typing import Any

from pipeline.config import Mapping

Message = dict[str, Any]
Row = Map[str, Any]


class Refused(ValueError):
    """This row gives no prompt: `reason` is a short label to count by, the text says where and what."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


# Names that exports of chats use in `from`; what is not here keeps its name and is refused as a role.
_SPEAKERS = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function_response": "tool",
    "observation": "tool",
}


def read_row(row: Row, mapping: Mapping) -> tuple[list[Any], list[Message] | None]:
    """Messages as the row has them, system message of the mapping in front, and its tools."""
    messages, tools = _SHAPES[mapping.shape](row, mapping)
    if mapping.tools_field is not None:
        tools = read_tools(row.get(mapping.tools_field)) or tools
    # A blank system message says nothing: sets that fill the column for every row mean "none" by it.
    messages = [one for one in messages if not _is_blank_system(one)]
    if mapping.system is not None and not any(_is_system(one) for one in messages):
        messages = [{"role": "system", "content": mapping.system}, *messages]
    return messages, tools


def _is_system(message: Any) -> bool:
    return isinstance(message, Map) and message.get("role") in ("system", "developer")


def _is_blank_system(message: Any) -> bool:
    if not _is_system(message):
        return False
    content = message.get("content")
    return content is None or (isinstance(content, str) and not content.strip())


def read_tools(value: Any) -> list[Message] | None:
    """Tools as a list of `{"type": "function", "function": {...}}`; bare definitions are wrapped."""
    value = _parsed(value, "tools", "bad_tools")
    if value is None or value == "" or value == []:
        return None
    if not isinstance(value, list | tuple):
        raise Refused("bad_tools", f"tools: an array is needed, got {type(value).__name__}")
    return [_tool(one, f"tools[{number}]") for number, one in enumerate(value)]


def _tool(value: Any, place: str) -> Message:
    value = _parsed(value, place, "bad_tools")
    if not isinstance(value, Map):
        raise Refused("bad_tools", f"{place}: an object is needed, got {type(value).__name__}")
    tool = dict(value) if "function" in value else {"type": "function", "function": dict(value)}
    function = tool["function"]
    if not isinstance(function, Map) or not isinstance(function.get("name"), str) or not function["name"]:
        raise Refused("bad_tools", f"{place}: a function with a name is needed")
    if not isinstance(function.get("parameters", {}), Map | None):
        raise Refused("bad_tools", f"{place}.parameters: an object is needed (a JSON Schema)")
    if tool.get("type", "function") != "function":
        raise Refused("bad_tools", f"{place}.type: {tool['type']!r}; only functions can be declared")
    return {"type": "function", **tool}


def _parsed(value: Any, place: str, reason: str) -> Any:
    """JSON text as its value; anything else, and no text at all, as it is."""
    if not isinstance(value, str) or not value.strip():
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as broken:
        raise Refused(reason, f"{place}: a text that is no JSON ({broken})") from None


def _column(row: Row, name: str) -> Any:
    if row.get(name) is None:
        there_are = ", ".join(map(repr, row))
        raise Refused("missing_field", f"no {name!r} in the row (mapping.field); there are: {there_are}")
    return row[name]


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise Refused("not_text", f"{place}: text is needed, got {type(value).__name__}")
    return value


def _list(row: Row, name: str) -> list[Any]:
    value = _parsed(_column(row, name), name, "bad_json")
    if not isinstance(value, list | tuple):
        raise Refused("not_a_list", f"{name}: an array is needed, got {type(value).__name__}")
    return list(value)


Read = tuple[list[Any], list[Message] | None]


def _messages(row: Row, mapping: Mapping) -> Read:
    return _list(row, mapping.field or "messages"), None


def _conversations(row: Row, mapping: Mapping) -> Read:
    """`from` and `value`; a system column beside them is what some exports have."""
    name = mapping.field or "conversations"
    messages = _system_column(row)
    for number, turn in enumerate(_list(row, name)):
        place = f"{name}[{number}]"
        if not isinstance(turn, Map) or "from" not in turn:
            raise Refused("bad_message", f"{place}: an object with `from` and `value` is needed")
        text = _text(turn.get("value"), f"{place}.value")
        speaker = str(turn["from"])
        if speaker == "function_call":
            messages.append(_function_call(text, place))
        else:
            messages.append({"role": _SPEAKERS.get(speaker, speaker), "content": text})
    return messages, None


def _function_call(text: str, place: str) -> Message:
    """A turn of its own whose text is one call, or an array of calls that run side by side."""
    calls = _parsed(text, place, "bad_tool_call")
    calls = calls if isinstance(calls, list) else [calls]
    if not all(isinstance(call, Map) and isinstance(call.get("name"), str) for call in calls):
        raise Refused("bad_tool_call", f"{place}: a call with `name` and `arguments` is needed")
    functions = [{"name": call["name"], "arguments": call.get("arguments", {})} for call in calls]
    return {"role": "assistant", "content": None, "tool_calls": [{"function": one} for one in functions]}


def _alpaca(row: Row, mapping: Mapping) -> Read:
    """The input is what the instruction is about; earlier turns stand in `history` as pairs."""
    messages = _system_column(row)
    for number, pair in enumerate(_list(row, "history") if row.get("history") else []):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise Refused("bad_message", f"history[{number}]: a pair of request and answer is needed")
        messages.append({"role": "user", "content": _text(pair[0], f"history[{number}][0]")})
        messages.append({"role": "assistant", "content": _text(pair[1], f"history[{number}][1]")})
    name = mapping.field or "instruction"
    instruction = _text(_column(row, name), name)
    about = _text(row.get("input") or "", "input")
    content = f"{instruction}\n\n{about}" if about.strip() else instruction
    return [*messages, {"role": "user", "content": content}], None


def _system_column(row: Row) -> list[Any]:
    return [{"role": "system", "content": _text(row["system"], "system")}] if row.get("system") else []


def _one_text(row: Row, mapping: Mapping) -> Read:
    name = mapping.field or "text"
    return [{"role": "user", "content": _text(_column(row, name), name)}], None


def _turns(row: Row, mapping: Mapping) -> Read:
    name = mapping.field or "turns"
    texts = [_text(turn, f"{name}[{number}]") for number, turn in enumerate(_list(row, name))]
    return [{"role": "user", "content": text} for text in texts], None


def _glaive(row: Row, mapping: Mapping) -> Read:
    name = mapping.field or "chat"
    system, functions = _glaive_system(_text(row.get("system") or "", "system"))
    messages = [{"role": "system", "content": system}, *_glaive_chat(_text(_column(row, name), name))]
    return messages, read_tools(functions)


# glaive: one text with `USER:`, `ASSISTANT:`, `FUNCTION RESPONSE:`. The system column announces the functions
# and then writes them down as JSON objects one after another. A call is
# `<functioncall> {"name": "f", "arguments": '{...}'}`: its arguments stand in single quotes, so it is no JSON
# as a whole, and they are taken out verbatim.
_ROLES = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}
_LABEL = r"(USER|ASSISTANT|FUNCTION RESPONSE):"
_AFTER_TWO_BLANK_LINES = re.compile(rf"(?:\A\s*|\n\n\n\s*){_LABEL}")
_AT_LINE_START = re.compile(rf"(?:\A|\n)\s*{_LABEL}")
_DECLARED = re.compile(r"functions\b[^{}\[\]]*?-\s*(?=[{\[])")
_ANNOUNCED = re.compile(r",?\s+(?:with|who has|that has|and ha(?:s|ve)) access to\b.*\Z", re.S)
_CALL = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*(?:,\s*"arguments"\s*:\s*(?P<arguments>.*?)\s*)?\}\s*\Z',
    re.S,
)
_END = "<|endoftext|>"


def _glaive_system(text: str) -> tuple[str, list[Any]]:
    """The system message without its announcement of functions, and their definitions."""
    text = text.strip().removeprefix("SYSTEM:").strip()
    found = _DECLARED.search(text)
    if found is None:
        return text, []
    # What is left of "an assistant with access to the following functions. Use them if required -":
    # the request declares them in `tools`, and the template has its own words for that.
    about = _ANNOUNCED.sub("", text[: found.end()])
    if about == text[: found.end()]:
        about = about.rstrip(" \n-")
    elif about and about[-1] not in ".!?":
        about += "."
    return about, _glaive_functions(text, found.end())


def _glaive_functions(text: str, place: int) -> list[Any]:
    decoder, functions = json.JSONDecoder(), []
    while place < len(text):
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as broken:
            raise Refused("bad_tools", f"system: a function definition is no JSON ({broken})") from None
        functions += value if isinstance(value, list) else [value]
        while place < len(text) and (text[place].isspace() or text[place] == ","):
            place += 1
    return functions


def _glaive_chat(text: str) -> list[Message]:
    """The messages. Blanks around each are the format's and not the speaker's."""
    # Two blank lines stand between messages; a pasted transcript inside one then stays whole.
    spaced = len(_AFTER_TWO_BLANK_LINES.findall(text)) > 1
    pieces = (_AFTER_TWO_BLANK_LINES if spaced else _AT_LINE_START).split(text)
    if pieces[0].strip():
        raise Refused("bad_chat", f"chat: begins with {pieces[0].strip()[:40]!r} and not with a speaker")
    return [
        _glaive_message(_ROLES[label], content)
        for label, content in zip(pieces[1::2], pieces[2::2], strict=True)
        if label != "ASSISTANT" or content.replace(_END, "").strip()  # a label that nothing follows
    ]


def _glaive_message(role: str, content: str) -> Message:
    if role != "assistant":
        return {"role": role, "content": content.strip()}
    said, *calls = content.replace(_END, "").split("<functioncall>")
    message: Message = {"role": role, "content": said.strip()}
    if calls:
        message["tool_calls"] = [{"function": _glaive_call(call)} for call in calls]
    return message


def _glaive_call(text: str) -> Message:
    found = _CALL.match(text)
    if found is None:
        raise Refused(
            "bad_tool_call", f"chat: <functioncall> without name and arguments: {text.strip()[:80]!r}"
        )
    arguments = found["arguments"] or "{}"
    try:
        if arguments[0] == arguments[-1] == "'":
            arguments = arguments[1:-1].replace("\\'", "'")  # JSON knows no \'
        elif arguments[0] == '"':
            arguments = json.loads(arguments)
        json.loads(arguments)
        return {"name": json.loads(found[1]), "arguments": arguments}
    except (ValueError, TypeError, RecursionError) as broken:
        raise Refused("bad_tool_call", f"chat: arguments of <functioncall> are no JSON ({broken})") from None


_SHAPES: Map[str, Callable[[Row, Mapping], Read]] = {
    "messages": _messages,
    "conversations": _conversations,
    "alpaca": _alpaca,
    "text": _one_text,
    "turns": _turns,
    "glaive": _glaive,
}
