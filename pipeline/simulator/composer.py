"""What is asked + texts -> what the model says: reasoning, content and calls, before any tokenising."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.simulator.arguments import arguments_for
from pipeline.simulator.chance import Chance
from pipeline.simulator.profile import NativeRates
from pipeline.simulator.request import Asked
from pipeline.simulator.texts import Corpus

_JOINERS = {"\n\n": 60.0, "\n": 20.0, " ": 12.0, "": 3.0, "\n\n---\n\n": 5.0}
_LEADS = {"\n": 40.0, " ": 25.0, "\n\n": 25.0, "  ": 5.0, "\t": 5.0}
_TAILS = {"\n": 45.0, " ": 15.0, "\n\n": 25.0, " \n": 10.0, "  ": 5.0}
_CALL_COUNTS = {1: 70.0, 2: 22.0, 3: 8.0}
_MARKERS = (
    "</think>",
    "<think>",
    "<|im_end|>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_section_begin|>",
    "[EOS]",
)
_AFTERTHOUGHTS = ("\n", " Done.", "\n\nI'll wait for the result.")

_CODE = re.compile(
    r"```|\b(?:def|class|function|python|rust|javascript|sql|bash|regex|code|script|bug)\b", re.I
)
_MATH = re.compile(
    r"\d\s*[-+*/^=×]\s*\d|\b(?:solve|prove|integral|equation|probability|how many|percent|sum)\b", re.I
)
_HAN = re.compile(r"[㐀-䶿一-鿿]")


@dataclass(frozen=True, slots=True)
class SaidCall:
    """A call as the model writes it."""

    id: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Said:
    """One whole turn. `notes` name what is unusual about it."""

    reasoning: str
    content: str
    calls: tuple[SaidCall, ...] = ()
    closes_reasoning: bool = True
    """False: the tool section opens without `</think>`."""
    after_calls: str = ""
    notes: tuple[str, ...] = ()


def compose(asked: Asked, rates: NativeRates, corpus: Corpus, chance: Chance) -> Said:
    """The same turn for the same request and chance."""
    notes: list[str] = []
    writer = _Writer(asked, rates, corpus, chance, notes)
    names = _callable(asked)
    calls: tuple[SaidCall, ...] = ()
    if names and _calls_now(asked, rates, chance):
        calls = tuple(
            writer.call(names, asked.calls_so_far + n) for n in range(chance.weighted(_CALL_COUNTS))
        )
    reasoning = writer.reasoning() if asked.thinking else ""
    if calls:
        content = "" if chance.happens(rates.bare_calls) else writer.content()
    else:
        content = "" if reasoning and writer.noted("empty_content", rates.empty_content) else writer.content()
    bare = bool(calls and not content and asked.thinking)
    return Said(
        reasoning=reasoning,
        content=content,
        calls=calls,
        closes_reasoning=not (bare and reasoning and writer.noted("no_think_end", rates.no_think_end)),
        after_calls=chance.pick(_AFTERTHOUGHTS)
        if calls and writer.noted("text_after_calls", rates.text_after_calls)
        else "",
        notes=tuple(dict.fromkeys(notes)),
    )


def _calls_now(asked: Asked, rates: NativeRates, chance: Chance) -> bool:
    choice = asked.body.get("tool_choice")
    if choice == "none":
        return False
    if choice == "required" or isinstance(choice, Mapping):
        return True
    after_result = asked.messages[-1].get("role") == "tool"
    return chance.happens(rates.calls_again if after_result else rates.calls)


def _callable(asked: Asked) -> dict[str, Any]:
    """Name -> schema of the tools that may be called."""
    functions = [tool.get("function") or {} for tool in asked.tools]
    offered = {one["name"]: one.get("parameters") for one in functions if isinstance(one.get("name"), str)}
    choice = asked.body.get("tool_choice")
    if isinstance(choice, Mapping):
        wanted = (choice.get("function") or {}).get("name")
        return {name: schema for name, schema in offered.items() if name == wanted}
    return offered


def topic(asked: Asked) -> str:
    """Which kind of text fits the question."""
    text = asked.last_user_text[:4000]
    if len(_HAN.findall(text)) * 5 > len(text):
        return "chinese"
    if asked.tools:
        return "agentic"
    if _CODE.search(text):
        return "code"
    return "math" if _MATH.search(text) else "chat"


class _Writer:
    def __init__(
        self, asked: Asked, rates: NativeRates, corpus: Corpus, chance: Chance, notes: list[str]
    ) -> None:
        self._rates, self._corpus, self._chance, self._notes = rates, corpus, chance, notes
        self._topic = topic(asked)

    def noted(self, note: str, rate: float) -> bool:
        happens = self._chance.happens(rate)
        if happens:
            self._notes.append(note)
        return happens

    def reasoning(self) -> str:
        if self.noted("empty_reasoning", self._rates.empty_reasoning):
            return ""
        first = self._topic if self._topic == "chinese" and self._chance.happens(0.6) else "reasoning"
        return self._text([(first, self._topic)] + [("reasoning",)] * self._chance.below(3))

    def content(self) -> str:
        return self._text([(self._topic, "chat")] * self._chance.between(1, 2))

    def _text(self, kinds: Sequence[Sequence[str]]) -> str:
        pieces = [self._corpus.pick(kind, self._chance) for kind in kinds]
        if self._corpus.has("hostile") and self.noted("hostile", self._rates.hostile):
            pieces[self._chance.below(len(pieces))] = self._corpus.pick(("hostile",), self._chance)
        if self.noted("literal_marker", self._rates.literal_marker):
            quoted = f"The mark `{self._chance.pick(_MARKERS)}` is only quoted here."
            pieces.insert(self._chance.below(len(pieces) + 1), quoted)
        text = pieces[0]
        for piece in pieces[1:]:
            text += self._chance.weighted(_JOINERS) + piece
        if self._chance.happens(self._rates.edge_whitespace):
            text = self._chance.weighted(_LEADS) + text
        if self._chance.happens(self._rates.edge_whitespace):
            text += self._chance.weighted(_TAILS)
        return text

    def call(self, offered: Mapping[str, Any], index: int) -> SaidCall:
        name = self._chance.pick(list(offered))
        prefix = "" if self.noted("short_call_id", self._rates.short_call_id) else "functions."
        return SaidCall(f"{prefix}{name}:{index}", self._arguments(offered[name]))

    def _arguments(self, schema: Any) -> str:
        if self.noted("empty_arguments", self._rates.empty_arguments):
            return ""
        text = arguments_for(schema, self._rates.borrowed_arguments, self._chance, self._corpus)
        if self.noted("argument_whitespace", self._rates.argument_whitespace):
            return self._chance.pick((f" {text}", f"{text}\n", f"\n{text}"))
        return text
