"""Answer + rendered prompt + grammar + profile -> the exact ids, or why they can't be known.

Order of readings (DESIGN 3): native ids that check out; the plain reading under the provider's
profile, if it fits the count; one departure, if exactly one sequence of ids fits; else ambiguous.
A fitting count is evidence, not proof: the report publishes how often it was wrong where ids are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.config import Profile
from pipeline.core.encoding import Encoder, UnencodableText
from pipeline.core.grammar import CompiledGrammar, ids_of, text_of, texts_of
from pipeline.core.native import spans_of, why_not_native
from pipeline.core.profile import Contradicted, hides_whitespace, undo
from pipeline.core.readings import (
    Context,
    Reading,
    calls_of,
    departures,
    ending_of,
    plain_readings,
    strip_leaks,
)
from pipeline.records import Action, Answer, Ending, Fidelity, Reconstruction, Span

# More tokens than this were counted beyond the visible text: its reasoning got lost (vllm#37397), it was
# not a word split in an unusual way.
_LOST_REASONING_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """One answer to read.

    `profile` None: nothing is known of the provider. Then it is read as verbatim, and an answer
    without a count can't be read at all.
    """

    answer: Answer
    request: Mapping[str, Any]
    profile: Profile | None = None


@dataclass(slots=True)
class TextIds:
    """Ids of ordinary text, remembered within one batch."""

    encoder: Encoder
    known: dict[str, Sequence[int]] = field(default_factory=dict)

    def fill(self, texts: Iterable[str]) -> None:
        """Encode what is not known yet, in one batch; one bad text leaves all to be encoded one by one."""
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        with suppress(UnencodableText):
            self.known.update(zip(new, self.encoder.encode_batch(new), strict=True))

    def __call__(self, text: str) -> Sequence[int]:
        if text not in self.known:
            self.known[text] = self.encoder.encode(text)
        return self.known[text]


def reconstruct(case: Case, encoder: Encoder, grammar: CompiledGrammar) -> Reconstruction:
    """`reconstruct_batch` of one."""
    return reconstruct_batch([case], encoder, grammar)[0]


def reconstruct_batch(
    cases: Sequence[Case], encoder: Encoder, grammar: CompiledGrammar
) -> list[Reconstruction]:
    """One result a case, in order. The texts of all plain readings are encoded in one batch."""
    encode = TextIds(encoder)
    prepared = [_prepare(case, grammar) for case in cases]
    encode.fill(
        text
        for item in prepared
        if not isinstance(item, Reconstruction)
        for reading in item[1]
        for text in texts_of(reading.pieces)
    )
    return [
        item if isinstance(item, Reconstruction) else _decide_or_refuse(case, *item, encode=encode)
        for case, item in zip(cases, prepared, strict=True)
    ]


def _prepare(case: Case, grammar: CompiledGrammar) -> Reconstruction | tuple[Context, list[Reading]]:
    answer, profile = case.answer, case.profile or Profile()
    undone = undo(answer, profile, grammar, cut=ending_of(answer) is Ending.LENGTH)
    if isinstance(undone, Contradicted):
        if answer.native_ids is None:
            return Reconstruction(Action.AMBIGUOUS, undone.why, flags=("profile_contradicted",))
        undone = answer
    context = Context(undone, case.request, profile, grammar)
    return context, plain_readings(context)


def _texts(answer: Answer) -> Iterable[str]:
    yield from (answer.reasoning, answer.content)
    for call in answer.tool_calls:
        yield from (call.id or "", call.name, call.arguments)


def _decide_or_refuse(
    case: Case, context: Context, plain: list[Reading], *, encode: TextIds
) -> Reconstruction:
    try:
        return _decide(case, context, plain, encode=encode)
    except UnencodableText as odd:
        return Reconstruction(Action.AMBIGUOUS, f"a field can't be encoded: {odd}", flags=("unencodable",))


def _decide(case: Case, context: Context, plain: list[Reading], *, encode: TextIds) -> Reconstruction:
    answer, grammar = case.answer, context.grammar
    flags: tuple[str, ...] = answer.flags
    if answer.native_ids is not None:
        broken = why_not_native(answer, encode.encoder, grammar)
        if broken is None:
            return _native(answer, encode.encoder, grammar, flags)
        flags = (*flags, "native_ids_rejected")
    if answer.reasoning_variants:
        return _ambiguous(
            "the copies of reasoning disagree", (*flags, "reasoning_fields_disagree"), plain, context, encode
        )
    if any("\ufffd" in text for text in _texts(answer)):
        return _ambiguous(
            "a character is unknown (U+FFFD)", (*flags, "replacement_character"), plain, context, encode
        )
    if not grammar.thinking and answer.reasoning:
        return _ambiguous(
            "reasoning although thinking is off", (*flags, "reasoning_unexpected"), plain, context, encode
        )
    count = answer.usage.completion_tokens
    if count is None:
        return _without_count(case, context, plain, flags, encode)
    return _with_count(context, plain, count, flags, encode)


def _native(
    answer: Answer, encoder: Encoder, grammar: CompiledGrammar, flags: tuple[str, ...]
) -> Reconstruction:
    assert answer.native_ids is not None
    ending = ending_of(answer)
    if ending is None:
        ended = answer.native_ids[-1] in grammar.end_ids.values()
        ending = (Ending.TOOL_CALLS if answer.tool_calls else Ending.STOP) if ended else Ending.LENGTH
    notes = (*flags, "native_ids", *(("truncated",) if ending is Ending.LENGTH else ()))
    return Reconstruction(
        Action.OK,
        "the engine's own ids, checked",
        completion_ids=answer.native_ids,
        text=encoder.decode_bytes(answer.native_ids).decode("utf-8", "replace"),
        spans=spans_of(answer.native_ids, grammar),
        ending=ending,
        fidelity=Fidelity.NATIVE,
        flags=notes,
    )


def _with_count(
    context: Context, plain: list[Reading], count: int, flags: tuple[str, ...], encode: TextIds
) -> Reconstruction:
    # Arguments that came as an object are damaged for sure: no layout is the plain one.
    rewritten = any(call.arguments_rewritten for call in context.answer.tool_calls)
    fits = _fitting([*plain, *departures(context, count)] if rewritten else plain, count, context, encode)
    if len(fits) == 1:
        if _rebuilt_fits(context, fits[0][1], count, encode):
            flags = (*flags, "foreign_id_kept")
        return _accept(*fits[0], context, flags, encode, "the plain reading fits the count")
    if fits:
        return _ambiguous("two plain readings fit the count", flags, plain, context, encode)
    tried = list(departures(context, count))
    fits = _fitting(tried, count, context, encode)
    if len(fits) == 1:
        reading = fits[0][0]
        return _accept(
            *fits[0], context, flags, encode, f"{reading.name} fits the count, the plain reading does not"
        )
    if fits:
        return _ambiguous(
            "several readings fit the count",
            (*flags, "count_mismatch"),
            [f[0] for f in fits],
            context,
            encode,
        )
    lost = _lost_reasoning(context, plain[0], count, encode)
    if lost is not None:
        return lost
    length = counted(plain[0], ids_of(plain[0].pieces, encode, context.grammar.special)[0], context.profile)
    why = f"{count} tokens were counted, the fields give {length}"
    return _ambiguous(why, (*flags, "count_mismatch"), [*plain, *tried], context, encode)


def _fitting(
    readings: Iterable[Reading], count: int, context: Context, encode: TextIds
) -> list[tuple[Reading, tuple[int, ...], tuple[Span, ...]]]:
    """Readings whose length is the count, one for each distinct sequence of ids."""
    found: dict[tuple[int, ...], tuple[Reading, tuple[int, ...], tuple[Span, ...]]] = {}
    for reading in readings:
        ids, spans = ids_of(reading.pieces, encode, context.grammar.special)
        if ids and counted(reading, ids, context.profile) == count:
            found.setdefault(ids, (reading, ids, spans))
    return list(found.values())


def _rebuilt_fits(context: Context, ids: tuple[int, ...], count: int, encode: TextIds) -> bool:
    """A foreign call id is as long as the model's own would be: the count can't tell which was sampled."""
    if all(map(context.grammar.is_native_id, calls_of(context))):
        return False
    rebuilt = [reading for reading in departures(context, count) if reading.name == "id_rebuilt"]
    return any(found != ids for _, found, _ in _fitting(rebuilt, count, context, encode))


def counted(reading: Reading, ids: Sequence[int], profile: Profile) -> int:
    """What this provider would count for these ids."""
    uncounted_end = reading.ending is not Ending.LENGTH and not profile.counts_end
    return len(ids) - (1 if uncounted_end else 0)


def _accept(
    reading: Reading,
    ids: tuple[int, ...],
    spans: tuple[Span, ...],
    context: Context,
    flags: tuple[str, ...],
    encode: TextIds,
    reason: str,
) -> Reconstruction:
    unknown = _unoffered(reading, context)
    if unknown:
        reason = f"the tool {unknown!r} was not offered"
        return Reconstruction(Action.FATAL_ROW, reason, flags=(*flags, *reading.flags, "unknown_tool"))
    repaired = reading.repaired or bool({"native_ids_rejected", "count_elsewhere"} & set(flags))
    fidelity = Fidelity.COUNTED
    # Under a stripping provider a departure could as well be whitespace that is gone.
    stripped = context.profile.strips != "none" and reading.name != "plain"
    undecidable = {"foreign_id_kept", "arguments_object"} & {*flags, *reading.flags}
    if undecidable:
        fidelity = Fidelity.UNVERIFIED
    if stripped or hides_whitespace(context.answer, context.profile, encode):
        fidelity, flags = Fidelity.UNVERIFIED, (*flags, "whitespace_may_be_hidden")
    return _row(reading, ids, spans, reason, fidelity, flags, repaired=repaired)


def _row(
    reading: Reading,
    ids: tuple[int, ...],
    spans: tuple[Span, ...],
    reason: str,
    fidelity: Fidelity,
    flags: tuple[str, ...],
    *,
    repaired: bool,
) -> Reconstruction:
    """The result of a reading that is taken."""
    return Reconstruction(
        Action.REPAIR if repaired else Action.OK,
        reason,
        completion_ids=ids,
        text=text_of(reading.pieces),
        spans=spans,
        ending=reading.ending,
        fidelity=fidelity,
        flags=(*flags, *reading.flags),
    )


def _unoffered(reading: Reading, context: Context) -> str:
    """A tool called in raw markup that the request, which offers others, does not offer."""
    tools = context.request.get("tools")
    if "markers_in_content" not in reading.flags or not isinstance(tools, list) or not tools:
        return ""
    functions = [tool.get("function") for tool in tools if isinstance(tool, Mapping)]
    offered = [function.get("name") for function in functions if isinstance(function, Mapping)]
    return next((name for name in context.grammar.tools_called(reading.pieces) if name not in offered), "")


def _without_count(
    case: Case, context: Context, plain: list[Reading], flags: tuple[str, ...], encode: TextIds
) -> Reconstruction:
    """No count: only a known provider's undamaged answer can be read, and it stays unverified."""
    if "cache_hit" not in flags:
        flags = (*flags, "usage_missing")
        if case.profile is None:
            return _ambiguous("no token count to check the ids against", flags, plain, context, encode)
    bare = strip_leaks(context.answer, context.grammar)
    if bare != context.answer:
        context = Context(bare, context.request, context.profile, context.grammar)
        plain, flags = plain_readings(context), (*flags, "leaked_mark_dropped")
    damage = _damage(context, known=case.profile is not None)
    if damage or len(plain) > 1:
        return _ambiguous(f"no token count, and {damage or 'two readings'}", flags, plain, context, encode)
    reading = plain[0]
    ids, spans = ids_of(reading.pieces, encode, context.grammar.special)
    if not ids:
        return _ambiguous("nothing was generated that could be seen", flags, plain, context, encode)
    repaired = reading.repaired or bool({"leaked_mark_dropped", "native_ids_rejected"} & set(flags))
    reason = "read under the provider's profile, without a count"
    return _row(reading, ids, spans, reason, Fidelity.UNVERIFIED, flags, repaired=repaired)


