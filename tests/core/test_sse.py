import json

import pytest

from pipeline.core.sse import StreamCut, assemble, looks_like_stream


def _event(**delta):
    finish = delta.pop("finish", None)
    return (
        "data: "
        + json.dumps({"id": "gen-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
        + "\n\n"
    )


def test_deltas_become_one_message():
    body = (
        ": waiting\n\n" + _event(reasoning="a") + _event(reasoning="b") + _event(content="c", finish="stop")
    )
    answer = assemble(body + 'data: {"choices":[],"usage":{"completion_tokens":4}}\n\ndata: [DONE]\n\n')
    assert answer["choices"][0]["message"] == {"role": "assistant", "reasoning": "ab", "content": "c"}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"] == {"completion_tokens": 4}


def test_missing_end_mark_after_a_finish_reason_is_harmless():
    assert assemble(_event(content="x", finish="stop"))["choices"][0]["message"]["content"] == "x"


@pytest.mark.parametrize(
    "body",
    [
        _event(content="x"),
        _event(content="x") + "data: [DONE]\n\n",
        _event(content="x", finish="stop") + 'data: {"cho',
        'data: "text"\n\n',
    ],
    ids=["no finish", "end mark alone", "cut event", "no object"],
)
def test_a_cut_stream_is_never_an_answer(body):
    with pytest.raises(StreamCut):
        assemble(body)


def test_an_error_event_becomes_the_error():
    answer = assemble(_event(content="x") + 'data: {"choices":[],"error":{"code":502,"message":"busy"}}\n\n')
    assert answer["error"] == {"code": 502, "message": "busy"}


def test_tool_call_deltas_join_by_index():
    first = {
        "tool_calls": [{"index": 0, "id": "functions.f:0", "function": {"name": "f", "arguments": '{"a'}}]
    }
    second = {"tool_calls": [{"index": 0, "function": {"arguments": '":1}'}}]}
    third = {
        "tool_calls": [{"index": 1, "id": "functions.g:1", "function": {"name": "g", "arguments": "{}"}}]
    }
    body = _event(**first) + _event(**second) + _event(**third) + _event(finish="tool_calls")
    calls = assemble(body)["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]["arguments"]) for call in calls] == [
        ("functions.f:0", '{"a":1}'),
        ("functions.g:1", "{}"),
    ]


def test_reasoning_details_of_one_index_are_one_text():
    parts = [{"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": text}]} for text in "ab"]
    body = "".join(_event(**part) for part in parts) + _event(finish="stop", content="c")
    assert assemble(body)["choices"][0]["message"]["reasoning_details"][0]["text"] == "ab"


def test_half_characters_of_two_deltas_join():
    body = _event(content="\ud83d") + _event(content="\ude00", finish="stop")
    assert assemble(body)["choices"][0]["message"]["content"] == "😀"


def test_a_line_separator_inside_a_string_does_not_cut_the_event():
    body = 'data: {"choices":[{"delta":{"content":"a\u2028b"},"finish_reason":"stop"}]}\r\n\r\n'
    assert assemble(body)["choices"][0]["message"]["content"] == "a\u2028b"


@pytest.mark.parametrize(
    ("body", "stream"), [("\n: x\n\ndata: {}", True), ('{"a": "data:"}', False), ("", False)]
)
def test_a_stream_is_known_by_its_first_line(body, stream):
    assert looks_like_stream(body) is stream
