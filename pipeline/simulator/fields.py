"""Native ids + a provider's habits -> message and finish reason, with all that the provider loses.

Ids are walked once into runs of text between structural tokens; habits then say how a run looks.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from pipeline.simulator.chance import Chance
from pipeline.simulator.native import Generation
from pipeline.simulator.profile import Habits
from pipeline.simulator.vocabulary import (
    ARGUMENTS,
    CALL,
    CALL_END,
    END,
    SECTION,
    SECTION_END,
    THINK,
    THINK_END,
    name,
    to_bytes,
)

_ZONE_AFTER = {
    THINK_END: "content",
    SECTION: "section",
    CALL: "call_id",
    ARGUMENTS: "arguments",
    CALL_END: "section",
    SECTION_END: "after",
    END: "end",
}


@dataclass(frozen=True, slots=True)
class Run:
    """Ids of text between two structural tokens; `right` None: nothing came after it."""

    zone: str
    left: int
    right: int | None
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """What the API shows: the message's fields, and how it says that it ended."""

    reasoning: str
    content: str
    calls: tuple[dict[str, Any], ...]
    finish_reason: str
    native_finish_reason: str
    reasoning_tokens: int


def walk(ids: tuple[int, ...], *, thinking: bool) -> list[Run]:
    """The prompt's last token stands on the left of the first run."""
    runs: list[Run] = []
    zone, left = ("reasoning", THINK) if thinking else ("content", THINK_END)
    start = 0
    for at, token_id in enumerate(ids):
        if token_id in _ZONE_AFTER:
            runs.append(Run(zone, left, token_id, ids[start:at]))
            zone, left, start = _ZONE_AFTER[token_id], token_id, at + 1
    if left != END:
        runs.append(Run(zone, left, None, ids[start:]))
    return runs


def show(generation: Generation, habits: Habits) -> Shown:
    """What this provider makes of this generation."""
    asked, native = generation.asked, generation.native
    leaks = native.ending != "length" and Chance(generation.key, "leak").happens(habits.leaked_end)
    view = _View(habits, walk(native.ids, thinking=asked.thinking), end_visible=leaks)
    reasoning, content = view.reasoning_and_content(thinking=asked.thinking)
    calls = view.calls(asked.calls_so_far, generation.key)
    cut_in_calls = native.ending == "length" and bool(calls) and not view.section_closed
    finish = native.ending
    if finish == "tool_calls" and habits.calls == "raw":
        finish = habits.raw_finish
    if cut_in_calls and habits.cut_call == "shown_as_finished":
        finish = "tool_calls"
    return Shown(
        reasoning=reasoning,
        content=content,
        calls=tuple(calls),
        finish_reason=finish,
        native_finish_reason="length" if native.ending == "length" else finish,
        reasoning_tokens=sum(len(run.ids) for run in view.runs if run.zone == "reasoning"),
    )