def _damage(context: Context, *, known: bool) -> str:
    """What only a count could settle in these fields; empty if they can be read as they are."""
    answer, grammar = context.answer, context.grammar
    calls = [] if context.profile.rewrites_ids else calls_of(context)
    if any(not grammar.is_native_id(call) for call in calls):
        return "a foreign call id"
    if any(call.arguments_rewritten for call in answer.tool_calls):
        return "arguments that came as an object"
    if not known and any(call.arguments in ("", "{}") for call in answer.tool_calls):
        return "empty arguments"
    ending = ending_of(answer)
    if ending is None:
        return "no finish reason"
    native = ending_of(replace(answer, finish_reason=answer.native_finish_reason))
    if native is not None and (native is Ending.LENGTH) != (ending is Ending.LENGTH):
        return "two finish reasons that differ"
    raw = grammar.split_raw_sections("content", answer.content, cut=ending is Ending.LENGTH)
    marked = grammar.has_marker(answer.reasoning) or (raw is None and grammar.has_marker(answer.content))
    return "a mark in a text field" if marked else ""


def _lost_reasoning(context: Context, plain: Reading, count: int, encode: TextIds) -> Reconstruction | None:
    answer, grammar = context.answer, context.grammar
    if (
        answer.reasoning
        or not grammar.thinking
        or (grammar.think_end and grammar.think_end in answer.content)
    ):
        return None
    ids, _ = ids_of(plain.pieces, encode, grammar.special)
    if not answer.usage.reasoning_tokens and count - len(ids) <= _LOST_REASONING_TOKENS:
        return None
    reason = f"{count} tokens were counted and the answer holds {len(ids)}: its reasoning got lost on the way"
    return Reconstruction(Action.REROUTE, reason, flags=("reasoning_lost",))


def _ambiguous(
    reason: str, flags: Sequence[str], readings: Sequence[Reading], context: Context, encode: TextIds
) -> Reconstruction:
    candidates: dict[tuple[int, ...], str] = {}
    for reading in readings:
        candidates.setdefault(ids_of(reading.pieces, encode, context.grammar.special)[0], reading.name)
    return Reconstruction(
        Action.AMBIGUOUS,
        reason,
        flags=tuple(flags),
        candidates=tuple((name, ids) for ids, name in candidates.items()),
    )
