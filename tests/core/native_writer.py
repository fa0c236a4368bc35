"""An independent writer of Kimi-K2.5 completions: structured answer -> native ids -> API fields.

Shares nothing with pipeline.core: its ids come from a bare tiktoken encoding (`reference` in
tests/conftest.py) and from the constants below (vendor's tokenizer_config).
"""

from __future__ import annotations

from dataclasses import dataclass, field

THINK_END, END = 163607, 163586
SECTION, SECTION_END, CALL, ARGUMENT, CALL_END = 163595, 163596, 163597, 163598, 163599
MARKS = {
    THINK_END: "</think>",
    SECTION: "<|tool_calls_section_begin|>",
    SECTION_END: "<|tool_calls_section_end|>",
    CALL: "<|tool_call_begin|>",
    ARGUMENT: "<|tool_call_argument_begin|>",
    CALL_END: "<|tool_call_end|>",
}


@dataclass
class Structured:
    """What the model said."""

    reasoning: str
    content: str
    calls: list[tuple[str, str, str]] = field(default_factory=list)  # id, name, arguments


def native_ids(answer: Structured, reference) -> list[int]:
    """The ids that the model sampled for it."""
    ids = [
        *reference.encode_ordinary(answer.reasoning),
        THINK_END,
        *reference.encode_ordinary(answer.content),
    ]
    if answer.calls:
        ids.append(SECTION)
        for call_id, _, arguments in answer.calls:
            ids += [
                CALL,
                *reference.encode_ordinary(call_id),
                ARGUMENT,
                *reference.encode_ordinary(arguments),
                CALL_END,
            ]
        ids.append(SECTION_END)
    return [*ids, END]


def cut_fields(ids: list[int], reference) -> dict:
    """The fields of a completion that stopped after these ids, as a verbatim server splits them."""
    head, _, rest = _split(ids, THINK_END)
    message = {"reasoning": _text(head, reference), "content": "", "tool_calls": []}
    content, _, section = _split(rest, SECTION)
    message["content"] = _text(content, reference)
    while section:
        _, _, section = _split(section, CALL)
        call, closed, section = _split(section, CALL_END)
        if call:
            call_id, _, arguments = _split(call, ARGUMENT)
            name = _text(call_id, reference).removeprefix("functions.").rsplit(":", 1)[0]
            function = {"name": name, "arguments": _text(arguments, reference)}
            message["tool_calls"].append(
                {"id": _text(call_id, reference), "type": "function", "function": function}
            )
        if not closed:
            break
    return message


def fields(answer: Structured) -> dict:
    """The message of a verbatim server."""
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in answer.calls
    ]
    return {"reasoning": answer.reasoning, "content": answer.content, "tool_calls": calls}


def body(message: dict, ids: list[int], finish: str, **usage) -> dict:
    """The answer body around a message; counts are those of `ids`."""
    return {
        "id": "gen-test",
        "model": "moonshotai/kimi-k2.5",
        "provider": "Test",
        "choices": [
            {"index": 0, "finish_reason": finish, "native_finish_reason": finish, "message": message}
        ],
        "usage": {"completion_tokens": len(ids), **usage},
    }


def _split(ids: list[int], mark: int) -> tuple[list[int], bool, list[int]]:
    if mark in ids:
        at = ids.index(mark)
        return ids[:at], True, ids[at + 1 :]
    return ids, False, []


def _text(ids: list[int], reference) -> str:
    return reference.decode(ids, errors="replace")
