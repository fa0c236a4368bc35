import json
import re

import pytest

from pipeline.simulator.arguments import arguments_for
from pipeline.simulator.chance import Chance
from pipeline.simulator.composer import compose, topic
from pipeline.simulator.profile import NativeRates
from pipeline.simulator.request import read_request
from pipeline.simulator.texts import load_corpus
from tests.simulator.conftest import TOOLS, question

_SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b", None, True]},
        "count": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"$ref": "#/$defs/place"},
        "either": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "always": {"const": 5},
        "free": {"type": "object"},
        "union": {"type": ["string", "boolean"]},
    },
    "required": ["kind", "count", "tags", "place", "either", "always", "free", "union"],
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "inside": {"$ref": "#/$defs/place"}},
            "required": ["name"],
        }
    },
}


def _fits(value):
    assert set(value) == set(_SCHEMA["required"])
    assert value["kind"] in ["a", "b", None, True]
    assert type(value["count"]) is int
    assert all(isinstance(tag, str) for tag in value["tags"])
    assert isinstance(value["place"]["name"], str)
    assert value["either"] is None or isinstance(value["either"], int | float)
    assert value["always"] == 5
    assert isinstance(value["free"], dict)
    assert isinstance(value["union"], str | bool)


def test_arguments_fit_their_schema_in_many_layouts():
    texts = [arguments_for(_SCHEMA, 0.0, Chance(n), load_corpus()) for n in range(300)]
    for text in texts:
        _fits(json.loads(text))
    assert any('":' in text and '": ' not in text for text in texts)
    assert any(text.startswith('{"') and '": ' in text for text in texts)
    assert any(text.startswith("{\n  ") for text in texts)
    assert any(text.startswith("{\n\t") for text in texts)
    assert any("\\u" in text for text in texts)
    assert any(not text.isascii() for text in texts)


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {},
        {"type": "string"},
        {"$ref": "#"},
        {"$ref": "#/nowhere"},
        {"properties": 3},
        {"type": []},
        [1],
    ],
)
def test_a_strange_schema_still_gives_an_object(schema):
    for n in range(20):
        assert isinstance(json.loads(arguments_for(schema, 0.0, Chance(n), load_corpus())), dict)


def test_a_schema_that_requires_itself_ends():
    schema = {"type": "object", "properties": {"in": {"$ref": "#"}}, "required": ["in"]}
    assert json.loads(arguments_for(schema, 0.0, Chance(1), load_corpus()))


def test_borrowed_arguments_come_from_the_corpus(tiny_corpus):
    texts = {arguments_for(_SCHEMA, 1.0, Chance(n), load_corpus(tiny_corpus)) for n in range(40)}
    assert {json.dumps(json.loads(text)) for text in texts} == {'{"a": 1}'}
    assert len(texts) > 1


def _said(number, rates, **extra):
    asked = read_request(question(number, **extra))
    return compose(asked, rates, load_corpus(), Chance(asked.hash))


def _many(rates, count=200, **extra):
    return [_said(n, rates, **extra) for n in range(count)]


def test_calls_count_on_from_the_conversation():
    history = [
        {"role": "user", "content": "Look it up."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": f"functions.now:{n}",
                    "type": "function",
                    "function": {"name": "now", "arguments": "{}"},
                }
                for n in range(2)
            ],
        },
        {"role": "tool", "tool_call_id": "functions.now:1", "content": "12:00"},
    ]
    calling = [
        said for said in _many(NativeRates(), 100, messages=history, tools=TOOLS, salt=1) if said.calls
    ]
    assert not calling  # the same body every time, so all or none; the next line varies it
    varied = [
        _said(n, NativeRates(calls_again=1.0), messages=history, tools=TOOLS, salt=n) for n in range(30)
    ]
    for said in varied:
        for place, call in enumerate(said.calls):
            assert re.fullmatch(rf"functions\.(search|now):{2 + place}", call.id)
    assert max(len(said.calls) for said in varied) > 1


def test_rates_are_kept():
    plain = _many(NativeRates(calls=0.5, edge_whitespace=0.0, hostile=0.0), 300, tools=TOOLS)
    assert not any(said.notes for said in plain)
    assert 100 < sum(bool(said.calls) for said in plain) < 200
    assert any(said.calls and not said.content for said in plain)
    odd = NativeRates(
        calls=1.0,
        bare_calls=1.0,
        no_think_end=0.5,
        short_call_id=0.5,
        text_after_calls=0.5,
        empty_arguments=0.5,
        argument_whitespace=0.5,
        literal_marker=0.5,
        hostile=0.5,
        empty_reasoning=0.1,
    )
    said = _many(odd, 200, tools=TOOLS)
    for note in (
        "no_think_end",
        "short_call_id",
        "text_after_calls",
        "empty_arguments",
        "argument_whitespace",
        "literal_marker",
        "hostile",
        "empty_reasoning",
    ):
        assert sum(note in one.notes for one in said) > 5, note
    assert all(one.closes_reasoning == ("no_think_end" not in one.notes) for one in said)
    assert all(one.reasoning for one in said if not one.closes_reasoning)
    assert all((one.reasoning == "") == ("empty_reasoning" in one.notes) for one in said)
    assert all(bool(one.after_calls) == ("text_after_calls" in one.notes) for one in said)


def test_tool_choice_is_obeyed():
    assert not any(said.calls for said in _many(NativeRates(calls=1.0), 30, tools=TOOLS, tool_choice="none"))
    assert all(said.calls for said in _many(NativeRates(calls=0.0), 30, tools=TOOLS, tool_choice="required"))
    named = {"type": "function", "function": {"name": "now"}}
    calls = [call for said in _many(NativeRates(), 30, tools=TOOLS, tool_choice=named) for call in said.calls]
    assert calls
    assert all(call.id.startswith("functions.now:") for call in calls)


def test_thinking_off_gives_no_reasoning():
    assert not any(said.reasoning for said in _many(NativeRates(), 30, reasoning={"enabled": False}))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("请写一首关于长江的诗", "chinese"),
        ("Write a Python function that reverses a list", "code"),
        ("What is 25 * 37?", "math"),
        ("Tell me about boats", "chat"),
    ],
)
def test_the_answer_is_about_the_question(text, kind):
    assert topic(read_request({"messages": [{"role": "user", "content": text}]})) == kind


def test_a_small_corpus_is_enough(tiny_corpus):
    asked = read_request({"messages": [{"role": "user", "content": "What is 25 * 37?"}], "tools": TOOLS})
    for n in range(50):
        said = compose(asked, NativeRates(), load_corpus(tiny_corpus), Chance(n))
        assert said.reasoning
        assert said.content or said.calls
