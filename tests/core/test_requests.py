import json

import pytest

from pipeline.config import Api, GenerateSettings, Sampling, SimulatorSettings
from pipeline.core.chat import UnrenderableRequest
from pipeline.core.requests import (
    Refusal,
    canonical_json,
    endpoint_identity,
    next_turn,
    request_body,
    request_key,
    without_provider,
)
from pipeline.errors import ConfigError

_USER = {"role": "user", "content": "hi"}
_TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {"b": {"type": "string"}, "a": {}}}},
}


def _settings(sampling=None, **api):
    return GenerateSettings(
        provider="p",
        model="vendor/m",
        api=Api(identity="somewhere", **api),
        sampling=Sampling(**(sampling or {})),
    )


def test_only_what_is_set_is_sent_and_max_tokens_always():
    assert request_body([_USER], None, _settings()) == {
        "model": "vendor/m",
        "messages": [_USER],
        "max_tokens": 8192,
    }
    body = request_body([_USER], None, _settings({"temperature": 0.6, "seed": 0, "max_tokens": 5}))
    assert (body["temperature"], body["seed"], body["max_tokens"]) == (0.6, 0, 5)
    assert request_body(
        [_USER], None, _settings({"max_tokens": 7}, max_tokens_field="max_completion_tokens")
    ) == {
        "model": "vendor/m",
        "messages": [_USER],
        "max_completion_tokens": 7,
    }


def test_tools_are_sent_only_if_the_dataset_has_some():
    assert "tools" not in request_body([_USER], None, _settings())
    assert "tools" not in request_body([_USER], [], _settings())
    assert request_body([_USER], [_TOOL], _settings())["tools"] == [_TOOL]


def test_the_providers_body_is_laid_on_top():
    fields = {"provider": {"only": ["alpha"]}, "temperature": 1.0}
    body = request_body([_USER], None, _settings({"temperature": 0.1}, body=fields))
    assert body["provider"] == {"only": ["alpha"]}
    assert body["temperature"] == 1.0


@pytest.mark.parametrize("name", ["messages", "tools", "model"])
def test_fields_that_would_falsify_every_row_are_refused(name):
    with pytest.raises(ConfigError, match=rf"api\.body\.{name}"):
        request_body([_USER], None, _settings(body={name: []}))


def test_stop_and_several_choices_are_refused():
    unchecked = _settings().model_copy(
        update={"api": Api.model_construct(identity="x", body={"stop": ["a"]})}
    )
    with pytest.raises(ConfigError, match="stop"):
        request_body([_USER], None, unchecked)
    with pytest.raises(ConfigError, match=r"api\.body\.n"):
        request_body([_USER], None, _settings(body={"n": 2}))
    assert request_body([_USER], None, _settings(body={"n": 1}))["n"] == 1


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("written", ["reasoning", "reasoning_content"])
def test_reasoning_of_earlier_turns_goes_back_once_under_the_endpoints_name(field, written):
    old = {"role": "assistant", "content": " a\n", written: "r ", "tool_calls": None}
    body = request_body([_USER, old, _USER], None, _settings(history_reasoning=field))
    assert body["messages"][1] == {"role": "assistant", "content": " a\n", field: "r "}


def test_messages_without_a_known_prompt_are_refused_before_they_are_paid_for():
    with pytest.raises(UnrenderableRequest, match="messages"):
        request_body([{"role": "oracle", "content": "x"}], None, _settings())


def test_canonical_text_keeps_the_order_that_models_read_and_no_other():
    one = {"model": "m", "tools": [_TOOL], "provider": {"only": ["x"], "allow_fallbacks": False}}
    two = {"provider": {"allow_fallbacks": False, "only": ["x"]}, "tools": [_TOOL], "model": "m"}
    turned = {"name": "f", "parameters": {"properties": {"a": {}, "b": {"type": "string"}}}}
    assert canonical_json(one) == canonical_json(two)
    other = {**one, "tools": [{"type": "function", "function": turned}]}
    assert canonical_json(one) != canonical_json(other)
    assert list(json.loads(canonical_json(one))["tools"][0]["function"]["parameters"]["properties"]) == [
        "b",
        "a",
    ]


