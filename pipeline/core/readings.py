"""An answer -> its readings worth weighing against the token count: the plain one, single departures.

A reading is a whole completion. The plain one takes the fields as they are; a departure changes
one thing, and only where a field shows damage or the count can point to it (cases/README). Whitespace
is never a departure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from pipeline.config import Profile
from pipeline.core.contradictions import CALL_REASONS, LENGTH_REASONS
from pipeline.core.grammar import Call, CompiledGrammar, Fields, Form, Piece, text_piece
from pipeline.records import Answer, Ending

_STOP = frozenset({"stop", "eos", "eos_token", "end_turn"})
_CALLS, _LENGTH = CALL_REASONS, LENGTH_REASONS
_MOST_SPLITS = 8
_SHOWN_EMPTY = ("{}", "null")  # what servers put where the model wrote nothing
_LENGTH_CAPS = frozenset({128 << power for power in range(11)}) | frozenset(range(1000, 128_001, 1000))


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read the answer. `name` says what it departs in ("plain": in nothing)."""

    name: str
    pieces: tuple[Piece, ...]
    ending: Ending
    flags: tuple[str, ...] = ()
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """What the readings of one answer depend on, beside the answer."""

    answer: Answer
    request: Mapping[str, Any]
    profile: Profile
    grammar: CompiledGrammar


def ending_of(answer: Answer) -> Ending | None:
    """The ending that the finish reason states; None if it is missing or says nothing we know."""
    reason = answer.finish_reason or ""
    if reason in _LENGTH:
        return Ending.LENGTH
    if reason in _CALLS or (reason in _STOP and answer.tool_calls):
        return Ending.TOOL_CALLS
    return Ending.STOP if reason in _STOP else None


def plain_readings(context: Context) -> list[Reading]:
    """The plain reading; two where the profile itself leaves two (empty arguments shown as braces)."""
    answer, grammar = context.answer, context.grammar
    ending = ending_of(answer) or (Ending.TOOL_CALLS if answer.tool_calls else Ending.STOP)
    rebuilt = context.profile.rewrites_ids and bool(answer.tool_calls)
    calls = calls_of(context, rebuild=rebuilt)
    flags = (("id_rebuilt",) if rebuilt else ()) + _notes(context, ending)
    missing = ending_of(answer) is None  # then the count alone says that the end token came
    if missing:
        flags = (*flags, "finish_missing")
    base = _fields(context, calls)
    raw = _raw_content(context, cut=ending is Ending.LENGTH)
    if raw is not None:
        flags = (*flags, "markers_in_content")
        base = replace(base, content=raw)
    form = _cut_form(context, base) if ending is Ending.LENGTH else Form(ending)
    objects = any(call.arguments_rewritten for call in answer.tool_calls)
    if objects:
        flags = (*flags, "arguments_object")
    repaired = rebuilt or raw is not None or objects or missing
    readings = [Reading("plain", grammar.write(base, form), ending, flags, repaired)]
    if context.profile.empty_arguments == "braces" and any(call.arguments == "{}" for call in calls):
        emptied = replace(
            base, calls=tuple(replace(c, arguments="") if c.arguments == "{}" else c for c in calls)
        )
        readings.append(
            Reading(
                "arguments_empty", grammar.write(emptied, form), ending, (*flags, "arguments_empty"), True
            )
        )
    return readings


def departures(context: Context, count: int) -> Iterator[Reading]:
    """Single departures from the plain reading that this answer, or its count, gives reason for."""
    yield from _ending_departures(context, count)
    yield from _reasoning_departures(context)
    yield from _call_departures(context)
    yield from _leak_departures(context)


# --- building blocks --------------------------------------------------------------------------


def _fields(context: Context, calls: Sequence[Call] | None = None) -> Fields:
    answer = context.answer
    return Fields(
        text_piece("reasoning", answer.reasoning),
        text_piece("content", answer.content),
        tuple(calls_of(context) if calls is None else calls),
    )


def calls_of(context: Context, *, rebuild: bool = False) -> list[Call]:
    """The calls as the fields give them, or with the ids that the model itself would have written."""
    if not context.answer.tool_calls:
        return []
    before = calls_before(context.request)
    grammar = context.grammar
    return [
        Call(
            grammar.native_id(call.name, before + i) if rebuild else call.id or "", call.name, call.arguments
        )
        for i, call in enumerate(context.answer.tool_calls)
    ]


