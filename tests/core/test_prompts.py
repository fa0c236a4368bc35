"""Source rows of every shape -> the request, or the reason why there is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.config import FileSource, Mapping, PromptSettings
from pipeline.core.prompts import sampled, to_prompt
from pipeline.core.shapes import Refused
from pipeline.records import Prompt

Row = dict[str, Any]


def settings(shape: str, turns: str = "last", **mapping: Any) -> PromptSettings:
    source = FileSource(kind="path", path="x.jsonl")
    return PromptSettings(source=source, mapping=Mapping(shape=shape, **mapping), turns=turns)  # type: ignore[arg-type]


def read(row: Row, shape: str = "messages", turns: str = "last", **mapping: Any) -> Prompt:
    return to_prompt(row, 0, settings(shape, turns, **mapping))


def reason(row: Row, shape: str = "messages", turns: str = "last", **mapping: Any) -> str:
    with pytest.raises(Refused) as refused:
        read(row, shape, turns, **mapping)
    assert str(refused.value)
    str(refused.value).encode()  # it is stored as UTF-8
    return refused.value.reason


def said(prompt: Prompt) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in prompt.messages]


def user(text: Any) -> Row:
    return {"role": "user", "content": text}


def answer(text: Any, **more: Any) -> Row:
    return {"role": "assistant", "content": text, **more}


def call(name: str = "f", arguments: Any = "{}", call_id: str | None = "c1") -> Row:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text: str, call_id: str | None = "c1") -> Row:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def test_last_drops_the_answers_at_the_end() -> None:
    rows = [user("a"), answer("b", reasoning_content="why"), user("c"), answer("d"), answer("e")]
    prompt = read({"messages": rows})
    assert prompt.messages == (user("a"), answer("b", reasoning_content="why"), user("c"))
    assert prompt.following_turns == ()


def test_last_keeps_a_tool_result_at_the_end() -> None:
    loop = [user("a"), answer("", tool_calls=[call(arguments='{"x":  1}')]), result("42"), answer("It's 42.")]
    prompt = read({"messages": loop, "tools": [{"name": "f", "parameters": {}}]}, tools_field="tools")
    assert [message["role"] for message in prompt.messages] == ["user", "assistant", "tool"]
    assert prompt.messages[1]["tool_calls"][0]["function"]["arguments"] == '{"x":  1}'
    assert prompt.tools == ({"type": "function", "function": {"name": "f", "parameters": {}}},)


def test_each_keeps_only_user_turns_after_the_first() -> None:
    rows = [{"role": "system", "content": "s"}, user("a"), answer("b"), user("c"), answer("d"), user("e")]
    prompt = read({"messages": rows}, turns="each")
    assert said(prompt) == [("system", "s"), ("user", "a")]
    assert prompt.following_turns == (user("c"), user("e"))


def test_turns_like_spec_bench() -> None:
    row = {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."], "reference": []}
    prompt = read(row, "turns", "each", id_field="question_id")
    assert (prompt.messages, prompt.following_turns) == ((user("Write."),), (user("Rewrite."),))
    assert prompt.source_id == "81"
    assert reason(row, "turns", "last") == "unanswered_turn"


def test_conversations() -> None:
    row = {
        "conversations": [
            {"from": "system", "value": "s"},
            {"from": "human", "value": "a"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {"x": "é"}}'},
            {"from": "observation", "value": "42"},
            {"from": "gpt", "value": "b"},
        ]
    }
    prompt = read(row, "conversations")
    made = prompt.messages[2]["tool_calls"][0]
    assert [message["role"] for message in prompt.messages] == ["system", "user", "assistant", "tool"]
    assert made == call(arguments='{"x": "é"}', call_id="functions.f:0")
    assert prompt.messages[3]["tool_call_id"] == "functions.f:0"


def test_alpaca() -> None:
    row = {"instruction": "Translate.", "input": "Haus", "output": "house", "history": [["q", "a"]]}
    assert said(read(row, "alpaca")) == [("user", "q"), ("assistant", "a"), ("user", "Translate.\n\nHaus")]
    assert said(read({"instruction": "Hi", "input": ""}, "alpaca")) == [("user", "Hi")]


def test_text_is_taken_as_it_is() -> None:
    assert said(read({"prompt": " a\u2028b\n"}, "text", field="prompt")) == [("user", " a\u2028b\n")]


def test_the_mappings_system_message_is_for_rows_without_one() -> None:
    assert said(read({"text": "a"}, "text", system="s")) == [("system", "s"), ("user", "a")]
    own = {"messages": [{"role": "system", "content": "own"}, user("a")]}
    blank = {"messages": [{"role": "system", "content": ""}, user("a")]}
    assert said(read(own, system="s"))[0] == ("system", "own")
    assert said(read(blank, system="s"))[0] == ("system", "s")


SYSTEM = (
    "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
    '{"name": "rate", "parameters": {"type": "object"}}\n\n{"name": "now", "parameters": {}}\n'
)


def test_glaive() -> None:
    chat = (
        "USER: Rate of USD?\n\n\nASSISTANT: Let me see. <functioncall> "
        '{"name": "rate", "arguments": \'{"note": "it\\\'s", "of":  "USD"}\'} <|endoftext|>\n\n\n'
        'FUNCTION RESPONSE: {"rate": 0.85}\n\n\nASSISTANT: 0.85. <|endoftext|>\n\n\n'
    )
    prompt = read({"system": SYSTEM, "chat": chat}, "glaive")
    assert prompt.messages[0]["content"] == "You are a helpful assistant."
    assert [tool["function"]["name"] for tool in prompt.tools or ()] == ["rate", "now"]
    made = prompt.messages[2]["tool_calls"][0]["function"]
    assert prompt.messages[2]["content"] == "Let me see."
    assert made == {"name": "rate", "arguments": '{"note": "it\'s", "of":  "USD"}'}
    assert said(prompt)[-1] == ("tool", '{"rate": 0.85}')
    assert reason({"system": SYSTEM, "chat": chat}, "glaive", "each") == "tool_messages"


def test_glaive_with_single_line_ends_and_without_functions() -> None:
    system = "SYSTEM: You are a helpful assistant, with no access to external functions."
    prompt = read({"system": system, "chat": "USER: a\nASSISTANT: b <|endoftext|>\nUSER: c\n"}, "glaive")
    assert said(prompt) == [("system", system[8:]), ("user", "a"), ("assistant", "b"), ("user", "c")]
    assert prompt.tools is None


def test_a_pasted_transcript_stays_in_its_message() -> None:
    chat = "USER: Sum up:\nUSER: x\nASSISTANT: y\n\n\nASSISTANT: ok <|endoftext|>\n\n\nUSER: thanks"
    assert said(read({"chat": chat}, "glaive"))[0] == ("user", "Sum up:\nUSER: x\nASSISTANT: y")


@pytest.mark.parametrize(
    ("row", "mapping", "expected"),
    [
        ({"messages": []}, {}, "empty"),
        ({"messages": [user(" \n")]}, {}, "empty"),
        ({"messages": [user("a"), answer(""), user("b")]}, {}, "empty"),
        ({"messages": [{"role": "system", "content": "s"}, answer("a")]}, {}, "no_user_message"),
        ({"messages": [user("a"), {"role": "function", "content": "b"}]}, {}, "unknown_role"),
        ({"messages": [{"role": "\ud800", "content": "b"}]}, {}, "unknown_role"),
        ({"messages": ["a", user("b")]}, {}, "bad_message"),
        ({"messages": [user(["x"])]}, {}, "not_text"),
        ({"messages": [user([{"type": "image_url"}])]}, {}, "not_text"),
        ({"messages": [user(5)]}, {}, "not_text"),
        ({"messages": "[{"}, {}, "bad_json"),
        ({"messages": "[" * 100_000}, {}, "bad_json"),
        ({"messages": {"role": "user"}}, {}, "not_a_list"),
        ({"prompt": "a"}, {}, "missing_field"),
        ({"messages": None}, {}, "missing_field"),
        ({"messages": [user("a \ud83d b")]}, {}, "lone_surrogate"),
        ({"messages": [user("a")], "id": "\udc00"}, {"id_field": "id"}, "lone_surrogate"),
        ({"messages": [user("a")], "t": "{"}, {"tools_field": "t"}, "bad_tools"),
        ({"messages": [user("a")], "t": [5]}, {"tools_field": "t"}, "bad_tools"),
        ({"messages": [user("a")], "t": {"name": "f"}}, {"tools_field": "t"}, "bad_tools"),
        ({"messages": [user("a")], "t": [{"parameters": {}}]}, {"tools_field": "t"}, "bad_tools"),
        ({"messages": [user("a")], "t": [{"name": "f", "parameters": 1}]}, {"tools_field": "t"}, "bad_tools"),
        (
            {"messages": [user("a")], "t": [{"name": "f", "x": float("nan")}]},
            {"tools_field": "t"},
            "bad_json",
        ),
        ({"messages": [user("a"), answer("", tool_calls=[call()]), user("b")]}, {}, "unanswered_tool_call"),
        (
            {"messages": [user("a"), answer("", tool_calls=[call(), call(call_id="c2")]), result("1")]},
            {},
            "unanswered_tool_call",
        ),
        ({"messages": [user("a"), result("1")]}, {}, "orphan_tool_result"),
        (
            {"messages": [user("a"), answer("", tool_calls=[call()]), result("1", "c9")]},
            {},
            "orphan_tool_result",
        ),
        (
            {"messages": [user("a"), answer("", tool_calls=[call(arguments=5)]), result("1")]},
            {},
            "bad_tool_call",
        ),
        ({"messages": [user("a"), answer("", tool_calls=[call("")]), result("1")]}, {}, "bad_tool_call"),
        ({"messages": [user("a"), answer("b", function_call={"name": "f"}), user("c")]}, {}, "bad_tool_call"),
    ],
)
def test_reasons_for_messages(row: Row, mapping: Row, expected: str) -> None:
    assert reason(row, **mapping) == expected


@pytest.mark.parametrize(
    ("shape", "row", "expected"),
    [
        ("text", {"text": 5}, "not_text"),
        ("text", {"text": ""}, "empty"),
        ("turns", {"turns": [1]}, "not_text"),
        ("turns", {"turns": []}, "empty"),
        ("alpaca", {"instruction": ["a"]}, "not_text"),
        ("alpaca", {"instruction": "a", "history": ["q"]}, "bad_message"),
        ("conversations", {"conversations": [{"from": "human"}]}, "not_text"),
        ("conversations", {"conversations": [{"value": "a"}]}, "bad_message"),
        ("conversations", {"conversations": [{"from": "narrator", "value": "a"}]}, "unknown_role"),
        ("conversations", {"conversations": [{"from": "function_call", "value": "f()"}]}, "bad_tool_call"),
        ("glaive", {"chat": "Hello. USER: a"}, "bad_chat"),
        ("glaive", {"chat": "USER: a", "system": SYSTEM + "{"}, "bad_tools"),
        ("glaive", {"chat": "USER: a\n\n\nASSISTANT: <functioncall> f(1)\n\n\nUSER: b"}, "bad_tool_call"),
        (
            "glaive",
            {"chat": 'USER: a\n\n\nASSISTANT: <functioncall> {"name": "f", "arguments": \'{x\'}\n\n\nUSER:b'},
            "bad_tool_call",
        ),
    ],
)
def test_reasons_for_other_shapes(shape: str, row: Row, expected: str) -> None:
    assert reason(row, shape) == expected


def test_each_refuses_what_it_would_lose() -> None:
    loop = [user("a"), answer("", tool_calls=[call()]), result("1"), answer("b")]
    late = [user("a"), answer("b"), {"role": "system", "content": "s"}, user("c")]
    assert reason({"messages": loop}, turns="each") == "tool_messages"
    assert reason({"messages": late}, turns="each") == "late_system"


def test_a_broken_answer_that_is_dropped_does_no_harm() -> None:
    assert said(read({"messages": [user("a"), answer(5, function_call={"name": "f"})]})) == [("user", "a")]


def test_the_id_is_the_contents_alone() -> None:
    one = read({"messages": [user("a"), answer("x")], "id": "1"}, id_field="id")
    other = to_prompt(
        {"messages": [{"content": "a", "role": "user", "name": None, "w": 1}]}, 9, settings("messages")
    )
    assert one.prompt_id == other.prompt_id
    assert len(one.prompt_id) == 32
    tools = json.dumps([{"name": "f", "parameters": {}}])
    changed = [
        read({"messages": [user("a ")]}),
        read({"messages": [user("a")], "tools": tools}, tools_field="tools"),
        read({"messages": [user("a"), answer("x"), user("b")]}, turns="each"),
    ]
    assert len({prompt.prompt_id for prompt in [one, *changed]}) == 4


def test_a_sample_depends_on_content_and_seed_alone() -> None:
    ids = [f"{number:032x}" for number in range(100)]
    drawn = [ids[place] for place in sampled(ids, 10, 1)]
    assert len(drawn) == 10
    assert drawn == sorted(drawn)  # source order
    assert {ids[::-1][place] for place in sampled(ids[::-1], 10, 1)} == set(drawn)
    assert sampled(ids, 10, 2) != sampled(ids, 10, 1)
    assert len(set(drawn) - {[*ids, "f" * 32][place] for place in sampled([*ids, "f" * 32], 10, 1)}) <= 1
    assert sampled(ids, 1000, 1) == list(range(100))
