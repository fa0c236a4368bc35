import pytest
from native_writer import END, Structured, body, fields, native_ids

from pipeline.core.answer import read_answer
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.native import why_not_native
from pipeline.core.reconstruct import Case, reconstruct
from pipeline.records import Action, Fidelity

_CALL = Structured("r.", "c", [("functions.f:0", "f", '{"a": 1}')])
_REQUEST = {"messages": [], "tools": [{"function": {"name": "f"}}]}


@pytest.fixture
def grammar(kimi, kimi_target):
    return CompiledGrammar(kimi_target.grammar, kimi.special)


def _answer(structured, ids, finish, message=None, **usage):
    whole = body(message or fields(structured), ids, finish, **usage)
    whole["choices"][0]["token_ids"] = ids
    return read_answer(whole)


def test_a_split_that_no_text_can_show_is_kept(kimi, grammar, reference):
    hello = Structured("Two.", "hello")
    ids = native_ids(hello, reference)
    assert reference.decode([5816, 773]) == "hello"
    unusual = [*ids[:-2], 5816, 773, END]
    result = reconstruct(Case(_answer(hello, unusual, "stop"), _REQUEST), kimi, grammar)
    assert (result.fidelity, list(result.completion_ids)) == (Fidelity.NATIVE, unusual)


@pytest.mark.parametrize("finish", ["stop", "tool_calls"])
def test_honest_ids_pass_with_and_without_calls(kimi, grammar, reference, finish):
    structured = _CALL if finish == "tool_calls" else Structured("r", " c\n")
    ids = native_ids(structured, reference)
    assert why_not_native(_answer(structured, ids, finish), kimi, grammar) is None


def test_whitespace_that_a_parser_took_from_the_text_does_not_matter(kimi, grammar, reference):
    structured = Structured(" r\n", "\n\nc ")
    ids = native_ids(structured, reference)
    stripped = {"reasoning": "r", "content": "c"}
    assert why_not_native(_answer(structured, ids, "stop", stripped), kimi, grammar) is None


def _drop(ids):
    return ids[:2] + ids[3:]


@pytest.mark.parametrize(
    ("damage", "finish", "why"),
    [
        (_drop, "tool_calls", "counted"),
        (lambda ids: ids[:-1], "tool_calls", "counted"),
        (lambda ids: [*ids[:-1], 163585], "tool_calls", "last id"),
        (lambda ids: ids, "length", "ends the turn"),
        (lambda ids: [*ids[:1], END, *ids[2:]], "tool_calls", "before the last"),
        (lambda ids: [9, *ids[1:]], "tool_calls", "reasoning differs"),
        (lambda ids: [163840, *ids[1:]], "tool_calls", "vocabulary"),
        (lambda ids: [*ids[:-4], 220, *ids[-3:]], "tool_calls", "arguments differ"),
    ],
)
def test_each_damage_is_seen_and_the_text_is_read_instead(kimi, grammar, reference, damage, finish, why):
    ids = native_ids(_CALL, reference)
    answer = _answer(_CALL, damage(ids), finish, completion_tokens=len(ids))
    assert why in why_not_native(answer, kimi, grammar)
    result = reconstruct(Case(answer, _REQUEST), kimi, grammar)
    assert result.fidelity is not Fidelity.NATIVE
    assert "native_ids_rejected" in result.flags
    if finish == "tool_calls":
        assert (result.action, list(result.completion_ids)) == (Action.REPAIR, ids)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda ids: [*ids[:-3], ids[-2], ids[-3], ids[-1]], "order of the grammar"),
        (lambda ids: [163597 if token == 163596 else token for token in ids], "order of the grammar"),
        (lambda ids: [*ids[:3], 163607, *ids[3:]], "order of the grammar"),
        (lambda ids: [*ids[:3], 163700, *ids[3:]], "order of the grammar"),
    ],
)
def test_marks_out_of_order_are_no_ids_of_this_model(kimi, grammar, reference, change, why):
    ids = change(native_ids(_CALL, reference))
    assert why in why_not_native(_answer(_CALL, ids, "tool_calls"), kimi, grammar)


def test_ids_that_call_another_tool(kimi, grammar, reference):
    other = Structured("r.", "c", [("functions.g:0", "g", '{"a": 1}')])
    ids = native_ids(other, reference)
    assert "another tool" in why_not_native(_answer(_CALL, ids, "tool_calls"), kimi, grammar)