def calls_before(request: Mapping[str, Any]) -> int:
    """Calls that the conversation already holds: the model counts on from there."""
    return sum(len(message.get("tool_calls") or []) for message in request.get("messages") or [])


def _raw_content(context: Context, *, cut: bool) -> tuple[Piece, ...] | None:
    """Content with raw tool sections; where structured calls came too, markup in content is plain text."""
    if context.answer.tool_calls:
        return None
    return context.grammar.split_raw_sections("content", context.answer.content, cut=cut)


def _cut_form(context: Context, fields: Fields) -> Form:
    """A cut inside the last call leaves its closing marks out; a cut in text has none anyway."""
    return Form(Ending.LENGTH, call_marks=0 if fields.calls else None)


def _notes(context: Context, ending: Ending) -> tuple[str, ...]:
    answer = context.answer
    notes = []
    if ending is Ending.LENGTH:
        notes.append("truncated")
    if not answer.reasoning and context.grammar.thinking:
        notes.append("empty_reasoning")
    if answer.encrypted:
        notes.append("encrypted_part_ignored")
    return tuple(notes)


# --- departures ---------------------------------------------------------------------------------


def _ending_departures(context: Context, count: int) -> Iterator[Reading]:
    answer, grammar = context.answer, context.grammar
    stated = ending_of(answer)
    fields = _fields(context)
    raw = _raw_content(context, cut=True)
    if raw is not None:
        fields = replace(fields, content=raw)
    if stated is Ending.LENGTH:
        yield from _cut_departures(context, fields, count)
        return
    missing = stated is None
    # A provider that hides its own cap reports `stop`; only a count at a cap is reason to believe so.
    at_cap = count in _LENGTH_CAPS or count == _max_tokens(context.request)
    if missing or at_cap or answer.native_finish_reason in _LENGTH:
        why = "finish_missing" if missing else "finish_rewritten"
        flags = (*_notes(context, Ending.LENGTH), why)
        for marks in range(grammar.closing_marks + 1) if fields.calls else [None]:
            form = Form(Ending.LENGTH, call_marks=marks)
            yield Reading(why, grammar.write(fields, form), Ending.LENGTH, flags, True)
        if not fields.calls and fields.content:  # everything but the end token
            form = Form(Ending.STOP, end_token=False)
            yield Reading(why, grammar.write(fields, form), Ending.LENGTH, flags, True)


