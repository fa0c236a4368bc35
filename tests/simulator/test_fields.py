"""What each habit makes of known ids. The ids come from a bare tiktoken encoding."""

import json

import pytest

from pipeline.simulator.answer import answer_body
from pipeline.simulator.fields import message_of, show
from pipeline.simulator.native import Generation, Native
from pipeline.simulator.profile import Habits, Profile, Served
from pipeline.simulator.request import read_request

_R, _C, _ID, _ARGS = "\nWhy?  ", " So:\n", "functions.f:0", '{"a":  "é"}'


@pytest.fixture
def ids(reference):
    """Native ids of a turn with or without a call."""

    def build(reasoning=_R, content=_C, calls=(), think_end=True, after=""):
        e = reference.encode_ordinary
        given = [*e(reasoning), *([163607] if think_end else []), *e(content)]
        if calls:
            given.append(163595)
            for call_id, arguments in calls:
                given += [163597, *e(call_id), 163598, *e(arguments), 163599]
            given += [163596, *e(after)]
        return [*given, 163586]

    return build


_CALL = ((_ID, _ARGS),)


def _generation(native, habits, **body):
    asked = read_request({"messages": [{"role": "user", "content": "x"}], **body})
    ending = "length" if native[-1] != 163586 else "tool_calls" if 163595 in native else "stop"
    served = Served(name="P", habits=habits)
    return Generation("gen-1", "key", asked, served, (1, 2, 3), Native(tuple(native), ending, ()))


def _message(native, body=None, **habits):
    made = Habits(**habits)
    generation = _generation(native, made, **(body or {}))
    shown = show(generation, made)
    hides = generation.asked.hides_reasoning
    return message_of(shown, made, hides_reasoning=hides) | {"finish_reason": shown.finish_reason}


def _body(native, body=None, **habits):
    profile = Profile(about="x", providers=(Served(name="P"),))
    return answer_body(_generation(native, Habits(**habits), **(body or {})), profile)


def test_verbatim_loses_nothing(ids):
    message = _message(ids(calls=_CALL, after="\ntail"))
    assert (message["reasoning"], message["content"], message["finish_reason"]) == (_R, _C, "tool_calls")
    assert message["tool_calls"] == [
        {"id": _ID, "type": "function", "index": 0, "function": {"name": "f", "arguments": _ARGS}}
    ]


@pytest.mark.parametrize(
    ("whitespace", "reasoning", "content"),
    [
        ("verbatim", _R, _C),
        ("space_join", f" {_R} ", f" {_C}"),
        ("space_join_rstrip", " \nWhy?", f" {_C}"),
        ("strip", "Why?", "So:"),
    ],
)
def test_whitespace(ids, whitespace, reasoning, content):
    message = _message(ids(), whitespace=whitespace)
    assert (message["reasoning"], message["content"]) == (reasoning, content)


def test_space_join_before_a_tool_section_and_round_nothing(ids):
    message = _message(ids(calls=((_ID, f" {_ARGS}\n"),)), whitespace="space_join")
    assert message["content"] == f" {_C} "
    assert message["tool_calls"][0]["function"]["arguments"] == _ARGS  # its parser trims
    bare = _message(ids(reasoning="", content="", calls=_CALL), whitespace="space_join")
    assert (bare["reasoning"], bare["content"]) == (" ", " ")
    newer = _message(ids(content="", calls=_CALL), whitespace="space_join_rstrip")
    assert newer["content"] is None  # only whitespace before tools is dropped
    assert _message(ids(content=""), whitespace="space_join")["content"] is None


def test_public_sample_of_the_joiner(ids):
    # vllm#33457: `<think>ok</think>1` came back as ' <think> ok </think> 1'.
    message = _message(ids(reasoning="ok", content="1"), whitespace="space_join", reasoning_in="inline")
    assert message["content"] == " ok </think> 1"


def test_reasoning_fields(ids):
    part = {
        "type": "reasoning.text",
        "text": _R,
        "signature": None,
        "id": None,
        "format": "unknown",
        "index": 0,
    }
    names = {"reasoning", "reasoning_content", "reasoning_details"}

    def fields(**habits):
        message = _message(ids(), **habits)
        return {name: message[name] for name in names & message.keys()}

    assert fields() == {"reasoning": _R}
    assert fields(reasoning_in="reasoning_content") == {"reasoning_content": _R}
    assert fields(reasoning_in="reasoning_details") == {"reasoning_details": [part]}
    assert fields(reasoning_in="all") == {
        "reasoning": _R,
        "reasoning_content": _R,
        "reasoning_details": [part],
    }
    assert fields(reasoning_in="inline") == {}
    assert _message(ids(), reasoning_in="inline")["content"] == f"{_R}</think>{_C}"


