"""The answers of one served provider to the probes -> what it does, in words, and the profile to pin."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.config import Profile
from pipeline.core.encoding import Encoder
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.probe_profile import FEWEST, Explained, Seen, explain, reasoning_fields
from pipeline.core.probes import Evidence
from pipeline.core.readings import ending_of
from pipeline.core.reconstruct import Case, TextIds
from pipeline.records import Ending

_NEAR = 3
"""`reasoning_tokens` may count the closing token, or whitespace that is gone."""
_LETTERS = re.compile(r"(?:[a-zA-Z]+[-_:.])*")


@dataclass(frozen=True, slots=True)
class Findings:
    """Words for a table; "" where the answers show nothing.

    `profile` None: not to be pinned, `why_not` says why. `undecided`: setting -> why the answers can't
    tell it. `fits`: answers whose count the profile explains, out of `counts` that have a usable one.
    """

    answers: int
    reasoning_in: str
    split_by: str
    """`ids`: reasoning ends at the token; `text`: at its first spelling. Only a quotation shows it."""
    empty_text: str
    calls: str
    raw_finish: str
    """Finish reasons of answers with raw calls."""
    call_ids: str
    whitespace: str
    usage: str
    """right, wrong (no profile explains half of the counts), null or missing."""
    fits: int
    counts: int
    counts_end: str
    reasoning_tokens: str
    prompt: str
    """Provider's prompt count minus the length of our own render."""
    token_ids: str
    logprobs: str
    leaks: tuple[str, ...]
    profile: Profile | None
    why_not: str
    undecided: Mapping[str, str]


def find(evidence: Sequence[Evidence], encoder: Encoder, grammar: CompiledGrammar) -> Findings:
    """Everything that these answers of one provider show."""
    seen = Seen(evidence, TextIds(encoder), grammar)
    explained = explain(seen)
    profile, undecided = explained.profile, explained.undecided
    usage = _usage(seen, explained)
    why_not = ""
    if len(evidence) < FEWEST:
        why_not = f"only {len(evidence)} answers came" if evidence else "no answer came"
    elif usage == "wrong":
        why_not = f"no profile explains the counts: {explained.fits} of {len(seen.voting)} fit"
    end = "counted" if profile.counts_end else "not counted"
    return Findings(
        answers=len(evidence),
        reasoning_in=_reasoning_in(seen),
        split_by=_split_by(seen, profile),
        empty_text=_empty_text(seen),
        calls=_calls(seen),
        raw_finish=_raw_finish(seen),
        call_ids=_call_ids(seen, explained),
        whitespace=_whitespace(explained),
        usage=usage,
        fits=explained.fits,
        counts=len(seen.voting),
        counts_end="" if why_not or "counts_end" in undecided else end,
        reasoning_tokens=_reasoning_tokens(seen),
        prompt=_prompt(evidence),
        token_ids=_token_ids(seen, profile),
        logprobs=_logprobs(evidence),
        leaks=_leaks(seen, profile),
        profile=None if why_not else profile,
        why_not=why_not,
        undecided=undecided,
    )


def _usage(seen: Seen, explained: Explained) -> str:
    if not seen.cases:
        return ""
    if all(case.answer.usage.completion_tokens is None for case in seen.cases):
        return "null" if any("usage" in e.body for e in seen.evidence) else "missing"
    return "right" if 2 * explained.fits >= len(seen.voting) else "wrong"


def _reasoning_in(seen: Seen) -> str:
    places = Counter(" + ".join(fields) for e in seen.evidence if (fields := reasoning_fields(e)))
    if seen.inline:
        return f"content, before {seen.grammar.think_end}"
    return " / ".join(place for place, _ in places.most_common())


def _split_by(seen: Seen, profile: Profile) -> str:
    mark = seen.grammar.think_end
    if mark is None:
        return ""
    if any(mark in case.answer.reasoning for case in seen.cases):
        return "ids"
    quoted = [case for case in seen.voting if case.answer.reasoning and mark in case.answer.content]
    return "text" if any("markers_leaked" in r.flags for r in seen.read(quoted, profile)) else ""


def _empty_text(seen: Seen) -> str:
    messages = [e.body["choices"][0].get("message") or {} for e in seen.evidence]
    empty = [message["content"] for message in messages if "content" in message and not message["content"]]
    return " / ".join(sorted({"null" if content is None else '""' for content in empty}))


def _calls(seen: Seen) -> str:
    sections = [seen.sections(e.answer) for e in seen.raw]
    forms = {
        "structured": bool(seen.called),
        "raw in content": any(content for content, _ in sections),
        "raw in reasoning": any(reasoning for _, reasoning in sections),
    }
    return " / ".join(form for form, came in forms.items() if came)