def _cut_departures(context: Context, fields: Fields, count: int) -> Iterator[Reading]:
    """Finish reason length, and the cut lies elsewhere than right after the last text."""
    answer, grammar = context.answer, context.grammar
    flags = ("truncated",)
    if fields.calls:
        # A call is closed after whole arguments, or none; else the count may as well come from the text.
        closable = not fields.calls[-1].arguments or _is_json(fields.calls[-1].arguments)
        for marks in range(1, grammar.closing_marks + 1) if closable else ():
            form = Form(Ending.LENGTH, call_marks=marks)
            yield Reading("call_closed_by_count", grammar.write(fields, form), Ending.LENGTH, flags, True)
        if not fields.calls[-1].arguments:  # the cut may lie before the mark that opens the arguments
            form = Form(Ending.LENGTH, call_marks=-1)
            yield Reading("cut_in_call_id", grammar.write(fields, form), Ending.LENGTH, flags, True)
        # A next call may have been opened and cut before its first letter, so that no parser shows it.
        first = grammar.section.call[0] if grammar.section else None
        if isinstance(first, str) and closable:
            closed = grammar.write(fields, Form(Ending.LENGTH, call_marks=grammar.closing_marks - 1))
            opened = (*closed, Piece("marker", token=first))
            yield Reading("next_call_opened", opened, Ending.LENGTH, flags, True)
    elif (
        fields.reasoning
        and not fields.content
        and answer.usage.reasoning_tokens == count - 1
        and grammar.think_end
    ):
        # Count and reasoning_tokens agree that one more token came: the one that closes reasoning.
        closed = (*grammar.write(fields, Form(Ending.LENGTH)), Piece("marker", token=grammar.think_end))
        yield Reading("think_end_by_count", closed, Ending.LENGTH, (*flags, "think_end_by_count"), True)
    if answer.native_finish_reason in _STOP | _CALLS:
        ending = Ending.TOOL_CALLS if fields.calls else Ending.STOP
        yield Reading(
            "finish_rewritten", grammar.write(fields, Form(ending)), ending, ("finish_rewritten",), True
        )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _reasoning_departures(context: Context) -> Iterator[Reading]:
    answer, grammar = context.answer, context.grammar
    ending = ending_of(answer) or Ending.STOP
    if _is_inline(context):
        yield from _inline_departures(context, ending)
        return
    if not grammar.thinking or grammar.think_end is None:
        return
    if not answer.reasoning and ending is Ending.LENGTH and answer.content and not answer.tool_calls:
        fields = Fields(reasoning=text_piece("reasoning", answer.content))
        flags = ("truncated", "reasoning_in_content")
        yield Reading("reasoning_in_content", grammar.write(fields, Form(ending)), ending, flags, True)
    # A section that opens inside reasoning: then no content stands between (vllm#32216).
    if answer.tool_calls and not answer.content:
        fields = _fields(context)
        form = replace(_form(context, ending, fields), think_end=False)
        yield Reading("think_end_absent", grammar.write(fields, form), ending, ("think_end_absent",), True)
    raw = _raw_content(context, cut=ending is Ending.LENGTH)
    if raw is not None and raw[0].token is not None:
        fields = Fields(text_piece("reasoning", answer.reasoning), raw)
        form = replace(_form(context, ending, fields), think_end=False)
        yield Reading("think_end_absent", grammar.write(fields, form), ending, ("think_end_absent",), True)
    raw = grammar.split_raw_sections("reasoning", answer.reasoning, cut=ending is Ending.LENGTH)
    if raw is not None and not answer.content and not answer.tool_calls:
        pieces = grammar.write(Fields(reasoning=raw), Form(ending, think_end=False))
        yield Reading("tools_in_reasoning", pieces, ending, ("tools_in_reasoning",), True)


def _is_inline(context: Context) -> bool:
    """No reasoning field, and the token that closes reasoning stands in content, letter by letter."""
    answer, think_end = context.answer, context.grammar.think_end
    return bool(
        context.grammar.thinking and think_end and not answer.reasoning and think_end in answer.content
    )


def _inline_departures(context: Context, ending: Ending) -> Iterator[Reading]:
    """Reasoning and answer in one field. With several marks each may be the real one, the others text."""
    answer, grammar = context.answer, context.grammar
    assert grammar.think_end is not None
    parts = answer.content.split(grammar.think_end)
    for real in range(1, min(len(parts), _MOST_SPLITS + 1)):
        before, after = grammar.think_end.join(parts[:real]), grammar.think_end.join(parts[real:])
        before = before.removeprefix(grammar.settings.reasoning_open or "")
        raw = (
            None
            if answer.tool_calls
            else grammar.split_raw_sections("content", after, cut=ending is Ending.LENGTH)
        )
        content = text_piece("content", after) if raw is None else raw
        fields = Fields(text_piece("reasoning", before), content, tuple(calls_of(context)))
        pieces = grammar.write(fields, _form(context, ending, fields))
        if ending is Ending.LENGTH and not after and not fields.calls:
            pieces = (*pieces, Piece("marker", token=grammar.think_end))
        yield Reading("split_by_us", pieces, ending, ("split_by_us",), True)


def _form(context: Context, ending: Ending, fields: Fields) -> Form:
    return _cut_form(context, fields) if ending is Ending.LENGTH else Form(ending)


def _call_departures(context: Context) -> Iterator[Reading]:
    answer, grammar = context.answer, context.grammar
    if not answer.tool_calls or grammar.section is None:
        return
    ending = ending_of(answer) or Ending.TOOL_CALLS
    calls = calls_of(context)

    def reading(name: str, changed: Sequence[Call]) -> Reading:
        fields = _fields(context, changed)
        return Reading(name, grammar.write(fields, _form(context, ending, fields)), ending, (name,), True)

    if any(not grammar.is_native_id(call) for call in calls):
        yield reading("id_rebuilt", calls_of(context, rebuild=True))
    for style in _json_styles(calls, objects=any(call.arguments_rewritten for call in answer.tool_calls)):
        yield reading("arguments_rebuilt", style)
    shown = [number for number, call in enumerate(calls) if call.arguments in _SHOWN_EMPTY]
    for emptied in _subsets(shown):
        changed = [replace(c, arguments="") if n in emptied else c for n, c in enumerate(calls)]
        yield reading("arguments_empty", changed)
    if not all(call.arguments for call in calls):
        yield reading("arguments_braces", [replace(c, arguments=c.arguments or "{}") for c in calls])


