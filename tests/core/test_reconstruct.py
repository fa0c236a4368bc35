import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_writer import END, MARKS, THINK_END, Structured, body, cut_fields, fields, native_ids

from pipeline.config import Profile
from pipeline.core.answer import read_answer
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.reconstruct import Case, reconstruct, reconstruct_batch
from pipeline.records import Action, Ending, Fidelity

_TOKENS = [json.loads(line) for line in Path("tests/golden/kimi_k2_5/tokens.jsonl").read_text().splitlines()]
_TOOLS = [{"type": "function", "function": {"name": name}} for name in ("find", "get_weather", "f")]
_REQUEST = {"messages": [{"role": "user", "content": "x"}], "tools": _TOOLS, "max_tokens": 5000}


@pytest.fixture(scope="session")
def grammar(kimi, kimi_target):
    return CompiledGrammar(kimi_target.grammar, kimi.special)


def _read(message, ids, finish, kimi, grammar, profile=None, request=_REQUEST, **usage):
    answer = read_answer(body(message, ids, finish, **usage))
    return reconstruct(Case(answer, request, profile), kimi, grammar)


def test_given_token_cases_in_one_batch(kimi, grammar):
    cases = []
    for case in _TOKENS:
        response = case["response"]
        message = {key: response[key] for key in ("reasoning", "content", "tool_calls")}
        choice = {"message": message, "finish_reason": response["finish_reason"]}
        answer = read_answer({"choices": [choice], "usage": response["usage"]})
        cases.append(Case(answer, {"messages": case["messages"], "tools": case["tools"]}))
    results = reconstruct_batch(cases, kimi, grammar)
    for case, result in zip(_TOKENS, results, strict=True):
        assert list(result.completion_ids or ()) == case["expect"]["completion_ids"], case["id"]
        assert result.text == case["expect"]["decoded"], case["id"]


# --- round trips: structured answer -> native ids (independent writer) -> fields -> our ids ----------

_BLANKS = ["\n", "\n\n", " ", "  ", "\t", "\r\n", " " * 33, "\u200b", "\u2028"]
_WORDS = [".", "don't", "I'LL", "0", "123456", "```py\n", "{", '"', "://", "=" * 40]
_SCRIPTS = ["你好，", "世界", "Привет ", "ありがとう", "👨\u200d👩\u200d👧", "é", "ا", "สวัสดี", "नमस्ते"]
_SPECIALS = [*MARKS.values(), "<|im_end|>", "<think>", "<|channel|>", "<|reserved_token_163700|>"]
_PIECES = st.sampled_from([*_BLANKS, *_WORDS, *_SCRIPTS, *_SPECIALS])
_CHARS = st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")
_TEXT = st.lists(_PIECES | st.text(_CHARS, max_size=12), max_size=8).map("".join)
_KEYS = st.text(_CHARS, max_size=6)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | st.text(_CHARS, max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=5,
)


def _layouts(value):
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return st.sampled_from([json.dumps(value), compact, json.dumps(value, indent=1), ""])


_ARGUMENTS = _JSON.flatmap(_layouts)


@st.composite
def _answers(draw):
    names = draw(st.lists(st.sampled_from(["find", "get_weather", "f"]), max_size=3))
    calls = [(f"functions.{name}:{index}", name, draw(_ARGUMENTS)) for index, name in enumerate(names)]
    return Structured(draw(_TEXT), draw(_TEXT), calls)


@settings(max_examples=1500, deadline=None)
@given(answer=_answers())
def test_a_verbatim_answer_comes_back_exactly(kimi, grammar, reference, answer):
    ids = native_ids(answer, reference)
    finish = "tool_calls" if answer.calls else "stop"
    result = _read(fields(answer), ids, finish, kimi, grammar)
    if result.action.usable:
        assert list(result.completion_ids) == ids
        assert result.fidelity is Fidelity.COUNTED
    else:  # several readings may fit the count; the true one is then among the candidates
        assert result.action is Action.AMBIGUOUS
        assert tuple(ids) in [found for _, found in result.candidates]