def _raw_finish(seen: Seen) -> str:
    ended = [e.answer for e in seen.raw if ending_of(e.answer) is not Ending.LENGTH]
    return " / ".join(sorted({answer.finish_reason or "none" for answer in ended}))


def _call_ids(seen: Seen, explained: Explained) -> str:
    calls = [call for e in seen.called for call in e.answer.tool_calls]
    if not calls:
        return ""
    foreign = [call.id or "" for call in calls if seen.is_foreign(call.id, call.name)]
    forms = ", ".join(sorted({f"{_LETTERS.match(one)[0]}…" for one in foreign}))  # type: ignore[index]
    if explained.profile.rewrites_ids:
        return f"rewritten ({forms})"
    if "rewrites_ids" not in explained.undecided:
        return "kept"
    return f"foreign ({forms})" if foreign else "like the model's"


def _whitespace(explained: Explained) -> str:
    profile, undecided = explained.profile, explained.undecided
    if "space_join" in undecided:
        return ""
    stripped = {"none": "", "reasoning_tail": "reasoning right-stripped", "both": "stripped"}[profile.strips]
    if profile.space_join:
        return ", ".join(filter(None, ("space round added tokens", stripped)))
    return stripped or ("nothing added" if "strips" in undecided else "verbatim")


def _reasoning_tokens(seen: Seen) -> str:
    """`usage.completion_tokens_details.reasoning_tokens` against the text of the reasoning."""
    forms: Counter[str] = Counter()
    for case in seen.voting:
        text, _ = seen.texts(case.answer)
        told = case.answer.usage.reasoning_tokens
        if text.strip():
            near = told is not None and abs(told - len(seen.encode(text))) <= _NEAR
            forms["absent" if told is None else "right" if near else "zero" if told == 0 else "wrong"] += 1
    return forms.most_common(1)[0][0] if forms else ""


def _prompt(evidence: Sequence[Evidence]) -> str:
    """What most probes show, and those that differ."""
    deltas = [(e.probe, e.prompt.delta) for e in evidence if e.prompt.delta is not None]
    if not deltas:
        return ""
    usual, _ = Counter(delta for _, delta in deltas).most_common(1)[0]
    told = ["equal" if usual == 0 else f"{usual:+d}"]
    told += dict.fromkeys(f"{probe} {delta:+d}" for probe, delta in deltas if delta != usual)
    if any("prompt_specials_plain" in e.prompt.flags for e in evidence):
        told.append("special strings kept as text")
    return "; ".join(told)


def _token_ids(seen: Seen, profile: Profile) -> str:
    """In which field ids came when asked for, and whether they fit the text and the count."""
    asked = [e for e in seen.evidence if e.request.get("return_token_ids")]
    given = [e for e in asked if e.answer.native_ids is not None]
    if not given:
        return "none" if asked else ""
    choice = given[0].body["choices"][0]
    name = next((name for name in ("token_ids", "response_token_ids") if choice.get(name)), "sglext")
    results = seen.read([Case(e.answer, e.request) for e in given], profile)
    broken = any("native_ids_rejected" in result.flags for result in results)
    return f"{name}, which do not fit the text" if broken else name


def _logprobs(evidence: Sequence[Evidence]) -> str:
    asked = [e.body["choices"][0].get("logprobs") for e in evidence if e.request.get("logprobs")]
    given = any(isinstance(found, Mapping) and found.get("content") for found in asked)
    return "" if not asked else "given" if given else "none"


def _leaks(seen: Seen, profile: Profile) -> tuple[str, ...]:
    """Marks at the edge of a field, unless the count says that they are text; with how often they came."""
    settings, think_end = seen.grammar.settings, seen.grammar.think_end
    found: Counter[str] = Counter()
    for case in seen.cases:
        answer = case.answer
        count = answer.usage.completion_tokens
        if count is not None and count in seen.lengths(case, profile, shown=False):
            continue
        for token in set(settings.end_tokens.values()):
            found[f"{token} ends content"] += answer.content.endswith(token)
        if think_end and answer.reasoning:
            found[f"{think_end} begins content"] += answer.content.startswith(think_end)
        if settings.reasoning_open:
            begun = (answer.reasoning or answer.content).startswith(settings.reasoning_open)
            found[f"{settings.reasoning_open} begins reasoning"] += begun
        found["calls in content too"] += bool(answer.tool_calls and seen.sections(answer)[0])
    return tuple(f"{what} ({n} of {len(seen.cases)})" for what, n in found.items() if n)