def test_hidden_reasoning(ids):
    for body in ({"reasoning": {"exclude": True}}, {"include_reasoning": False}):
        assert "reasoning" not in _message(ids(), body)
    assert (
        "token_ids" not in _body(ids(), {"include_reasoning": False, "return_token_ids": True})["choices"][0]
    )


def test_raw_calls(ids):
    raw = (
        f"<|tool_calls_section_begin|><|tool_call_begin|>{_ID}<|tool_call_argument_begin|>{_ARGS}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    )
    message = _message(ids(calls=_CALL, after="\n"), calls="raw")
    assert message["content"] == f"{_C}{raw}\n"
    assert "tool_calls" not in message
    assert message["finish_reason"] == "tool_calls"
    assert _message(ids(calls=_CALL), calls="raw", raw_finish="stop")["finish_reason"] == "stop"
    spaced = _message(ids(content="", calls=_CALL), calls="raw", whitespace="space_join")["content"]
    assert spaced == (
        f" <|tool_calls_section_begin|> <|tool_call_begin|> {_ID} <|tool_call_argument_begin|> {_ARGS} "
        "<|tool_call_end|> <|tool_calls_section_end|>"
    )


def test_no_think_end_looks_like_the_usual_case(ids):
    native = ids(content="", calls=_CALL, think_end=False)
    message = _message(native)
    assert (message["reasoning"], message["content"]) == (_R, None)
    assert message["tool_calls"][0]["id"] == _ID
    assert _message(native, reasoning_in="inline")["content"] == _R


def test_call_ids(ids):
    native = ids(calls=(("f:4", "{}"), ("functions.g:5", "{}")))
    history = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}] * 3},
    ]

    def call_ids(form):
        calls = _message(native, {"messages": history}, call_ids=form)["tool_calls"]
        assert [call["function"]["name"] for call in calls] == ["f", "g"]
        return [call["id"] for call in calls]

    assert call_ids("kept") == ["f:4", "functions.g:5"]
    assert call_ids("rebuilt") == ["functions.f:3", "functions.g:4"]
    assert all(one.startswith("call_") and len(one) == 29 for one in call_ids("call_hex"))
    assert all(one.startswith("chatcmpl-tool-") and len(one) == 46 for one in call_ids("chatcmpl_tool"))
    assert len(set(call_ids("call_hex"))) == 2
    assert call_ids("call_hex") == call_ids("call_hex")


def test_empty_arguments_and_empty_texts(ids):
    native = ids(reasoning="", content="", calls=((_ID, ""),))

    def arguments(**habits):
        return _message(native, **habits)["tool_calls"][0]["function"]["arguments"]

    assert arguments() == ""
    assert arguments(empty_arguments="braces") == "{}"
    assert _message(native)["content"] is _message(native)["reasoning"] is None
    assert _message(native, empty_text="empty")["content"] == ""
    assert _message(native, empty_text="empty")["reasoning"] == ""


def test_leaked_end(ids):
    assert _message(ids(), leaked_end=1.0)["content"] == f"{_C}<|im_end|>"
    assert _message(ids(), leaked_end=1.0, whitespace="space_join")["content"] == f" {_C} <|im_end|>"
    assert (
        _message(ids(calls=_CALL), leaked_end=1.0)["content"] == _C
    )  # the parser drops what follows a section
    assert _message(ids()[:-1], leaked_end=1.0)["content"] == _C  # no end, nothing to leak


def test_a_text_parser_splits_at_the_first_mark_it_reads(ids):
    native = ids(reasoning="I close with `</think>` now.", content="Yes")
    by_ids, by_text = _message(native), _message(native, split_by="text")
    assert by_ids["reasoning"] == "I close with `</think>` now."
    assert (by_text["reasoning"], by_text["content"]) == ("I close with `", "` now.</think>Yes")
    for plain in (ids(), ids(calls=_CALL), ids(content="", calls=_CALL, think_end=False)):
        assert _message(plain, split_by="text") == _message(plain)


def test_thinking_off(ids):
    native = ids(reasoning="", think_end=False)
    off = {"reasoning": {"enabled": False}}
    assert _message(native, off)["content"] == _C
    assert _message(native, off)["reasoning"] is None
    assert _message(native, off, reasoning_in="inline")["content"] == _C
    assert _message(native, off, whitespace="space_join")["content"] == f" {_C}"