@settings(max_examples=1000, deadline=None)
@given(answer=_answers(), share=st.floats(0, 1))
def test_a_cut_answer_is_exact_or_not_claimed(kimi, grammar, reference, answer, share):
    whole = native_ids(answer, reference)
    ids = whole[: max(1, int(share * (len(whole) - 1)))]
    result = _read(cut_fields(ids, reference), ids, "length", kimi, grammar)
    assert END not in (result.completion_ids or ())
    if result.completion_ids is not None:
        assert list(result.completion_ids) == ids
        assert result.ending is Ending.LENGTH


@settings(max_examples=600, deadline=None)
@given(answer=_answers(), rstrip=st.booleans())
def test_joiner_spaces_are_undone_under_their_profile(kimi, grammar, reference, answer, rstrip):
    ids = native_ids(answer, reference)
    message = fields(answer)
    message["reasoning"] = f" {answer.reasoning} " if answer.reasoning else ""
    message["content"] = f" {answer.content}" + (" " if answer.calls else "") if answer.content else ""
    if rstrip:
        message["reasoning"] = message["reasoning"].rstrip()
    profile = Profile(space_join=True, strips="reasoning_tail" if rstrip else "none")
    finish = "tool_calls" if answer.calls else "stop"
    result = _read(message, ids, finish, kimi, grammar, profile)
    if result.completion_ids is not None and result.fidelity is not Fidelity.UNVERIFIED:
        assert list(result.completion_ids) == ids


@settings(max_examples=600, deadline=None)
@given(answer=_answers())
def test_a_stripping_provider_is_never_wrongly_trusted(kimi, grammar, reference, answer):
    ids = native_ids(answer, reference)
    message = fields(answer)
    message["reasoning"], message["content"] = answer.reasoning.strip(), answer.content.strip()
    finish = "tool_calls" if answer.calls else "stop"
    result = _read(message, ids, finish, kimi, grammar, Profile(strips="both"))
    if result.completion_ids is not None and result.fidelity is Fidelity.COUNTED:
        assert list(result.completion_ids) == ids


# --- single decisions ---------------------------------------------------------------------------


def _simple(reference, reasoning="Think.", content="Say."):
    answer = Structured(reasoning, content)
    return answer, native_ids(answer, reference)


def test_no_end_token_is_invented_after_a_cut(kimi, grammar, reference):
    _, ids = _simple(reference)
    result = _read({"reasoning": "Think.", "content": "Say."}, ids[:-1], "length", kimi, grammar)
    assert (list(result.completion_ids), result.ending) == (ids[:-1], Ending.LENGTH)


def test_a_cut_inside_reasoning_has_no_think_end(kimi, grammar, reference):
    _, ids = _simple(reference)
    result = _read({"reasoning": "Think.", "content": None}, ids[:2], "length", kimi, grammar)
    assert THINK_END not in result.completion_ids


def test_provider_that_does_not_count_the_end_token(kimi, grammar, reference):
    answer, ids = _simple(reference)
    assert _read(fields(answer), ids[:-1], "stop", kimi, grammar).action is Action.AMBIGUOUS
    known = _read(fields(answer), ids[:-1], "stop", kimi, grammar, Profile(counts_end=False))
    assert (known.action, list(known.completion_ids)) == (Action.OK, ids)


def test_without_a_count_only_a_known_provider_is_read(kimi, grammar, reference):
    answer, ids = _simple(reference)
    unknown = _read(fields(answer), ids, "stop", kimi, grammar, completion_tokens=None)
    assert unknown.action is Action.AMBIGUOUS
    known = _read(fields(answer), ids, "stop", kimi, grammar, Profile(), completion_tokens=None)
    assert (known.action, known.fidelity, list(known.completion_ids)) == (Action.OK, Fidelity.UNVERIFIED, ids)


def test_leaked_end_mark_is_dropped_by_the_count_or_without_one(kimi, grammar, reference):
    answer, ids = _simple(reference)
    leaked = {**fields(answer), "content": "Say.<|im_end|>"}
    for count in (len(ids), None):
        result = _read(leaked, ids, "stop", kimi, grammar, Profile(), completion_tokens=count)
        assert (result.action, list(result.completion_ids)) == (Action.REPAIR, ids)
        assert "leaked_mark_dropped" in result.flags


def test_a_spelled_end_mark_stays_text_when_the_count_says_so(kimi, grammar, reference):
    answer, ids = _simple(reference, content="The mark is <|im_end|>")
    result = _read(fields(answer), ids, "stop", kimi, grammar)
    assert (result.action, list(result.completion_ids)) == (Action.OK, ids)


