"""Token ids that the engine itself returned -> checked against the count, the text and the ending.

Engines lose or shift ids too: tool tokens missing (vllm#27482), the last id off by one (vllm#28185).
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.core.encoding import Encoder
from pipeline.core.grammar import Call, CompiledGrammar
from pipeline.core.readings import ending_of
from pipeline.records import Answer, Ending, Span


def spans_of(ids: Sequence[int], grammar: CompiledGrammar) -> tuple[Span, ...]:
    """What each stretch of sampled ids is, walked along the grammar's tokens."""
    token_of = {grammar.special[token]: token for token in grammar.tokens}
    ends = set(grammar.end_ids.values())
    kind = "reasoning" if grammar.thinking and grammar.think_end else "content"
    spans: list[Span] = []
    start = 0
    for position, token_id in enumerate(ids):
        if token_id not in token_of:
            continue
        if position > start:
            spans.append(Span(kind, start, position))
        last = token_id in ends and position == len(ids) - 1
        spans.append(Span("end" if last else "marker", position, position + 1))
        start, kind = position + 1, grammar.kind_after(token_of[token_id], kind)
    if start < len(ids):
        spans.append(Span(kind, start, len(ids)))
    return tuple(spans)


def why_not_native(answer: Answer, encoder: Encoder, grammar: CompiledGrammar) -> str | None:
    """The first check that the returned ids fail, or None if they hold."""
    ids = answer.native_ids
    assert ids is not None
    if any(not 0 <= token_id < encoder.vocab_size for token_id in ids):
        return "an id is outside the vocabulary"
    count = answer.usage.completion_tokens
    if count is not None and len(ids) != count:
        return f"{len(ids)} ids, {count} counted"
    ending = ending_of(answer)
    ends = set(grammar.end_ids.values())
    if ending is Ending.LENGTH and ids[-1] in ends:
        return "cut by length, yet the last id ends the turn"
    if ending in grammar.end_ids and ids[-1] != grammar.end_ids[ending]:
        return f"the last id is {ids[-1]}, not the end token {grammar.end_ids[ending]}"
    if any(token_id in ends for token_id in ids[:-1]):
        return "an end token stands before the last id"
    if not grammar.is_well_formed(ids, cut=ending is Ending.LENGTH or ending is None):
        return "the special ids do not stand in the order of the grammar"
    return _why_not_text(answer, encoder, grammar)


def _why_not_text(answer: Answer, encoder: Encoder, grammar: CompiledGrammar) -> str | None:
    """The ids' text, field by field. Edge whitespace may differ: parsers strip and join it, ids do not."""
    assert answer.native_ids is not None
    texts: dict[str, list[str]] = {"reasoning": [], "content": [], "call_id": [], "call_arguments": []}
    for span in spans_of(answer.native_ids, grammar):
        if span.kind in texts:
            data = encoder.decode_bytes(answer.native_ids[span.start : span.end])
            texts[span.kind].append(data.decode("utf-8", "replace"))
    reasoning, content = "".join(texts["reasoning"]), "".join(texts["content"])
    if answer.tool_calls:
        arguments = [text.strip() or "{}" for text in texts["call_arguments"]]
        if arguments != [call.arguments.strip() or "{}" for call in answer.tool_calls]:
            return "tool arguments differ from the ids' text"
        written = [
            Call(text, call.name, "") for text, call in zip(texts["call_id"], answer.tool_calls, strict=False)
        ]
        if any(grammar.names_another_tool(call) for call in written):
            return "the ids call another tool"
    elif texts["call_arguments"] and not grammar.has_marker(answer.content):
        return "the ids hold tool calls that the answer lacks"
    if grammar.has_marker(answer.content):
        # Raw or inline form: marks stand in content, with blanks round them or without. Reasoning may
        # stand there too, or in a field of its own.
        apart = bool(reasoning.strip() and answer.reasoning)
        if _letters(answer.content) not in _letters(
            _decoded(answer, encoder, grammar, after_reasoning=apart)
        ):
            return "content differs from the ids' text"
        if apart and reasoning.strip() != answer.reasoning.strip():
            return "reasoning differs from the ids' text"
        return None
    tail = "\ufffd" if ending_of(answer) is Ending.LENGTH else ""
    for name, mine, theirs in (
        ("reasoning", reasoning, answer.reasoning),
        ("content", content, answer.content),
    ):
        if mine.strip().rstrip(tail) != theirs.strip().rstrip(tail):
            return f"{name} differs from the ids' text"
    return None


def _decoded(answer: Answer, encoder: Encoder, grammar: CompiledGrammar, *, after_reasoning: bool) -> str:
    """The ids' text, marks included; all of it, or what comes after the reasoning."""
    assert answer.native_ids is not None
    ids, start = answer.native_ids, 0
    if after_reasoning:
        start = next((span.end for span in spans_of(ids, grammar) if span.kind == "reasoning"), 0)
    return encoder.decode_bytes(ids[start:]).decode("utf-8", "replace")


def _letters(text: str) -> str:
    """Without blanks: joiner spaces stand around every mark of a raw answer."""
    return "".join(text.split())
