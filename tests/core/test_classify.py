import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.core.classify import classify
from pipeline.records import Action

_CASES = [json.loads(line) for line in Path("tests/cases/provider_responses.jsonl").read_text().splitlines()]
_REQUEST = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}
_GOOD = {
    "id": "gen-1",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "a", "reasoning": "b"}}],
    "usage": {"completion_tokens": 4, "cost": 0.5},
}
# What only a tokenizer can tell is decided after this function: there it may still say ok or repair.
_LATER = {Action.OK, Action.REPAIR}


@pytest.mark.parametrize("case", [c for c in _CASES if "body" in c["http"]], ids=lambda case: case["id"])
def test_given_exchanges(case):
    http, expect = case["http"], case["expect"]
    verdict = classify(http["status"], http["headers"], http["body"].encode(), case["request"])
    allowed = {expect["action"], *expect.get("also_ok", [])}
    if verdict.action in _LATER:
        assert allowed & {"ok", "repair", "ambiguous", "reroute"}
        assert verdict.body is not None
    else:
        assert verdict.action in allowed
    for field in ("retry_after_s", "cost_source"):
        if field in expect:
            assert getattr(verdict, field) == expect[field]
    if "cost" in expect:
        assert verdict.cost_usd == (None if expect["cost"] == "unknown" else expect["cost"])
    if verdict.action is Action.REROUTE and "avoid_provider" in expect:
        assert verdict.avoid_provider == expect["avoid_provider"]


def _error(code, message="no", **error):
    return json.dumps({"error": {"code": code, "message": message, **error}})


@pytest.mark.parametrize(
    ("status", "body", "action"),
    [
        (None, "", Action.RETRY),
        (200, "", Action.RETRY),
        (200, "null", Action.RETRY),
        (200, "[]", Action.RETRY),
        (200, "<html>", Action.RETRY),
        (200, '{"choices": []}', Action.RETRY),
        (200, '{"choices": [{"message": null}]}', Action.RETRY),
        (200, json.dumps({**_GOOD, "error": {}}), Action.OK),
        (200, json.dumps({**_GOOD, "error": {"message": "", "code": None}}), Action.OK),
        (200, json.dumps({**_GOOD, "error": "upstream died"}), Action.RETRY),
        (
            200,
            json.dumps({**_GOOD, "error": {"message": None, "metadata": {"provider_name": None}}}),
            Action.OK,
        ),
        (200, json.dumps({**_GOOD, "error": {"code": 200, "message": "OK"}}), Action.OK),
        (200, json.dumps({**_GOOD, "choices": True}), Action.RETRY),
        (200, _error(401, metadata={"provider_name": "X"}), Action.REROUTE),
        (200, _error(400.0, metadata={"provider_name": "X"}), Action.REROUTE),
        (200, "junk { " + json.dumps(_GOOD)[1:], Action.REPAIR),
        (200, '{"n": ' + "9" * 5000 + "}", Action.RETRY),
        (200, _error(429), Action.RETRY),
        (200, _error(401), Action.FATAL_RUN),
        (200, _error(400, metadata={"error_type": "context_length_exceeded"}), Action.FATAL_ROW),
        (400, _error("context_length_exceeded"), Action.FATAL_ROW),
        (400, _error(400, "x is not a valid model ID"), Action.FATAL_RUN),
        (429, _error("insufficient_quota"), Action.FATAL_RUN),
        (403, _error(403, metadata={"reasons": ["violence"]}), Action.FATAL_ROW),
        (403, _error(403, metadata={"limit_source": "openrouter_key_limit"}), Action.FATAL_RUN),
        (403, "<html>blocked</html>", Action.RETRY),
        (404, "not here", Action.FATAL_RUN),
        (408, "", Action.RETRY),
        (503, _error(503, availability={"retryable": True, "retry_after": 3}), Action.RETRY),
        (529, "", Action.RETRY),
        (302, "", Action.FATAL_RUN),
        (200, "data: " + json.dumps(_GOOD) + "\n\n", Action.REPAIR),
        (200, "\ufeff" + json.dumps(_GOOD), Action.OK),
        (200, json.dumps(_GOOD) + "\n\ndata: [DONE]\n", Action.REPAIR),
        (200, ": keep-alive\n\n" + json.dumps(_GOOD), Action.OK),
        (200, b"\xff\xfe{}", Action.RETRY),
        (200, json.dumps(_GOOD)[:-9], Action.RETRY),
    ],
)
def test_kinds_around_the_given_cases(status, body, action):
    assert classify(status, {}, body, _REQUEST).action is action


