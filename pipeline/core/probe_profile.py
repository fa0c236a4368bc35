"""A few answers of one served provider -> the simplest profile that explains them, and what stays open.

Many rows can tell more (`pipeline.core.learning`); a handful shows what a provider does to every answer.
First comes what the fields show by themselves, then what only the counts tell; a setting that neither
decides is named with the reason, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.config import Profile, Strips
from pipeline.core.encoding import UnencodableText
from pipeline.core.grammar import Call, CompiledGrammar, ids_of
from pipeline.core.probes import Evidence
from pipeline.core.profile import Contradicted, undo
from pipeline.core.readings import Context, calls_before, departures, ending_of, plain_readings
from pipeline.core.reconstruct import Case, TextIds, counted, reconstruct_batch
from pipeline.records import Answer, Ending, Reconstruction

FEWEST = 4
"""Answers (or texts) below which nothing is concluded from what they have in common."""
_JOINED = 0.8
"""Share of fields that begin with a space; a parser that splits at a quoted `</think>` leaves some bare."""
_HIDDEN = 4
"""Tokens of whitespace that a stripping provider may have taken from one answer, at most."""
_SHOWN = frozenset({"split_by_us", "leaked_mark_dropped", "markers_leaked"})
"""Departures that a field's own form calls for; the others would fit a count by chance."""
_REASONING_FIELDS = ("reasoning", "reasoning_content", "thinking", "reasoning_details")


@dataclass(frozen=True, slots=True)
class Explained:
    """`undecided`: setting -> why the answers can't tell it. `fits`: answers whose count it explains."""

    profile: Profile
    undecided: Mapping[str, str]
    fits: int


class Seen:
    """The answers of one provider, sorted by what they can show."""

    def __init__(self, evidence: Sequence[Evidence], encode: TextIds, grammar: CompiledGrammar) -> None:
        self.evidence, self.encode, self.grammar = evidence, encode, grammar
        self.cases = [Case(e.answer, e.request) for e in evidence]
        self.voting = [case for case in self.cases if _countable(case.answer, encode)]
        self.called = [e for e in evidence if e.answer.tool_calls]
        self.raw = [e for e in evidence if self._is_raw(e.answer)]
        mark = grammar.think_end if grammar.thinking else None
        # A field of its own in one answer: then a mark in another's content is a quotation.
        self.inline = mark is not None and not any(map(reasoning_fields, evidence))
        self.inline = self.inline and any(mark in e.answer.content for e in evidence if mark)

    def sections(self, answer: Answer) -> tuple[int, int]:
        """Tokens by which content, reasoning are shorter if their tool sections are marks and not text."""
        cut = ending_of(answer) is Ending.LENGTH
        content, reasoning = (
            0
            if (pieces := self.grammar.split_raw_sections("content", text, cut=cut)) is None
            else len(self.encode(text)) - len(ids_of(pieces, self.encode, self.grammar.special)[0])
            for text in (answer.content, answer.reasoning)
        )
        return content, reasoning

    def _is_raw(self, answer: Answer) -> bool:
        """Its calls stand in a text. A quotation looks alike, but every mark of it counts for several."""
        saved = sum(self.sections(answer))
        if answer.tool_calls or not saved:
            return False
        if not _countable(answer, self.encode):
            return not self.called
        spelled = len(self.encode(answer.content)) + len(self.encode(answer.reasoning)) + 2
        return (answer.usage.completion_tokens or 0) < spelled - saved / 2

    def texts(self, answer: Answer) -> tuple[str, str]:
        """Reasoning and content as the model wrote them apart, without marks round them."""
        reasoning, content = answer.reasoning, answer.content
        if self.inline and self.grammar.think_end is not None:
            before, mark, after = content.partition(self.grammar.think_end)
            reasoning, content = (before, after) if mark else (content, "")
        if self.grammar.section is not None and self._is_raw(answer):
            content = content.partition(self.grammar.section.begin)[0]
        for token in set(self.grammar.settings.end_tokens.values()):
            content = content.removesuffix(token)
        return reasoning, content

    def lengths(self, case: Case, profile: Profile, *, shown: bool = True) -> list[int]:
        """Counts that the profile gives to the plain readings and (`shown`) those that the form calls for."""
        count = case.answer.usage.completion_tokens or 0
        undone = undo(case.answer, profile, self.grammar, cut=ending_of(case.answer) is Ending.LENGTH)
        if isinstance(undone, Contradicted):
            return []
        context = Context(undone, case.request, profile, self.grammar)
        readings = plain_readings(context)
        if shown:
            readings += [reading for reading in departures(context, count) if reading.name in _SHOWN]
        return [
            counted(reading, ids_of(reading.pieces, self.encode, self.grammar.special)[0], profile)
            for reading in readings
        ]

    def matches(self, profile: Profile, cases: Sequence[Case]) -> int:
        """Answers with a count that the profile gives exactly."""
        return sum(case.answer.usage.completion_tokens in self.lengths(case, profile) for case in cases)

    def beyond(self, case: Case, profile: Profile) -> int:
        """Tokens counted beyond what the fields hold; the reading nearest to the count says it."""
        count = case.answer.usage.completion_tokens or 0
        return min((count - length for length in self.lengths(case, profile)), key=abs, default=count)

    def over(self, profile: Profile) -> list[Case]:
        """Answers with a few tokens beyond: whitespace may have been taken away."""
        return [case for case in self.voting if 0 < self.beyond(case, profile) <= _HIDDEN]

    def read(self, cases: Sequence[Case], profile: Profile) -> list[Reconstruction]:
        """What the build would make of these answers under the profile."""
        known = [Case(case.answer, case.request, profile) for case in cases]
        return reconstruct_batch(known, self.encode.encoder, self.grammar)

    def is_foreign(self, call_id: str | None, name: str) -> bool:
        """The id has not the form that the model itself writes."""
        return not self.grammar.is_native_id(Call(call_id or "", name, ""))