def _subsets(numbers: Sequence[int]) -> Iterator[frozenset[int]]:
    """Every choice of them but the empty one; of many only all together."""
    if len(numbers) > _MOST_SPLITS // 2:
        yield frozenset(numbers)
        return
    for size in range(1, len(numbers) + 1):
        yield from map(frozenset, combinations(numbers, size))


def _json_styles(calls: Sequence[Call], *, objects: bool) -> Iterator[list[Call]]:
    """The same JSON in the other layouts that a model may have written.

    Only where a server has rewritten it: it came as an object, or it has exactly the layout of
    `json.dumps`, which servers that parse and dump arguments leave behind (vLLM's argument coercion).
    """
    if not all(_is_json(call.arguments) for call in calls):
        return
    values = [json.loads(call.arguments) for call in calls]
    dumped = [json.dumps(value, ensure_ascii=False) for value in values]
    if not objects and dumped != [call.arguments for call in calls]:
        return
    for ascii_only in (False, True):
        for separators in ((",", ":"), (", ", ": ")):
            texts = [json.dumps(value, ensure_ascii=ascii_only, separators=separators) for value in values]
            if texts != [call.arguments for call in calls]:
                yield [replace(call, arguments=text) for call, text in zip(calls, texts, strict=True)]


def _leak_departures(context: Context) -> Iterator[Reading]:
    """Marks that an API left in a text field although the model wrote them as tokens."""
    answer, grammar = context.answer, context.grammar
    if not grammar.has_marker(answer.reasoning) and not grammar.has_marker(answer.content):
        return
    ending = ending_of(answer) or (Ending.TOOL_CALLS if answer.tool_calls else Ending.STOP)

    def reading(name: str, reasoning: Sequence[Piece], content: Sequence[Piece]) -> Reading:
        fields = Fields(tuple(reasoning), tuple(content), tuple(calls_of(context)))
        return Reading(name, grammar.write(fields, _form(context, ending, fields)), ending, (name,), True)

    bare = strip_leaks(answer, grammar)
    if bare != answer:
        yield reading(
            "leaked_mark_dropped",
            text_piece("reasoning", bare.reasoning),
            text_piece("content", bare.content),
        )
    ends = tuple(grammar.settings.end_tokens.values())
    inner = grammar.split_markers("reasoning", bare.reasoning), grammar.split_markers("content", bare.content)
    if not _is_inline(context) and not any(piece.token in ends for field in inner for piece in field):
        yield reading("markers_leaked", *inner)
    raw = grammar.split_raw_sections("content", answer.content, cut=ending is Ending.LENGTH)
    if raw is not None and answer.tool_calls:  # the same calls twice: raw and parsed
        pieces = grammar.write(Fields(text_piece("reasoning", answer.reasoning), raw), Form(ending))
        yield Reading("calls_given_twice", pieces, ending, ("calls_given_twice",), True)
    elif raw is not None and not context.profile.space_join:  # under it the joiner spaces are already undone
        texts = text_piece("reasoning", answer.reasoning), text_piece("content", answer.content)
        yield reading("markers_are_text", *texts)


def strip_leaks(answer: Answer, grammar: CompiledGrammar) -> Answer:
    """Without the marks that stand where the grammar writes them itself: one at an edge of a field."""
    content, reasoning = answer.content, answer.reasoning
    for token in dict.fromkeys(grammar.settings.end_tokens.values()):
        if content.endswith(token):
            content = content.removesuffix(token)
        elif not content:
            reasoning = reasoning.removesuffix(token)
    if grammar.think_end and reasoning:
        content = content.removeprefix(grammar.think_end)
        reasoning = reasoning.removesuffix(grammar.think_end)
    return replace(
        answer, content=content, reasoning=reasoning.removeprefix(grammar.settings.reasoning_open or "")
    )


def _max_tokens(request: Mapping[str, Any]) -> int | None:
    value = request.get("max_completion_tokens") or request.get("max_tokens")
    return value if isinstance(value, int) else None
