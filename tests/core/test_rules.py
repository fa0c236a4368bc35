import numpy as np
import pytest
from native_writer import (
    ARGUMENT,
    CALL,
    CALL_END,
    END,
    SECTION,
    SECTION_END,
    THINK_END,
    Structured,
    native_ids,
)

from pipeline.core.grammar import CompiledGrammar
from pipeline.core.native import spans_of
from pipeline.core.rules import RULES, Columns, Facts, check, unparsable_arguments

_PROMPT = [163587, 2482, 163601, 9663, 163586, 163588, 69702, 163601, 163606]


@pytest.fixture
def facts(kimi, kimi_target):
    return Facts(kimi, CompiledGrammar(kimi_target.grammar, kimi.special))


def _columns(rows, facts):
    """Columns of rows given as dicts; what a row leaves out is that of a sound one."""
    ids, starts, spans, span_starts, prompts = [], [0], [], [0], []
    for row in rows:
        prompt = row.get("prompt", _PROMPT)
        ids += [*prompt, *row["completion"]]
        starts.append(len(ids))
        prompts.append(row.get("prompt_length", len(prompt)))
        spans += row.get("spans", spans_of(row["completion"], facts.grammar))
        span_starts.append(len(spans))
    return Columns(
        row_ids=[row.get("row_id", f"r{number}") for number, row in enumerate(rows)],
        ids=np.array(ids, dtype=np.int64),
        starts=np.array(starts, dtype=np.int64),
        prompt_length=np.array(prompts, dtype=np.int64),
        endings=[row.get("ending", "stop") for row in rows],
        flags=[row.get("flags", []) for row in rows],
        texts=[row.get("text") or _text(row["completion"], facts) for row in rows],
        span_kinds=[span.kind for span in spans],
        span_begin=np.array([span.start for span in spans], dtype=np.int64),
        span_end=np.array([span.end for span in spans], dtype=np.int64),
        span_starts=np.array(span_starts, dtype=np.int64),
    )


def _text(ids, facts):
    inside = [token_id for token_id in ids if 0 <= token_id < facts.encoder.vocab_size]
    return facts.encoder.decode_bytes(inside).decode("utf-8", "replace")


def _good(reference):
    plain = native_ids(Structured("r", "c"), reference)
    call = native_ids(
        Structured("r", "", [("functions.f:0", "f", "{}"), ("functions.f:1", "f", "")]), reference
    )
    return [
        {"completion": plain},
        {"completion": call, "ending": "tool_calls"},
        {"completion": plain[:2], "ending": "length"},
        {"completion": call[:6], "ending": "length"},
        {"completion": [THINK_END, *plain[2:]], "flags": ["empty_reasoning"]},
    ]


def test_sound_rows_break_no_rule(facts, reference):
    broken = check(_columns(_good(reference), facts), facts)
    assert {name for name, rows in broken.items() if rows.any()} == set()
    assert list(broken) == [rule.__name__ for rule in RULES]


def test_no_rows_are_sound(facts):
    assert not any(rows.any() for rows in check(_columns([], facts), facts).values())


_FAULTS = {
    "row_ids_unique": {"row_id": "r0", "completion": [64, THINK_END, 65, END]},
    "ids_in_vocabulary": {"completion": [163840, THINK_END, 65, END]},
    "mask_has_both": {"prompt_length": 0, "completion": [64, THINK_END, 65, END]},
    "mask_starts_at_generation": {"prompt_length": 7, "completion": [64, THINK_END, 65, END]},
    "prompt_opens_turn": {"prompt": _PROMPT[:-1], "completion": [64, THINK_END, 65, END]},
    "one_end_token_and_last": {"completion": [64, THINK_END, 65]},
    "no_special_in_text": {"completion": [64, 163700, THINK_END, 65, END]},
    "marks_nested": {"completion": [64, THINK_END, SECTION, CALL, 65, CALL_END, SECTION_END, END]},
    "decodes_to_text": {"completion": [64, THINK_END, 65, END], "text": "something else"},
    "empty_reasoning_is_stated": {"completion": [THINK_END, 65, END]},
}


@pytest.mark.parametrize("rule", _FAULTS)
def test_each_rule_fails_on_its_planted_fault(rule, facts, reference):
    rows = [*_good(reference), _FAULTS[rule]]
    broken = check(_columns(rows, facts), facts)
    assert broken[rule].tolist() == [False] * 5 + [True]


def test_every_rule_has_a_planted_fault():
    assert {rule.__name__ for rule in RULES} == {*_FAULTS, "within_max_length"}


def test_length_limit_counts_prompt_and_completion(facts, reference):
    columns = _columns(_good(reference)[:1], facts)
    length = len(columns.ids)
    for limit, expected in ((length, False), (length - 1, True)):
        limited = Facts(facts.encoder, facts.grammar, max_length=limit)
        assert check(columns, limited)["within_max_length"].tolist() == [expected]


@pytest.mark.parametrize(
    ("completion", "ending"),
    [
        ([64, THINK_END, 65, END], "length"),
        ([64, THINK_END, END, 65, END], "stop"),
        ([64, THINK_END, 65, END, 66], "stop"),
    ],
)
def test_end_tokens_in_wrong_places(completion, ending, facts):
    broken = check(_columns([{"completion": completion, "ending": ending}], facts), facts)
    assert broken["one_end_token_and_last"].tolist() == [True]


@pytest.mark.parametrize(
    ("marks", "ending", "broken"),
    [
        ([SECTION, CALL, 64, ARGUMENT, 65, CALL_END, SECTION_END], "tool_calls", False),
        ([SECTION, CALL, 64, ARGUMENT], "length", False),
        ([SECTION], "length", False),
        ([SECTION, SECTION], "length", True),
        ([CALL, 64, ARGUMENT, 65, CALL_END], "tool_calls", True),
        ([SECTION, SECTION_END], "tool_calls", True),
    ],
)
def test_marks_are_nested_or_cut(marks, ending, broken, facts):
    end = [] if ending == "length" else [END]
    columns = _columns([{"completion": [64, THINK_END, *marks, *end], "ending": ending}], facts)
    assert check(columns, facts)["marks_nested"].tolist() == [broken]


def test_arguments_that_are_no_json_are_noted_not_refused(facts, reference):
    rows = [
        {
            "completion": native_ids(Structured("r", "", [("functions.f:0", "f", text)]), reference),
            "ending": "tool_calls",
        }
        for text in ('{"a":1}', '{"a":1')
    ]
    columns = _columns(rows, facts)
    assert unparsable_arguments(columns, facts).tolist() == [False, True]
    assert not any(broken.any() for broken in check(columns, facts).values())