def reasoning_fields(e: Evidence) -> list[str]:
    """Names of the message's fields that hold reasoning."""
    message = e.body["choices"][0].get("message") or {}
    return [name for name in _REASONING_FIELDS if message.get(name)]


def _countable(answer: Answer, encode: TextIds) -> bool:
    """It has a count, and every character of its fields is known."""
    texts = [answer.reasoning, answer.content, *(call.arguments for call in answer.tool_calls)]
    if answer.usage.completion_tokens is None or any("\ufffd" in text for text in texts):
        return False
    try:
        return all(encode(text) is not None for text in texts)
    except UnencodableText:
        return False


def explain(seen: Seen) -> Explained:
    """The profile, setting by setting: each only where some answer could show it."""
    undecided: dict[str, str] = {}
    profile = Profile(space_join=_joined(seen, undecided))
    if profile.space_join:
        profile = profile.model_copy(update={"strips": _strips_joined(seen, undecided)})
    ended = [case for case in seen.voting if ending_of(case.answer) is not Ending.LENGTH]
    profile = _counts_end(seen, profile, ended, undecided)
    profile = _rewrites_ids(seen, profile, undecided)
    profile = _empty_arguments(seen, profile, undecided)
    if not profile.space_join:
        profile = profile.model_copy(update={"strips": _strips(seen, profile, undecided)})
    over = [] if profile.strips == "none" else seen.over(profile)
    read = zip(seen.voting, seen.read(seen.voting, profile), strict=True)
    return Explained(profile, undecided, sum(result.action.usable or case in over for case, result in read))


def _joined(seen: Seen, undecided: dict[str, str]) -> bool:
    """Every field begins with a space: no model writes so, a detokenizer does. Counts can't tell."""
    texts = [text for case in seen.cases for text in (case.answer.reasoning, case.answer.content) if text]
    if len(texts) < FEWEST:
        undecided["space_join"] = f"only {len(texts)} fields with text came"
        return False
    return sum(text.startswith(" ") for text in texts) > _JOINED * len(texts)


def _strips_joined(seen: Seen, undecided: dict[str, str]) -> Strips:
    """A joined reasoning that was closed ends with the joiner's space, unless that was stripped."""
    closed = [r for case, r, _ in _closed(seen) if r and (case.answer.content or case.answer.tool_calls)]
    if len(closed) < 2:
        undecided["strips"] = "hardly any reasoning came with an end"
        return "none"
    return "reasoning_tail" if sum(r == r.rstrip() for r in closed) > len(closed) / 2 else "none"


