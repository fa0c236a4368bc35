import json
import re
from pathlib import Path

import pytest

from pipeline.simulator.prompt import prompt_ids, prompt_text
from pipeline.simulator.request import BadRequest, read_request
from tests.simulator.conftest import TOOLS, question

_CASES = [json.loads(line) for line in Path("tests/golden/kimi_k2_5/tokens.jsonl").read_text().splitlines()]


def _asked(**body):
    return read_request({"messages": [{"role": "user", "content": "hi"}], **body})


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case["id"])
def test_official_prompts(case):
    asked = _asked(messages=case["messages"], tools=case["tools"])
    assert prompt_ids(asked) == case["expect"]["prompt_ids"]


def test_old_reasoning_may_come_under_either_name():
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [_call()]},
        {"role": "tool", "tool_call_id": "functions.now:0", "content": "12:00"},
    ]
    one, other = (
        [turns[0], {**turns[1], name: "Why?"}, turns[2]] for name in ("reasoning", "reasoning_content")
    )
    assert "<think>Why?</think>" in prompt_text(_asked(messages=one))
    assert prompt_text(_asked(messages=one)) == prompt_text(_asked(messages=other))


def _call():
    return {"id": "functions.now:0", "type": "function", "function": {"name": "now", "arguments": "{}"}}


@pytest.mark.parametrize(
    "off",
    [
        {"reasoning": {"enabled": False}},
        {"reasoning": {"effort": "none"}},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"thinking": False}},
        {"thinking": {"type": "disabled"}},
    ],
)
def test_thinking_off_closes_it_in_the_prompt(off):
    assert prompt_ids(_asked(**off))[-2:] == [163606, 163607]
    assert prompt_ids(_asked())[-1] == 163606


def test_a_schema_without_typescript_puts_json_in_the_prompt():
    odd = {"type": "function", "function": {"name": "f", "parameters": {}}}
    odd["function"]["parameters"] = {"type": "object", "properties": {"x": {"oneOf": [{"type": "string"}]}}}
    text = prompt_text(_asked(tools=[*TOOLS, odd]))
    assert text.startswith('<|im_system|>tool_declare<|im_middle|>[{"function":{"name":"search"')
    assert "namespace" not in text


def _tool(**properties):
    return {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}


def test_the_vendor_puts_keys_in_order():
    ordered = _tool(a={"type": "string", "default": {"x": 1, "y": 2}}, b={"type": "integer"})
    reordered = _tool(b={"type": "integer"}, a={"default": {"y": 2, "x": 1}, "type": "string"})
    ordered["function"]["parameters"]["$defs"] = {"A": {"type": "string"}, "B": {"type": "string"}}
    reordered["function"]["parameters"]["$defs"] = {"B": {"type": "string"}, "A": {"type": "string"}}
    assert prompt_ids(_asked(tools=[reordered])) == prompt_ids(_asked(tools=[ordered]))


def test_enums_and_defaults_are_printed_as_the_vendor_does():
    odd = [1, 2.5, None, True, "1", {"k": None}]
    text = prompt_text(_asked(tools=[_tool(a={"enum": odd}, b={"type": "boolean", "default": True})]))
    assert "a?: 1 | 2.5 | None | True | \"1\" | {'k': None},\n  // Default: True\n  b?: boolean\n" in text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "enum": ["1", 2]},
        {"type": ["boolean", "null"], "enum": [1]},
        {"type": ["a", "b"], "enum": []},
    ],
)
def test_an_enum_against_its_type_puts_json_in_the_prompt(schema):
    text = prompt_text(_asked(tools=[_tool(a=schema)]))
    assert text.startswith('<|im_system|>tool_declare<|im_middle|>[{"function"')
    fitting = {"type": ["null", "string"], "enum": ["1", None]}
    assert 'a?: "1" | None' in prompt_text(_asked(tools=[_tool(a=fitting)]))


def test_a_prompt_does_not_remember_the_one_before():
    first = prompt_ids(read_request(question(0)))
    prompt_ids(
        _asked(tools=[{"type": "function", "function": {"name": "f", "parameters": {"properties": 3}}}])
    )
    assert prompt_ids(read_request(question(0))) == first


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ([], "no JSON object"),
        ({}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": ["x"]}]}, "tool_calls"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": {}}, "tools"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [1]}, "tools"),
        ({"messages": [{"role": "user", "content": "x"}], "stream": "yes"}, "stream"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "surrogate"),
    ],
)
def test_refused_requests(body, named):
    with pytest.raises(BadRequest, match=re.escape(named)):
        read_request(body)
