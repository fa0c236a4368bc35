import json

import pytest

from pipeline.config import Api, GenerateSettings, Sampling
from pipeline.core.turns import Response, converse
from pipeline.records import Action, Prompt

_SETTINGS = GenerateSettings(provider="p", model="m", api=Api(identity="here"), sampling=Sampling())


def _prompt(*following, messages=({"role": "user", "content": "one"},), tools=None):
    turns = tuple({"role": "user", "content": text} for text in following)
    return Prompt("id", 0, tuple(messages), turns, tools)


def _response(content="fine", status=200, finish="stop", **message):
    fields = {"role": "assistant", "content": content, "reasoning": "well", **message}
    body = {"choices": [{"finish_reason": finish, "message": fields}], "usage": {"completion_tokens": 4}}
    return Response(status, {}, json.dumps(body).encode())


def _drive(prompt, *responses):
    steps, asked, waiting = converse(prompt, _SETTINGS), [], list(responses)
    try:
        request = next(steps)
        while True:
            asked.append(request)
            request = steps.send(waiting.pop(0))
    except StopIteration as end:
        return asked, end.value


def test_each_turn_is_asked_with_the_answers_before_it():
    asked, turns = _drive(_prompt("two", "three"), _response("a"), _response("b"), _response("c"))
    texts = [[message["content"] for message in request.body["messages"]] for request in asked]
    assert texts == [["one"], ["one", "a", "two"], ["one", "a", "two", "b", "three"]]
    assert asked[2].body["messages"][3] == {"role": "assistant", "content": "b", "reasoning": "well"}
    assert [turn.number for turn in turns] == [0, 1, 2]
    assert [turn.failure for turn in turns] == [None, None, None]
    assert len({request.key for request in asked}) == 3


def test_the_text_that_is_sent_is_the_text_of_the_key():
    asked, _ = _drive(_prompt(), _response())
    assert json.loads(asked[0].text) == asked[0].body


def test_tools_go_with_every_turn():
    tools = ({"type": "function", "function": {"name": "f", "parameters": {}}},)
    asked, _ = _drive(_prompt("two", tools=tools), _response(), _response())
    assert [request.body["tools"] for request in asked] == [list(tools)] * 2


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (_response(finish="length"), "previous_turn_cut"),
        (_response(status=400), "previous_turn_failed"),
        (None, "previous_turn_failed"),
    ],
)
def test_turns_after_one_that_ends_the_conversation_are_failures_and_never_asked(first, reason):
    asked, turns = _drive(_prompt("two", "three"), first)
    assert len(asked) == 1
    assert len(turns) == 3
    assert [turn.failure.reason for turn in turns[1:]] == [reason] * 2
    assert all(turn.asked is None for turn in turns[1:])


def test_a_missing_answer_and_a_refused_request_are_final_states_of_their_own():
    body = {"error": {"code": 400, "message": "too long", "metadata": {"error_type": "string_too_long"}}}
    refused = Response(400, {}, json.dumps(body).encode())
    _, (turn,) = _drive(_prompt(), refused)
    assert turn.verdict.action is Action.FATAL_ROW
    assert (turn.failure.reason, turn.failure.detail) == ("fatal_row", "fatal_row: too long")
    _, (turn,) = _drive(_prompt(), None)
    assert (turn.failure.reason, turn.response) == ("missing", None)


def test_what_can_not_be_rendered_is_never_asked():
    asked, turns = _drive(_prompt("two", messages=[{"role": "oracle", "content": "x"}]))
    assert asked == []
    assert [turn.failure.reason for turn in turns] == ["unrenderable_prompt"] * 2