def test_choice_error_is_a_fault_even_with_text():
    choice = {**_GOOD["choices"][0], "finish_reason": "error", "error": {"code": 502, "message": "broke off"}}
    verdict = classify(200, {}, json.dumps({**_GOOD, "choices": [choice]}), _REQUEST)
    assert (verdict.action, verdict.body, verdict.cost_source) == (Action.RETRY, None, "unknown")


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "Tue, 01 Dec 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Tue, 01 Dec 2026 12:00:30 GMT", "date": "Tue, 01 Dec 2026 12:00:10 GMT"}, 20.0),
        ({"retry-after": "Tue, 01 Dec 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after_in_both_forms(headers, wait):
    now = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)
    assert classify(429, headers, _error(429), _REQUEST, now).retry_after_s == wait


def test_in_flight_402_is_no_attempt():
    body = _error(402, metadata={"limit_source": "openrouter_in_flight_budget"})
    verdict = classify(402, {"retry-after": "2"}, body, _REQUEST)
    assert (verdict.action, verdict.counts_as_attempt, verdict.cost_usd) == (Action.RETRY, False, 0.0)


def test_stop_strings_are_refused_before_anything_else():
    verdict = classify(200, {}, json.dumps(_GOOD), {**_REQUEST, "stop": ["x"]})
    assert (verdict.action, verdict.flags) == (Action.FATAL_RUN, ("stop_set",))


@pytest.mark.parametrize(
    ("usage", "cost", "source"),
    [
        ({"cost": 0.5}, 0.5, "usage"),
        ({"cost": 0.1, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.5}}, 0.6, "upstream"),
        ({"completion_tokens": 4}, None, "estimated"),
        (None, None, "unknown"),
    ],
)
def test_cost_and_where_it_comes_from(usage, cost, source):
    verdict = classify(200, {}, json.dumps({**_GOOD, "usage": usage}), _REQUEST)
    assert (verdict.cost_usd, verdict.cost_source) == (cost, source)


def test_generation_id_comes_from_the_header_or_the_body():
    assert classify(200, {"x-generation-id": "gen-h"}, json.dumps(_GOOD), _REQUEST).generation_id == "gen-h"
    assert classify(200, {}, json.dumps(_GOOD), _REQUEST).generation_id == "gen-1"


_PART = {"type": "text", "text": "a"}


@pytest.mark.parametrize(
    ("choice", "request_", "action"),
    [
        ({"finish_reason": "tool_use"}, {}, Action.REROUTE),
        ({"native_finish_reason": "tool_calls"}, {}, Action.REROUTE),
        ({"native_finish_reason": "content_filter"}, {}, Action.FATAL_ROW),
        ({}, {"tool_choice": "required"}, Action.REROUTE),
        ({}, {"tool_choice": {"function": {"name": "f"}}}, Action.REROUTE),
        ({"finish_reason": "length"}, {"tool_choice": "required"}, Action.OK),
        ({"finish_reason": ["stop"]}, {}, Action.OK),
        (
            {"message": {"content": [{"type": "text", "text": "a"}, {"type": "thinking", "text": "b"}]}},
            {},
            Action.FATAL_ROW,
        ),
        ({"message": {"content": [{"type": "text", "text": None}], "reasoning": "b"}}, {}, Action.OK),
        ({"message": {"content": "a", "tool_calls": True}}, {}, Action.FATAL_ROW),
    ],
)
def test_answers_against_their_request(choice, request_, action):
    body = {**_GOOD, "choices": [{**_GOOD["choices"][0], **choice}]}
    assert classify(200, {}, json.dumps(body), {**_REQUEST, **request_}).action is action