class _View:
    def __init__(self, habits: Habits, runs: list[Run], *, end_visible: bool) -> None:
        self.runs = runs
        self._habits = habits
        self._end_visible = end_visible
        self._joins = habits.whitespace in ("space_join", "space_join_rstrip")

    @property
    def section_closed(self) -> bool:
        return any(run.right == SECTION_END for run in self.runs)

    def reasoning_and_content(self, *, thinking: bool) -> tuple[str, str]:
        habits = self._habits
        reasoning = "".join(self._text(run) for run in self.runs if run.zone == "reasoning")
        closed = any(run.right == THINK_END for run in self.runs)
        content = self._content()
        if habits.split_by == "text" and thinking:
            mark = name(THINK_END)
            whole = reasoning + (mark if closed else "") + content
            if mark in whole:
                reasoning, _, content = whole.partition(mark)
        if habits.whitespace == "space_join_rstrip":
            reasoning = reasoning.rstrip()
            if habits.calls == "structured" and self._has_section and not content.strip():
                content = ""
        if habits.reasoning_in == "inline" and thinking:
            reasoning, content = "", reasoning + (name(THINK_END) if closed else "") + content
        if habits.whitespace == "strip":
            reasoning, content = reasoning.strip(), content.strip()
        if self._end_visible and (habits.calls == "raw" or not self._has_section):
            content += name(END)
        return reasoning, content

    def calls(self, before: int, key: str) -> list[dict[str, Any]]:
        """Parsed calls, in the order of the section. A call without a letter of its id shows nowhere."""
        if self._habits.calls == "raw":
            return []
        parsed: list[tuple[str, str, bool]] = []
        for run in self.runs:
            if run.zone == "call_id":
                parsed.append((self._argument_text(run), "", False))
            elif run.zone == "arguments":
                parsed[-1] = (parsed[-1][0], self._argument_text(run), run.right == CALL_END)
        return [
            self._call(call_id, arguments, closed, number, before, key)
            for number, (call_id, arguments, closed) in enumerate(parsed)
            if call_id and (closed or self._habits.cut_call != "dropped")
        ]

    def _call(
        self, call_id: str, arguments: str, closed: bool, number: int, before: int, key: str
    ) -> dict[str, Any]:
        function = call_id.removeprefix("functions.").rsplit(":", 1)[0]
        shown = {
            "kept": call_id,
            "rebuilt": f"functions.{function}:{before + number}",
            "call_hex": "call_" + _hex(key, number, 24),
            "chatcmpl_tool": "chatcmpl-tool-" + _hex(key, number, 32),
        }[self._habits.call_ids]
        if self._habits.empty_arguments == "braces" and closed and not arguments.strip():
            arguments = "{}"
        return {
            "id": shown,
            "type": "function",
            "index": number,
            "function": {"name": function, "arguments": arguments},
        }

    def _content(self) -> str:
        """The content run; with raw calls all that follows it, too."""
        text = "".join(self._text(run) for run in self.runs if run.zone == "content")
        if self._habits.calls == "structured":
            return text
        for run in self.runs:
            if run.left in (SECTION, CALL, ARGUMENTS, CALL_END, SECTION_END):
                text += name(run.left) + self._text(run)
        return text

    @property
    def _has_section(self) -> bool:
        return any(run.right == SECTION for run in self.runs)

    def _text(self, run: Run) -> str:
        """As it is, or with one space towards each neighbouring token that stays visible."""
        text = self._decoded(run)
        if not self._joins:
            return text
        right = run.right is not None and (run.right != END or self._end_visible)
        if not text:
            return " " if right else ""
        return f" {text} " if right else f" {text}"

    def _argument_text(self, run: Run) -> str:
        text = self._decoded(run)
        return text if self._habits.whitespace == "verbatim" else text.strip()

    def _decoded(self, run: Run) -> str:
        """Only max_tokens can end a run inside a character."""
        if run.right is None and self._habits.cut_character == "withheld":
            return _whole_tokens(run.ids)
        return to_bytes(run.ids).decode("utf-8", errors="replace")


def _whole_tokens(ids: tuple[int, ...]) -> str:
    """Text up to the last token after which no character is left open (a streaming decoder waits there)."""
    while ids:
        try:
            return to_bytes(ids).decode("utf-8")
        except UnicodeDecodeError:
            ids = ids[:-1]
    return ""


def _hex(key: str, number: int, length: int) -> str:
    return hashlib.sha256(f"{key}/call/{number}".encode()).hexdigest()[:length]


def message_of(shown: Shown, habits: Habits, *, hides_reasoning: bool = False) -> dict[str, Any]:
    """The message object."""
    nothing = None if habits.empty_text == "null" else ""
    message: dict[str, Any] = {"role": "assistant", "content": shown.content or nothing, "refusal": None}
    if not hides_reasoning:
        message |= _reasoning_fields(shown.reasoning, habits, nothing)
    if shown.calls:
        message["tool_calls"] = list(shown.calls)
    return message


def _reasoning_fields(text: str, habits: Habits, nothing: str | None) -> dict[str, Any]:
    details = [
        {
            "type": "reasoning.text",
            "text": text,
            "signature": None,
            "id": None,
            "format": "unknown",
            "index": 0,
        }
    ]
    match habits.reasoning_in:
        case "reasoning" | "reasoning_content" as field:
            return {field: text or nothing}
        case "reasoning_details":
            return {"reasoning_details": details if text else []}
        case "all":
            return {
                "reasoning": text or nothing,
                "reasoning_content": text or nothing,
                "reasoning_details": details if text else [],
            }
    return {}
