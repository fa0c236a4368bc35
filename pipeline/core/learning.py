"""Answers of one served provider -> what it does to text and counts, with the evidence.

Every profile of a finite set is tried; the one whose plain readings fit most counts wins (DESIGN 3).
What no count can show stays undecided and is said: a provider that strips whitespace looks like a
verbatim one whose model writes none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from pipeline.config import Profile, Strips
from pipeline.core.encoding import Encoder
from pipeline.core.grammar import Call, CompiledGrammar, ids_of, texts_of
from pipeline.core.profile import Contradicted, undo
from pipeline.core.readings import Context, ending_of, plain_readings
from pipeline.core.reconstruct import Case, TextIds, counted
from pipeline.records import Answer, Ending

MIN_ROWS = 200
# Share of counted rows that the winner must explain before its profile is believed.
MIN_MATCH = 0.5


@dataclass(frozen=True, slots=True)
class Learned:
    """`profile` None: too few rows, or nothing explains them. `undecided` names settings no row can tell."""

    profile: Profile | None
    rows: int
    matched: int
    runner_up: int
    undecided: tuple[str, ...] = ()


def hypotheses() -> Iterator[Profile]:
    """Every profile that is tried, simplest first: ties go to the first."""
    for space_join, strips, counts_end, rewrites_ids in itertools.product(
        (False, True), get_args(Strips), (True, False), (False, True)
    ):
        if space_join and strips == "both":
            continue  # stripping takes the joiner spaces away: the same as no joining
        yield Profile(space_join=space_join, strips=strips, counts_end=counts_end, rewrites_ids=rewrites_ids)


def learn(cases: Sequence[Case], encoder: Encoder, grammar: CompiledGrammar) -> Learned:
    """Profile of the provider that gave these answers. Rows without a count or with own ids do not vote."""
    voting = [case for case in cases if case.answer.usage.completion_tokens is not None]
    if len(voting) < MIN_ROWS:
        return Learned(None, len(voting), 0, 0)
    encode = TextIds(encoder)
    joined = _all_begin_with_a_space(voting)
    tried = [profile for profile in hypotheses() if profile.space_join == joined]
    scores = [(profile, _matches(voting, profile, encode, grammar)) for profile in tried]
    best, matched = max(scores, key=lambda item: item[1])
    if matched < MIN_MATCH * len(voting):
        return Learned(None, len(voting), matched, 0)
    equal = [profile for profile, score in scores if score == matched]
    chosen = _settle_strips(best, voting, encode)
    others = [score for profile, score in scores if profile not in equal]
    undecided = _undecided([profile for profile in equal if profile.strips == best.strips], voting, grammar)
    if chosen.strips == "none" and not any(map(_has_edge, voting)):
        undecided = (*undecided, "strips")
    return Learned(chosen, len(voting), matched, max(others, default=0), undecided)


def _matches(cases: Sequence[Case], profile: Profile, encode: TextIds, grammar: CompiledGrammar) -> int:
    """How many answers fit their count under the profile."""
    contexts = []
    for case in cases:
        undone = undo(case.answer, profile, grammar, cut=ending_of(case.answer) is Ending.LENGTH)
        if not isinstance(undone, Contradicted):
            context = Context(undone, case.request, profile, grammar)
            contexts.append((case, plain_readings(context)))
    encode.fill(text for _, readings in contexts for reading in readings for text in texts_of(reading.pieces))
    return sum(
        any(
            counted(reading, ids_of(reading.pieces, encode, grammar.special)[0], profile)
            == case.answer.usage.completion_tokens
            for reading in readings
        )
        for case, readings in contexts
    )


def _all_begin_with_a_space(cases: Sequence[Case]) -> bool:
    """Every field of (nearly) every row: no model writes so, a detokenizer does.

    Counts can't settle this: in 80 % of texts one more leading space keeps the count, and the space at
    the end of reasoning looks like an end token that is not counted.
    """
    texts = [text for case in cases for text in (case.answer.reasoning, case.answer.content) if text]
    return bool(texts) and sum(text.startswith(" ") for text in texts) > 0.95 * len(texts)


def _settle_strips(best: Profile, cases: Sequence[Case], encode: TextIds) -> Profile:
    """The stripping habit that the fields allow: a field with edge whitespace was not stripped."""
    edges = [_edges(case.answer) for case in cases]
    if best.space_join:
        return best
    if any(edge for edge in edges):
        content = any("content" in edge for edge in edges)
        reasoning_tail = any("reasoning_tail" in edge for edge in edges)
        return best.model_copy(
            update={"strips": "none" if reasoning_tail or not content else "reasoning_tail"}
        )
    return best.model_copy(update={"strips": "both" if _misses_like_stripping(cases, encode) else "none"})


def _edges(answer: Answer) -> frozenset[str]:
    """Where edge whitespace stands in the fields."""
    found = set()
    if answer.reasoning != answer.reasoning.rstrip():
        found.add("reasoning_tail")
    if answer.content != answer.content.strip() or answer.reasoning != answer.reasoning.lstrip():
        found.add("content")
    return frozenset(found)


def _has_edge(case: Case) -> bool:
    return bool(_edges(case.answer))


def _misses_like_stripping(cases: Sequence[Case], encode: TextIds) -> bool:
    """Some counts are one or two above the fields' own text: whitespace at an edge was taken away."""
    short = 0
    for case in cases:
        answer, count = case.answer, case.answer.usage.completion_tokens or 0
        if answer.tool_calls or ending_of(answer) is Ending.LENGTH:
            continue
        length = len(encode(answer.reasoning)) + len(encode(answer.content)) + 2
        short += 0 < count - length <= 2
    return short > 0.02 * len(cases)


def _has_foreign_id(case: Case, grammar: CompiledGrammar) -> bool:
    calls = [Call(call.id or "", call.name, call.arguments) for call in case.answer.tool_calls]
    return any(not grammar.is_native_id(call) for call in calls)


def _undecided(equal: Sequence[Profile], cases: Sequence[Case], grammar: CompiledGrammar) -> tuple[str, ...]:
    """Settings in which equally good profiles differ, if any row could have shown them."""
    names = []
    for name in ("counts_end", "rewrites_ids"):
        if len({getattr(profile, name) for profile in equal}) > 1:
            names.append(name)
    if "rewrites_ids" in names and not any(_has_foreign_id(case, grammar) for case in cases):
        names.remove("rewrites_ids")  # the ids are the model's own, rebuilt or not
    return tuple(names)