def test_canonical_text_is_valid_utf8_json_for_any_text():
    body = {"messages": [{"role": "user", "content": "é漢 \ud83d \u2028 \\ud83d"}]}
    text = canonical_json(body)
    assert json.loads(text.encode()) == body
    assert "漢" in text


def test_the_key_depends_on_each_of_its_parts_and_nothing_else():
    base = ("here", "/chat/completions", {"model": "m", "messages": [_USER]}, 0)
    others = [
        ("there", *base[1:]),
        (base[0], "/v2", *base[2:]),
        (*base[:2], {"model": "m", "messages": [{**_USER, "content": "hi "}]}, 0),
        (*base[:3], 1),
    ]
    keys = {request_key(*parts) for parts in [base, *others]}
    assert len(keys) == 5
    assert request_key(*base) in keys
    # Written down: a change of this value makes every answer ever paid for unfindable.
    assert request_key(*base) == "439f0d6cde64785c0d4d518e6cd6cf6f6f88cae23330a054d4010d217d279e81"


def test_the_simulators_identity_names_all_that_its_answers_follow_from():
    def identity(**changes):
        values = {"profile": "default", "seed": 0, "code": "c1"} | changes
        return endpoint_identity(Api(identity="simulator", simulator=SimulatorSettings(**values)))

    variants = {identity(), identity(profile="hostile"), identity(seed=1), identity(code="c2")}
    assert len(variants | {endpoint_identity(Api(identity="simulator"))}) == 5
    assert endpoint_identity(Api(identity="openrouter")) == "openrouter"


def test_a_reroute_adds_to_what_is_ignored_already():
    body = {"model": "m", "provider": {"ignore": ["a"]}}
    assert without_provider(body, "b")["provider"] == {"ignore": ["a", "b"]}
    assert without_provider({"model": "m"}, "b")["provider"] == {"ignore": ["b"]}
    assert body["provider"]["ignore"] == ["a"]


def test_a_reroute_leaves_the_others_that_are_allowed_and_is_none_where_there_are_none():
    body = {"provider": {"only": ["moonshotai", "deepinfra/turbo", "novita"], "allow_fallbacks": False}}
    routed = without_provider(body, "Moonshot AI")
    assert routed["provider"] == {"only": ["deepinfra/turbo", "novita"], "allow_fallbacks": False}
    assert without_provider(routed, "DeepInfra")["provider"]["only"] == ["novita"]
    assert without_provider({"provider": {"only": ["moonshotai"]}}, "Moonshot AI") is None


def _answer(finish="stop", native="stop", **message):
    fields = {"role": "assistant", "content": " ok\n", "reasoning": "\nbecause ", **message}
    choice = {"finish_reason": finish, "native_finish_reason": native, "message": fields}
    return {"choices": [choice]}


def test_history_is_the_answer_verbatim():
    asked = [_USER]
    assert next_turn(asked, _answer(), "reasoning") == [
        _USER,
        {"role": "assistant", "content": " ok\n", "reasoning": "\nbecause "},
    ]
    assert next_turn(asked, _answer(reasoning=None), "reasoning")[-1] == {
        "role": "assistant",
        "content": " ok\n",
    }
    assert next_turn(asked, _answer(), "reasoning_content")[-1]["reasoning_content"] == "\nbecause "
    assert asked == [_USER]


_CALL = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (_answer(finish="length", native="length"), "previous_turn_cut"),
        (_answer(finish="stop", native="max_tokens"), "previous_turn_cut"),
        (_answer(finish="tool_calls", tool_calls=[_CALL]), "previous_turn_calls_tools"),
        (_answer(reasoning_content="another"), "previous_turn_ambiguous"),
        (_answer(content="half \ud83d"), "previous_turn_not_text"),
        (_answer(content=[{"type": "image"}]), "previous_turn_unreadable"),
    ],
)
def test_answers_that_no_turn_can_follow(answer, reason):
    refusal = next_turn([_USER], answer, "reasoning")
    assert isinstance(refusal, Refusal)
    assert refusal.reason == reason
