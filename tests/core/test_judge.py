import json
from pathlib import Path

import pytest

from pipeline.core.classify import classify
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.judge import Exchange, is_cache_hit, judge_batch
from pipeline.core.render import render_ids

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
    exchange = Exchange(verdict.body, request, rendered, verdict, is_cache_hit(headers))
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
