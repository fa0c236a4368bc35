import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.classify import classify
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.judge import Exchange, judge_batch
from pipeline.core.render import UnrenderableRequest, render_ids
from pipeline.records import Action

_TOKENS = [json.loads(line) for line in Path("tests/golden/kimi_k2_5/tokens.jsonl").read_text().splitlines()]
_CASES = [json.loads(line) for line in Path("tests/cases/provider_responses.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def grammar(kimi, kimi_target):
    return CompiledGrammar(kimi_target.grammar, kimi.special)


def _judge(status, headers, body, request, kimi, kimi_target, grammar):
    """(action, judgement or None) as the build and `inspect` come to it."""
    verdict = classify(status, headers, body, request)
    if verdict.body is None or not verdict.action.usable:
        return verdict.action, None
    rendered = render_ids(request, kimi_target.render, kimi)
    exchange = Exchange(verdict.body, request, rendered, verdict)
    judged = judge_batch([exchange], kimi, grammar)[0]
    return judged.action, judged


@pytest.mark.parametrize("case", [c for c in _CASES if "body" in c["http"]], ids=lambda case: case["id"])
def test_given_exchanges(case, kimi, kimi_target, grammar):
    http, expect = case["http"], case["expect"]
    action, judged = _judge(
        http["status"], http["headers"], http["body"], case["request"], kimi, kimi_target, grammar
    )
    assert action in {expect["action"], *expect.get("also_ok", [])}
    if action.usable:
        assert list(judged.completion_ids) == expect["completion_ids"]
        assert judged.result.ending == expect["ending"]
    elif judged is not None:
        assert judged.completion_ids is None
    if "truth_ids" in expect and judged is not None and judged.completion_ids is not None:
        pytest.fail("an answer that can't prove its ids gave a row")


@pytest.mark.parametrize("case", _TOKENS, ids=lambda case: case["id"])
def test_given_token_cases_whole(case, kimi, kimi_target, grammar):
    response, expect = case["response"], case["expect"]
    message = {key: response[key] for key in ("reasoning", "content", "tool_calls")}
    body = {
        "choices": [{"message": message, "finish_reason": response["finish_reason"]}],
        "usage": response["usage"],
    }
    request = {"messages": case["messages"], "tools": case["tools"]}
    _, judged = _judge(200, {}, json.dumps(body), request, kimi, kimi_target, grammar)
    assert list(judged.prompt.ids) == expect["prompt_ids"]
    assert list(judged.completion_ids) == expect["completion_ids"]
    mask = [[0, len(judged.prompt.ids)], [1, len(judged.completion_ids)]]
    assert mask == expect["loss_mask_runs"]


@pytest.mark.parametrize(
    "case", [c for c in _TOKENS if "prompt_ids_plain" in c["expect"]], ids=lambda case: case["id"]
)
def test_a_server_that_keeps_special_strings_as_text_is_told_by_its_count(case, kimi, kimi_target, grammar):
    response, plain = case["response"], case["expect"]["prompt_ids_plain"]
    message = {key: response[key] for key in ("reasoning", "content")}
    usage = {**response["usage"], "prompt_tokens": len(plain)}
    body = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
    request = {"messages": case["messages"]}
    _, judged = _judge(200, {}, json.dumps(body), request, kimi, kimi_target, grammar)
    assert list(judged.prompt.ids) == plain
    assert "prompt_specials_plain" in judged.flags


def test_all_zero_usage_of_a_cache_hit(kimi, kimi_target, grammar):
    zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    message = {"reasoning": "One.", "content": "Two."}
    body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": zero})
    request = {"messages": [{"role": "user", "content": "hi"}]}
    headers = {"x-openrouter-cache-source-id": "gen-0"}
    action, judged = _judge(200, headers, body, request, kimi, kimi_target, grammar)
    assert (action, judged.result.fidelity) == ("ok", "unverified")
    assert _judge(200, {}, body, request, kimi, kimi_target, grammar)[0] == "ambiguous"


# --- whatever comes, one decision and never a crash -----------------------------------------------------

_SCALARS = [None, True, 0, 5, -1, 1e400, 10**400, "", "x", "\ud800"]
_ODD = st.sampled_from([*_SCALARS, [], [5], ["x"], [None], {}, {"a": 5}, [[]], [{"function": 5}]])


def _paths(value, path=()):
    """Every place in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _paths(item, (*path, key))


def _with(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _with(value[path[0]], path[1:], new)
    return copy


_JSON_CASES = [c for c in _CASES if c["http"].get("body", "").lstrip().startswith("{") and c["id"] != "A5b"]


@settings(max_examples=1500, deadline=None)
@given(data=st.data())
def test_odd_types_anywhere_give_a_decision(data, kimi, kimi_target, grammar):
    case = data.draw(st.sampled_from(_JSON_CASES))
    body, request = json.loads(case["http"]["body"]), case["request"]
    body = _with(body, data.draw(st.sampled_from(list(_paths(body)))), data.draw(_ODD))
    if data.draw(st.booleans()):
        place = data.draw(st.sampled_from([path for path in _paths(request) if path[:1] != ("messages",)]))
        request = _with(request, place, data.draw(_ODD)) if place else request
    wait = data.draw(st.sampled_from(["1", "x", "Tue, 01 Dec 2026 12:00:30 -0000"]))
    headers = {**case["http"]["headers"], "retry-after": wait}
    verdict = classify(case["http"]["status"], headers, json.dumps(body), request, datetime.now(UTC))
    stream = (
        "data: " + json.dumps({"choices": body.get("choices") if isinstance(body, dict) else body}) + "\n\n"
    )
    classify(200, headers, stream, request)
    if verdict.body is None or not verdict.action.usable:
        return
    try:
        rendered = render_ids(request, kimi_target.render, kimi)
    except UnrenderableRequest:
        return
    judged = judge_batch([Exchange(verdict.body, request, rendered, verdict)], kimi, grammar)[0]
    assert judged.action in set(Action)
    assert (judged.completion_ids is not None) == judged.action.usable


def test_a_cache_hit_with_anything_to_settle_is_no_row(kimi, kimi_target, grammar):
    zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    request = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"function": {"name": "f"}}]}
    call = {"id": "functions.f:0", "function": {"name": "f", "arguments": "{}"}}
    settled = [
        ({"content": "R</think>C"}, "stop", None),
        ({"reasoning": "R</think>C", "content": ""}, "stop", None),
        ({"reasoning": "R", "content": "C"}, "stop", "length"),
        ({"reasoning": "R", "tool_calls": [call]}, "tool_calls", None),
        ({"reasoning": "R", "content": "C"}, None, None),
    ]
    for message, finish, native in settled:
        choice = {"message": message, "finish_reason": finish, "native_finish_reason": native}
        body = json.dumps({"choices": [choice], "usage": zero})
        headers = {"x-openrouter-cache-status": "HIT"}
        assert _judge(200, headers, body, request, kimi, kimi_target, grammar)[0] == "ambiguous", message