def test_replacement_character_is_never_encoded(kimi, grammar, reference):
    answer, ids = _simple(reference, content="caf\ufffd")
    assert _read(fields(answer), ids, "length", kimi, grammar).action is Action.AMBIGUOUS


def test_half_a_character_is_a_reject_not_a_crash(kimi, grammar):
    result = _read({"reasoning": "a\ud83d", "content": "b"}, [1, 2, 3, 4], "stop", kimi, grammar)
    assert (result.action, result.flags) == (Action.AMBIGUOUS, ("unencodable",))


def test_one_bad_text_does_not_spoil_its_batch(kimi, grammar, reference):
    answer, ids = _simple(reference)
    bad = read_answer(body({"reasoning": "a\udc00", "content": "b"}, ids, "stop"))
    good = read_answer(body(fields(answer), ids, "stop"))
    results = reconstruct_batch([Case(bad, _REQUEST), Case(good, _REQUEST)], kimi, grammar)
    assert [result.action for result in results] == [Action.AMBIGUOUS, Action.OK]


def test_arguments_that_came_as_an_object_are_rebuilt_by_the_count(kimi, grammar, reference):
    compact = Structured("r", "", [("functions.f:0", "f", '{"a":1,"bb":[2,3]}')])
    ids = native_ids(compact, reference)
    message = fields(compact)
    message["tool_calls"][0]["function"]["arguments"] = {"a": 1, "bb": [2, 3]}
    result = _read(message, ids, "tool_calls", kimi, grammar)
    assert (result.action, list(result.completion_ids)) == (Action.REPAIR, ids)
    assert "arguments_rebuilt" in result.flags


def test_empty_arguments_shown_as_braces(kimi, grammar, reference):
    empty = Structured("r", "", [("functions.f:0", "f", "")])
    ids = native_ids(empty, reference)
    message = fields(Structured("r", "", [("functions.f:0", "f", "{}")]))
    # Alone, the missing token may as well be the </think> that some calls lack (vllm#32216).
    alone = _read(message, ids, "tool_calls", kimi, grammar)
    assert alone.action is Action.AMBIGUOUS
    assert tuple(ids) in [found for _, found in alone.candidates]
    known = _read(message, ids, "tool_calls", kimi, grammar, Profile(empty_arguments="braces"))
    assert (known.action, list(known.completion_ids)) == (Action.REPAIR, ids)


def test_reasoning_that_holds_the_whole_tool_section(kimi, grammar, reference):
    section = [*reference.encode_ordinary("go"), 163595, 163597, *reference.encode_ordinary("functions.f:0")]
    ids = [*section, 163598, *reference.encode_ordinary("{}"), 163599, 163596, END]
    text = "go" + "".join(
        [MARKS[163595], MARKS[163597], "functions.f:0", MARKS[163598], "{}", MARKS[163599], MARKS[163596]]
    )
    result = _read({"reasoning": text, "content": ""}, ids, "tool_calls", kimi, grammar)
    assert (result.action, list(result.completion_ids)) == (Action.REPAIR, ids)


def test_calls_given_raw_and_parsed_are_one_call(kimi, grammar, reference):
    structured = Structured("go", "", [("functions.f:0", "f", '{"a":1}')])
    ids = native_ids(structured, reference)
    raw = reference.decode(ids[ids.index(163595) : -1])
    result = _read({**fields(structured), "content": raw}, ids, "tool_calls", kimi, grammar)
    assert (result.action, list(result.completion_ids)) == (Action.REPAIR, ids)
    assert "calls_given_twice" in result.flags


def test_missing_finish_reason_is_settled_by_the_count(kimi, grammar, reference):
    answer, ids = _simple(reference)
    ended = _read(fields(answer), ids, None, kimi, grammar)
    assert (list(ended.completion_ids), ended.ending, ended.action) == (ids, Ending.STOP, Action.REPAIR)
    assert "finish_missing" in ended.flags
    cut = _read(fields(answer), ids[:-1], None, kimi, grammar)
    assert (list(cut.completion_ids), cut.ending) == (ids[:-1], Ending.LENGTH)


