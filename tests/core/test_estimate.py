import json

import pytest

from pipeline.config import Api, GenerateSettings, Price, Sampling
from pipeline.core.estimate import (
    Cost,
    EvenSample,
    Outgoing,
    Requests,
    Tally,
    Tokens,
    cost_of,
    count_tokens,
    total_cost,
    total_tokens,
)
from pipeline.core.turns import Response, replay
from pipeline.records import Prompt

_SETTINGS = GenerateSettings(
    provider="p", model="m", api=Api(identity="here"), sampling=Sampling(max_tokens=100)
)


def _prompt(*texts):
    messages = [{"role": "user", "content": text} for text in texts]
    return Prompt("-".join(texts), 0, (messages[0],), tuple(messages[1:]))


def _answer(text, tokens=7):
    body = {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens},
    }
    return Response(200, {"content-type": "application/json"}, json.dumps(body).encode())


def _tally(prompts, answers, seen=None):
    """`answers`: last message's text -> the stored answer to it."""
    tally = Tally(set() if seen is None else seen, EvenSample(100))
    for prompt in prompts:
        turns = replay(prompt, _SETTINGS, lambda asked: answers.get(asked.body["messages"][-1]["content"]))
        tally.add(prompt, turns)
    return tally


def _counts(tally):
    return tally.to_send, tally.later, tally.paid, tally.shared


def test_with_all_answers_there_nothing_is_sent():
    tally = _tally([_prompt("a"), _prompt("b", "c")], {text: _answer("x") for text in "abc"})
    assert _counts(tally) == (0, 0, 3, 0)
    assert tally.lengths == [7, 7, 7]
    assert tally.outgoing.added == 0


def test_turns_after_a_missing_answer_are_later_turns():
    tally = _tally([_prompt("a", "b", "c"), _prompt("d")], {"a": _answer("x")})
    assert _counts(tally) == (2, 1, 1, 0)  # b and d now; c when b is answered
    first, later, _ = tally.outgoing.items
    assert [one["content"] for one in first.messages] == ["a", "x", "b"]
    assert [one["content"] for one in later.messages] == ["a", "x", "b", "c"]
    assert (first.unknown_answers, later.unknown_answers) == (0, 1)


def test_equal_requests_count_once_over_all_datasets():
    seen = set()
    assert _counts(_tally([_prompt("a"), _prompt("a"), _prompt("b")], {"b": _answer("x")}, seen)) == (
        1,
        0,
        1,
        1,
    )
    assert _counts(_tally([_prompt("a", "z")], {}, seen)) == (0, 1, 0, 1)


def test_turns_that_can_never_be_asked_are_no_requests():
    cut = json.loads(_answer("x").body)
    cut["choices"][0]["finish_reason"] = "length"
    answers = {"a": Response(200, {}, json.dumps(cut).encode())}
    tally = _tally([_prompt("a", "b")], answers)
    assert _counts(tally) == (0, 0, 1, 0)
    assert tally.refused == 1


@pytest.mark.parametrize("count", [0, 1, 5, 10, 11, 1000, 4097])
def test_an_even_sample_is_bounded_and_spread(count):
    sample = EvenSample(5)
    for number in range(count):
        sample.add(number)
    assert sample.added == count
    assert len(sample.items) <= 10
    assert sample.complete == (count <= 10)
    gaps = {after - before for before, after in zip(sample.items, sample.items[1:], strict=False)}
    assert len(gaps) <= 1, "every step-th item"
    assert sample.items[:1] == [0][:count]


def _outgoing(sample, *unknown):
    for answers in unknown:
        sample.add(Outgoing([{"role": "user", "content": "x"}], None, answers))
    return sample


def test_tokens_of_all_requests_and_of_answers_still_to_come():
    tokens = count_tokens(_outgoing(EvenSample(10), 0, 0, 1), lambda item: 50, 100, [10, 30])
    assert tokens == Tokens(150, 150 + 100, 60, 300, sampled=False)


def test_of_a_sample_the_rest_is_worked_out():
    sample = _outgoing(EvenSample(5), *[0] * 1000)
    tokens = count_tokens(sample, lambda item: 50, 100, [])
    assert tokens == Tokens(50_000, 50_000, None, 100_000, sampled=True)


def test_nothing_to_send_has_no_tokens_and_a_mean_is_never_above_the_limit():
    assert count_tokens(EvenSample(5), lambda item: 50, 100, []) == Tokens(0, 0, 0, 0, sampled=False)
    assert count_tokens(_outgoing(EvenSample(5), 0), lambda item: 1, 100, [900]).completion == 100


def test_cost_is_a_range_and_its_low_end_may_be_unknown():
    price = Price(prompt=0.5, completion=2.0)
    tokens = Tokens(1_000_000, 2_000_000, 500_000, 4_000_000, sampled=False)
    assert cost_of(tokens, price) == Cost(0.5 + 1.0, 1.0 + 8.0)
    unknown = Tokens(1_000_000, 1_000_000, None, 1_000_000, sampled=False)
    assert cost_of(unknown, price) == Cost(None, 2.5)


def _line(cost, completion=1):
    return Requests("d", "p", 1, 0, 0, 0, 0, Tokens(1, 2, completion, 3, sampled=False), cost)


def test_a_sum_is_as_unknown_as_its_parts():
    assert total_cost([_line(Cost(1.0, 2.0)), _line(Cost(0.5, 1.0))]) == Cost(1.5, 3.0)
    assert total_cost([_line(Cost(1.0, 2.0)), _line(Cost(None, 1.0))]) == Cost(None, 3.0)
    assert total_cost([_line(Cost(1.0, 2.0)), _line(None)]) is None
    assert total_cost([]) == Cost(0, 0)
    assert total_tokens([_line(None), _line(None, completion=None)]) == Tokens(2, 4, None, 6, sampled=False)