# --- cuts --------------------------------------------------------------------------------------


def test_cuts_inside_a_call(ids):
    native = ids(calls=_CALL)
    call = native.index(163597)
    argument = native.index(163598)
    assert "tool_calls" not in _message(native[: call + 1])  # not a letter of it
    half_id = _message(native[: argument - 1])["tool_calls"][0]
    assert _ID.startswith(half_id["id"])
    assert half_id["function"]["arguments"] == ""
    half = _message(native[: argument + 3])
    shown = half["tool_calls"][0]["function"]["arguments"]
    assert shown
    assert shown != _ARGS
    assert _ARGS.startswith(shown)
    assert half["finish_reason"] == "length"
    finished = _message(native[: argument + 3], cut_call="shown_as_finished")
    assert finished["finish_reason"] == "tool_calls"
    assert (
        _body(native[: argument + 3], cut_call="shown_as_finished")["choices"][0]["native_finish_reason"]
        == "length"
    )
    dropped = _message(native[: argument + 3], cut_call="dropped")
    assert "tool_calls" not in dropped
    assert dropped["finish_reason"] == "length"
    between = native[: native.index(163599) + 1]
    assert _message(between, cut_call="dropped")["tool_calls"][0]["function"]["arguments"] == _ARGS
    assert _message(native[:-1])["finish_reason"] == "length"  # all but the end token


def test_every_cut_shows_a_beginning_of_the_whole(ids):
    native = ids(calls=_CALL)
    whole = _message(native)
    for length in range(1, len(native)):
        cut = _message(native[:length], cut_character="withheld")
        assert whole["reasoning"].startswith(cut["reasoning"] or "")
        assert whole["content"].startswith(cut["content"] or "")
        assert cut["finish_reason"] == "length"
        raw = _message(native[:length], cut_character="withheld", calls="raw", reasoning_in="inline")
        assert _message(native, calls="raw", reasoning_in="inline")["content"].startswith(
            raw["content"] or ""
        )


def test_a_cut_character(ids, reference):
    boot = reference.encode_ordinary(" 🥾")
    assert len(boot) > 1
    native = [*reference.encode_ordinary("See"), *boot[:-1]]
    assert _message(native)["reasoning"] == "See " + "�"
    assert _message(native, cut_character="withheld")["reasoning"] == "See"
    inside = [163607, *native]
    assert _message(inside)["content"] == "See " + "�"


# --- counts ------------------------------------------------------------------------------------


def test_usage(ids):
    native = ids()
    usage = _body(native)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, len(native))
    assert usage["total_tokens"] == 3 + len(native)
    assert usage["completion_tokens_details"]["reasoning_tokens"] == native.index(163607)
    assert usage["cost"] == pytest.approx((3 * 0.6 + len(native) * 2.5) / 1e6)
    parts = usage["cost_details"]
    assert usage["cost"] == pytest.approx(
        parts["upstream_inference_prompt_cost"] + parts["upstream_inference_completions_cost"]
    )


def test_usage_habits(ids):
    native = ids()

    def count(given, **habits):
        return _body(given, **habits)["usage"]["completion_tokens"]

    assert count(native, counts_end=False) == len(native) - 1
    assert count(native[:-1], counts_end=False) == len(native) - 1  # nothing ended
    assert abs(count(native, usage="wrong") - len(native)) > 1
    assert count([163586], usage="wrong") >= 1
    assert "usage" not in _body(native, usage="missing")
    assert _body(native, usage="null")["usage"] is None
    assert (
        _body(native, reasoning_tokens="zero")["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    )
    assert "completion_tokens_details" not in _body(native, reasoning_tokens="absent")["usage"]


def test_native_ids(ids):
    native, asks = ids(), {"return_token_ids": True}
    vllm = _body(native, asks, native_ids="vllm")
    assert vllm["choices"][0]["token_ids"] == native
    assert vllm["prompt_token_ids"] == [1, 2, 3]
    sglang = _body(native, asks, native_ids="sglang")["choices"][0]
    assert (sglang["response_token_ids"], sglang["prompt_token_ids"]) == (native, [1, 2, 3])
    for silent in (_body(native, asks), _body(native, native_ids="vllm")):
        assert "token_ids" not in json.dumps(silent)


def test_the_frame_of_an_answer(ids):
    body = _body(ids(), {"model": "some/model"})
    assert (body["id"], body["model"], body["provider"]) == ("gen-1", "some/model", "P")
    assert body["object"] == "chat.completion"
    assert body["created"] == _body(ids())["created"]
    assert [choice["index"] for choice in body["choices"]] == [0]