def test_cache_hit_needs_no_count_and_stays_unverified(kimi, grammar, reference):
    answer, ids = _simple(reference)
    whole = body(fields(answer), ids, "stop", completion_tokens=0, prompt_tokens=0)
    result = reconstruct(Case(read_answer(whole, cache_hit=True), _REQUEST), kimi, grammar)
    assert (result.action, result.fidelity, list(result.completion_ids)) == (
        Action.OK,
        Fidelity.UNVERIFIED,
        ids,
    )


def test_a_think_mark_spelled_inside_raw_arguments_stays_text(kimi, grammar, reference):
    structured = Structured("go", "", [("functions.f:0", "f", '{"a":"</think>"}')])
    ids = native_ids(structured, reference)
    raw = reference.decode(ids[ids.index(163595) : -1])
    result = _read({"reasoning": "go", "content": raw}, ids, "tool_calls", kimi, grammar)
    assert list(result.completion_ids) == ids


@pytest.mark.parametrize(
    ("reasoning", "content"),
    [
        ('split("</think>") is wrong', "Yes."),
        ("a </think> b", "c"),
        ("a", "b </think> c"),
        ("</think>", "</think>"),
    ],
)
def test_an_inline_answer_that_spells_the_mark_is_not_split_by_guess(
    kimi, grammar, reference, reasoning, content
):
    ids = native_ids(Structured(reasoning, content), reference)
    result = _read({"content": f"{reasoning}</think>{content}"}, ids, "stop", kimi, grammar)
    if result.action is Action.AMBIGUOUS:
        assert tuple(ids) in [found for _, found in result.candidates]
    else:  # only where the count tells the marks apart
        assert list(result.completion_ids) == ids


def test_an_inline_answer_with_calls_is_split_at_its_mark(kimi, grammar, reference):
    structured = Structured("I ask.", "", [("functions.f:0", "f", "{}")])
    ids = native_ids(structured, reference)
    message = {**fields(structured), "reasoning": None, "content": "I ask.</think>"}
    result = _read(message, ids, "tool_calls", kimi, grammar)
    assert (list(result.completion_ids), result.flags) == (ids, ("split_by_us",))


def test_raw_calls_whose_section_opens_inside_reasoning(kimi, grammar, reference):
    structured = Structured("I ask.", "", [("functions.f:0", "f", "{}")])
    ids = [token for token in native_ids(structured, reference) if token != THINK_END]
    raw = reference.decode(ids[ids.index(163595) : -1])
    result = _read({"reasoning": "I ask.", "content": raw}, ids, "tool_calls", kimi, grammar)
    assert list(result.completion_ids) == ids
    assert "think_end_absent" in result.flags


def test_a_cut_call_is_closed_only_after_whole_arguments(kimi, grammar, reference):
    structured = Structured("r", "", [("functions.f:0", "f", "{")])
    ids = native_ids(structured, reference)
    cut = ids[: ids.index(163599)]
    result = _read(fields(structured), cut, "length", kimi, grammar, completion_tokens=len(cut) + 1)
    assert result.action is Action.AMBIGUOUS


def test_a_foreign_id_as_long_as_the_models_own_is_not_verified(kimi, grammar, reference):
    structured = Structured("r", "", [("functions.f:0", "f", "{}")])
    ids = native_ids(structured, reference)
    message = fields(structured)
    message["tool_calls"][0]["id"] = "call_12ab"
    assert len(reference.encode_ordinary("call_12ab")) == len(reference.encode_ordinary("functions.f:0"))
    result = _read(message, ids, "tool_calls", kimi, grammar)
    assert (result.action, result.fidelity) == (Action.OK, Fidelity.UNVERIFIED)
    assert "foreign_id_kept" in result.flags


@pytest.mark.parametrize(("name", "action"), [("f", Action.REPAIR), ("nope", Action.FATAL_ROW)])
def test_a_raw_call_of_a_tool_that_was_not_offered_is_no_row(kimi, grammar, reference, name, action):
    structured = Structured("go", "", [(f"functions.{name}:0", name, "{}")])
    ids = native_ids(structured, reference)
    raw = reference.decode(ids[ids.index(163595) : -1])
    result = _read({"reasoning": "go", "content": raw}, ids, "tool_calls", kimi, grammar)
    assert result.action is action
