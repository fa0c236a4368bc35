"""Fields as a provider returned them -> fields as the model wrote them, under that provider's profile.

What a provider does to every row (a joiner space, rebuilt ids) is undone here, before any count is
looked at, since a count often can't see it: in 80 % of texts one more leading space keeps the count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipeline.config import Profile
from pipeline.core.grammar import CompiledGrammar
from pipeline.records import Answer

# Whitespace that models do write at the edge of a field; used only to ask whether a stripping provider
# could have hidden some without a trace, never to add any.
_EDGES = ("\n", "\n\n", "\n\n\n", " ", "  ", "\t", " \n")


@dataclass(frozen=True, slots=True)
class Contradicted:
    """The fields can't come from a provider with this profile; `why` says what was seen."""

    why: str


def undo(answer: Answer, profile: Profile, grammar: CompiledGrammar, *, cut: bool) -> Answer | Contradicted:
    """The answer with the profile's systematic changes taken back. `cut`: finish reason length."""
    if not profile.space_join:
        return answer
    cut_in_reasoning = cut and not answer.content and not answer.tool_calls
    reasoning = _unjoin(answer.reasoning, tail=profile.strips == "none" and not cut_in_reasoning)
    content = _unjoin(answer.content, tail=bool(answer.tool_calls))
    if reasoning is None or content is None:
        field = "reasoning" if reasoning is None else "content"
        return Contradicted(f"{field} lacks the space that this provider puts around added tokens")
    bare = content
    for token in grammar.marks:
        bare = bare.replace(f" {token}", token).replace(f"{token} ", token)
    if grammar.split_raw_sections("content", bare, cut=cut) is not None:
        content = bare  # raw calls: the joiner stands on both sides of every mark
    return replace(answer, reasoning=reasoning, content=content)


def _unjoin(text: str, *, tail: bool) -> str | None:
    """Exactly one space goes from the front (and one from the end); None if it is not there."""
    if not text:
        return text
    if not text.startswith(" ") or (tail and not text.endswith(" ")):
        return None
    text = text[1:]
    return text[:-1] if tail and text else text


def hides_whitespace(answer: Answer, profile: Profile, encode: Callable[[str], Sequence[int]]) -> bool:
    """A stripping provider could have taken edge whitespace away without raising the count."""
    if profile.strips == "none":
        return False
    ends = [answer.reasoning] + ([answer.content] if profile.strips == "both" else [])
    for text in filter(None, ends):
        length = len(encode(text))
        variants = [text + edge for edge in _EDGES]
        if profile.strips == "both":
            variants += [edge + text for edge in _EDGES]
        if any(len(encode(variant)) <= length for variant in variants):
            return True
    return False