def _closed(seen: Seen) -> list[tuple[Case, str, str]]:
    """Answers whose reasoning was not cut, with its text and that of the content."""
    found = []
    for case in seen.cases:
        reasoning, content = seen.texts(case.answer)
        if content or case.answer.tool_calls or ending_of(case.answer) is not Ending.LENGTH:
            found.append((case, reasoning, content))
    return found


def _counts_end(seen: Seen, profile: Profile, ended: Sequence[Case], undecided: dict[str, str]) -> Profile:
    """One answer may be a token short for its own reasons (no `</think>` before calls), two are a habit."""
    without = profile.model_copy(update={"counts_end": False})
    lead = seen.matches(profile, ended) - seen.matches(without, ended)
    if abs(lead) < 2:
        undecided["counts_end"] = "no count tells" if seen.voting else "no answer has a count"
    return without if lead <= -2 else profile


def _rewrites_ids(seen: Seen, profile: Profile, undecided: dict[str, str]) -> Profile:
    """Whoever rewrites ids rewrites all; ids of two forms, or with a number of their own, were kept."""
    calls = [call for e in seen.called for call in e.answer.tool_calls]
    if not calls:
        if not seen.raw:  # in raw calls the ids are the model's own text
            undecided["rewrites_ids"] = "no call came"
        return profile
    foreign = sum(seen.is_foreign(call.id, call.name) for call in calls)
    if 0 < foreign < len(calls) or _has_own_number(seen):
        return profile
    if not foreign:
        undecided["rewrites_ids"] = "ids have the model's own form, as rebuilt ones would"
        return profile
    rebuilt = profile.model_copy(update={"rewrites_ids": True})
    voting = [case for case in seen.voting if case.answer.tool_calls]
    lead = seen.matches(rebuilt, voting) - seen.matches(profile, voting)
    if lead == 0:
        undecided["rewrites_ids"] = "no count tells the foreign ids from the model's own"
    return rebuilt if lead > 0 else profile


def _has_own_number(seen: Seen) -> bool:
    """An id of the model's form whose number no rebuilding would give."""
    for e in seen.called:
        for number, call in enumerate(e.answer.tool_calls, calls_before(e.request)):
            own = not seen.is_foreign(call.id, call.name)
            if own and call.id != seen.grammar.native_id(call.name, number):
                return True
    return False


def _empty_arguments(seen: Seen, profile: Profile, undecided: dict[str, str]) -> Profile:
    """Braces only where a count says that the model wrote nothing, and nothing else would explain it."""
    calls = [call for e in seen.called for call in e.answer.tool_calls]
    if any(not call.arguments for call in calls):
        return profile
    voting = [case for case in seen.voting if case.answer.tool_calls]
    # Where reasoning stands in content, two departures would come together, and fit by chance.
    told = () if seen.inline else seen.read(voting, profile)
    if any("arguments_empty" in result.flags for result in told):
        return profile.model_copy(update={"empty_arguments": "braces"})
    if calls or not seen.raw:
        undecided["empty_arguments"] = "no call without arguments came" if calls else "no call came"
    return profile


def _strips(seen: Seen, profile: Profile, undecided: dict[str, str]) -> Strips:
    """A field with whitespace at an edge was not stripped there; tokens counted beyond say some is gone."""
    if any(reasoning != reasoning.rstrip() for _, reasoning, _ in _closed(seen)):
        return "none"
    texts = [seen.texts(case.answer) for case in seen.cases]
    elsewhere = any(c != c.strip() or r != r.lstrip() for r, c in texts)
    too_low = any(seen.beyond(case, profile) < -1 for case in seen.voting)  # stripping never does that
    if len(seen.over(profile)) >= 2 and not too_low:
        return "reasoning_tail" if elsewhere else "both"
    where = "at the end of a reasoning" if elsewhere else "at an edge of a text"
    undecided["strips"] = f"no whitespace came {where}"
    return "none"
