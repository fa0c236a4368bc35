"""A complete answer against its own request: what the served provider lost, ignored or made up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.core.answer import UnreadableAnswer, read_answer
from pipeline.records import Action, Answer

# Turn marks of other families (harmony, ChatML, Llama 3, DeepSeek). At the very start of an answer that
# has no reasoning they mean that another model, or none of its parsers, was at work (TensorRT-LLM#9256).
_FOREIGN_TURN = re.compile(
    r"\s*<[|｜](channel|start|message|im_start|start_header_id|begin[_▁]of[_▁]sentence|tool[_▁]calls[_▁]begin|Assistant|assistant)[|｜]>"
)


# A tool section that no parser took out of the text begins like this in the families that have one.
_SECTION = "calls_section_begin"
LENGTH_REASONS = frozenset({"length", "max_tokens", "max_output_tokens", "MAX_TOKENS"})
CALL_REASONS = frozenset({"tool_calls", "function_call", "tool_use"})


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Why the answer must not be used. `keep`: it was paid for and its body stays with the row."""

    action: Action
    reason: str
    flag: str
    keep: bool = True


def find_contradiction(
    body: Mapping[str, Any], request: Mapping[str, Any], *, cache_hit: bool = False
) -> tuple[Answer | None, Contradiction | None]:
    """The answer's fields, if they can be read, and the first contradiction that needs no tokenizer."""
    choice = body["choices"][0]  # read_fault has made sure that there is one
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        return None, Contradiction(Action.RETRY, "the choice has no message", "no_message", keep=False)
    try:
        answer = read_answer(body)
    except UnreadableAnswer as odd:
        return None, Contradiction(Action.FATAL_ROW, f"{odd}: its tokens can't be had", "not_text")
    found = _of_fields(answer, choice["message"]) or _of_calls(answer, request)
    return (read_answer(body, cache_hit=True) if cache_hit else answer), found


def _of_fields(answer: Answer, message: Mapping[str, Any]) -> Contradiction | None:
    if message.get("refusal"):
        return Contradiction(
            Action.FATAL_ROW, "the answer is a refusal field, not text of the model", "refusal"
        )
    empty = not (answer.reasoning or answer.content or answer.tool_calls)
    if empty and not answer.encrypted and not answer.usage.completion_tokens:
        return Contradiction(Action.RETRY, "an empty answer: nothing was generated", "empty", keep=False)
    if "content_filter" in (answer.finish_reason, answer.native_finish_reason):
        action = Action.REROUTE if answer.served_provider else Action.FATAL_ROW
        return Contradiction(action, "the provider's filter cut the answer", "content_filter")
    if answer.encrypted and not answer.has_reasoning_field:
        return Contradiction(
            Action.FATAL_ROW, "the reasoning came only encrypted or as a summary", "reasoning_encrypted"
        )
    if not answer.has_reasoning_field and _FOREIGN_TURN.match(answer.content):
        return Contradiction(
            Action.REROUTE, "the answer is in another family's turn format", "foreign_markers"
        )
    return None


def _of_calls(answer: Answer, request: Mapping[str, Any]) -> Contradiction | None:
    choice = request.get("tool_choice")
    tools = request.get("tools")
    offered = [
        tool["function"].get("name")
        for tool in (tools if isinstance(tools, list) else [])
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
    ]
    reasons = {answer.finish_reason, answer.native_finish_reason}
    if choice == "none" and _SECTION in answer.content:
        return Contradiction(Action.REROUTE, "a raw call, yet tool_choice was none", "tool_choice_ignored")
    if not answer.tool_calls:
        raw = _SECTION in answer.content + answer.reasoning
        if raw or reasons & LENGTH_REASONS:
            return None
        if reasons & CALL_REASONS:
            return Contradiction(Action.REROUTE, "finish_reason says calls and none came", "calls_lost")
        if choice == "required" or isinstance(choice, dict):
            return Contradiction(
                Action.REROUTE, "tool_choice asks for a call, none came", "tool_choice_ignored"
            )
        return None
    if choice == "none":
        return Contradiction(Action.REROUTE, "a call although tool_choice was none", "tool_choice_ignored")
    if (choice == "required" or isinstance(choice, dict)) and not answer.reasoning:
        return Contradiction(
            Action.REROUTE,
            "a forced call without reasoning is not in the model's own format",
            "forced_output",
        )
    named = choice.get("function") if isinstance(choice, dict) else None
    if isinstance(named, dict) and any(call.name != named.get("name") for call in answer.tool_calls):
        return Contradiction(Action.REROUTE, "another tool than asked for was called", "tool_choice_ignored")
    cut = not reasons.isdisjoint(LENGTH_REASONS)
    for number, call in enumerate(answer.tool_calls, 1):
        if cut and number == len(answer.tool_calls):
            continue  # its name may be cut
        if call.name not in offered:
            return Contradiction(Action.FATAL_ROW, f"the tool {call.name!r} was not offered", "unknown_tool")
    return None
