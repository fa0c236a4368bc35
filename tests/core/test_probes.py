"""What a handful of answers shows, by the simulator's habits (whose truth is known) and by hand."""

import json

import pytest
import yaml

from pipeline.config import Api, GenerateSettings, Profile, Sampling
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.probe_findings import find
from pipeline.core.probes import PROBES, Evidence, Odd, probe_body, read_evidence, routes_of
from pipeline.core.turns import Response
from pipeline.simulator.answer import answer_body
from pipeline.simulator.native import generate
from pipeline.simulator.profile import load_profile
from pipeline.simulator.request import read_request
from pipeline.simulator.texts import load_corpus
from tests.conftest import ROOT

SETTINGS = GenerateSettings(
    provider="p", model="m", api=Api(identity="p", body={"provider": {"order": ["a"]}}), sampling=Sampling()
)
SERVED = [(name, one.name) for name in ("default", "hostile") for one in load_profile(name).providers]
SEEDS = range(4)


@pytest.fixture(scope="module")
def grammar(kimi, kimi_target):
    return CompiledGrammar(kimi_target.grammar, kimi.special, thinking=True)


@pytest.fixture(scope="module")
def read(kimi, kimi_target):
    def read(probe, body, answer, status=200):
        raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return read_evidence(probe, body, Response(status, {}, raw), kimi_target.render, kimi)

    return read


@pytest.fixture(scope="module")
def simulated(kimi, grammar, read):
    """Habits of a served provider, and what a handful of its answers shows, once for each seed."""
    found = {}

    def simulated(profile_name, served):
        if (profile_name, served) not in found:
            profile = load_profile(profile_name)
            one = next(one for one in profile.providers if one.name == served)
            found[profile_name, served] = one.habits, [_one(profile, one, seed) for seed in SEEDS]
        return found[profile_name, served]

    def _one(profile, served, seed):
        evidence = []
        for probe in PROBES:
            body = json.loads(json.dumps(probe_body(probe, SETTINGS, served.slug)))
            generation = generate(read_request(body), profile, seed, load_corpus())
            evidence.append(read(probe.name, body, answer_body(generation, profile)))
        assert all(isinstance(e, Evidence) and e.answer.served_provider == served.name for e in evidence)
        return find(evidence, kimi, grammar)

    return simulated


def expected_profile(habits):
    """What conf would say of such a provider."""
    return Profile(
        space_join=habits.whitespace.startswith("space_join"),
        strips={"space_join_rstrip": "reasoning_tail", "strip": "both"}.get(habits.whitespace, "none"),
        counts_end=habits.counts_end,
        rewrites_ids=habits.call_ids in ("call_hex", "chatcmpl_tool"),
        empty_arguments=habits.empty_arguments,
    )


@pytest.mark.parametrize(("profile", "served"), SERVED)
def test_a_finding_is_the_habit_or_is_not_there(simulated, profile, served):
    habits, all_found = simulated(profile, served)
    fields = ("reasoning", "reasoning_content", "reasoning_details")
    words = {
        "reasoning_in": {
            "all": " + ".join(fields),
            "inline": "content, before </think>",
            **{field: field for field in fields},
        }[habits.reasoning_in],
        "empty_text": {"null": "null", "empty": '""'}[habits.empty_text],
        "raw_finish": habits.raw_finish,
        "usage": habits.usage,
        "counts_end": "counted" if habits.counts_end else "not counted",
        "reasoning_tokens": habits.reasoning_tokens if habits.usage in ("right", "wrong") else "",
        "token_ids": {"none": "none", "vllm": "token_ids", "sglang": "response_token_ids"}[habits.native_ids],
        "logprobs": "none",
        "split_by": habits.split_by,
        "prompt": "equal",
    }
    for found in all_found:
        for name, word in words.items():
            assert getattr(found, name) in ("", word), name
        assert found.reasoning_in
        assert found.usage
        assert found.prompt or habits.usage in ("missing", "null")
        raw = any(form.startswith("raw") for form in found.calls.split(" / "))
        assert not ("structured" in found.calls if habits.calls == "raw" else raw and not found.raw_finish)
        if habits.whitespace == "verbatim":
            assert found.whitespace in ("verbatim", "nothing added")
        shown = {
            "kept": ("kept", "like the model's"),
            "rebuilt": ("like the model's",),
            "call_hex": ("rewritten (call_…)", "foreign (call_…)"),
            "chatcmpl_tool": ("rewritten (chatcmpl-tool-…)", "foreign (chatcmpl-tool-…)"),
        }[habits.call_ids]
        assert found.call_ids in ("", *shown)
        ends = [leak for leak in found.leaks if leak.startswith("<|im_end|> ends content")]
        assert bool(ends) == bool(habits.leaked_end)


@pytest.mark.parametrize(("profile", "served"), SERVED)
def test_no_profile_is_wrong_in_a_setting_that_it_does_not_call_undecided(simulated, profile, served):
    habits, all_found = simulated(profile, served)
    for found in all_found:
        if habits.usage == "wrong":
            assert found.profile is None
            assert "fit" in found.why_not
            continue
        expected = expected_profile(habits).model_dump()
        wrong = {name for name, value in found.profile.model_dump().items() if value != expected[name]}
        assert wrong <= found.undecided.keys()


def test_the_profiles_of_the_default_simulator_are_those_that_are_pinned(simulated):
    tree = yaml.safe_load((ROOT / "conf/provider/simulator.yaml").read_text(encoding="utf-8"))
    pinned = {name: Profile.model_validate(one) for name, one in tree["profiles"].items()}
    for profile, served in SERVED:
        if profile != "default":
            continue
        for found in simulated(profile, served)[1]:
            assert found.profile == pinned.get(served, pinned["default"])
            assert found.fits >= found.counts - 1
            assert found.counts == found.answers
            assert found.undecided.keys() <= {"rewrites_ids", "empty_arguments", "strips"}


def test_most_of_what_counts_can_tell_is_told(simulated):
    asked = [
        (found, habits)
        for served in SERVED
        for habits, all_found in [simulated(*served)]
        for found in all_found
    ]
    counted = [(found, habits) for found, habits in asked if habits.usage == "right"]
    assert sum(bool(found.counts_end) for found, _ in counted) >= 0.9 * len(counted)
    rewriting = [found for found, habits in counted if habits.call_ids in ("call_hex", "chatcmpl_tool")]
    assert sum(found.profile.rewrites_ids for found in rewriting) >= 0.5 * len(rewriting)
    assert sum(bool(found.calls) for found, _ in asked) >= 0.8 * len(asked)
    assert any(found.profile.empty_arguments == "braces" for found, _ in counted)


# --- by hand ------------------------------------------------------------------------------------


@pytest.fixture
def answers(kimi, grammar, read, kimi_target):
    """Evidence of answers written here; `ids` are what the model sampled, the count follows from them."""

    def make(*written, **changes):
        evidence = []
        for number, one in enumerate(written):
            one = {"reasoning": "Well.", "content": "Fine.", **one}
            probe = next(probe for probe in PROBES if probe.name == one.get("probe", "plain"))
            body = probe_body(probe, SETTINGS, None)
            native = {"reasoning": one["reasoning"], "content": one["content"], **one.get("native", {})}
            calls = one.get("calls", [])
            count = len(kimi.encode(native["reasoning"])) + 1 + len(kimi.encode(native["content"])) + 1
            if calls:
                count += 2 + sum(
                    3
                    + len(kimi.encode(native.get("id", c[0])))
                    + len(kimi.encode(native.get("arguments", c[1])))
                    for c in calls
                )
            message = {"role": "assistant", "content": one["content"], "reasoning": one["reasoning"]}
            if calls:
                message["tool_calls"] = [
                    {"id": i, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
                    for i, arguments in calls
                ]
            answer = {
                "id": f"gen-{number}",
                "provider": "Alpha",
                "choices": [{"finish_reason": "tool_calls" if calls else "stop", "message": message}],
                "usage": {
                    "prompt_tokens": _prompt_tokens(body) + one.get("prompt_delta", 0),
                    "completion_tokens": count + one.get("off", 0),
                },
                **changes,
            }
            evidence.append(read(probe.name, body, answer))
        return evidence

    def _prompt_tokens(body):
        from pipeline.core.render import render_ids

        return len(render_ids(body, kimi_target.render, kimi).ids)

    return make


def found_in(evidence, kimi, grammar):
    assert not [e for e in evidence if isinstance(e, Odd)]
    return find(evidence, kimi, grammar)


def test_few_answers_pin_nothing(answers, kimi, grammar):
    found = found_in(answers({}, {}, {}), kimi, grammar)
    assert found.profile is None
    assert found.why_not == "only 3 answers came"


def test_prompt_counts_name_the_probe_that_differs(answers, kimi, grammar):
    found = found_in(answers({}, {}, {}, {"probe": "call", "prompt_delta": -40}), kimi, grammar)
    assert found.prompt == "equal; call -40"
    found = found_in(answers(*[{"prompt_delta": 2}] * 4), kimi, grammar)
    assert found.prompt == "+2"


def test_a_server_that_keeps_special_strings_as_text_is_told(answers, kimi, grammar):
    found = found_in(answers({}, {}, {}, {"probe": "echo", "prompt_delta": 4}), kimi, grammar)
    assert found.prompt == "equal; special strings kept as text"


def test_stripping_shows_only_by_counts(answers, kimi, grammar):
    lost = {"native": {"content": "\n\nFine."}}
    found = found_in(answers({}, {}, {}, lost, lost), kimi, grammar)
    assert found.profile == Profile(strips="both")
    assert (found.fits, found.counts) == (5, 5)
    one = found_in(answers({}, {}, {}, lost), kimi, grammar)
    assert one.profile == Profile()
    assert one.undecided["strips"] == "no whitespace came at an edge of a text"


def test_whitespace_at_an_edge_of_content_leaves_only_the_end_of_reasoning_open(answers, kimi, grammar):
    lost = {"native": {"reasoning": "Well, now\n\n"}, "reasoning": "Well, now", "content": "\nFine."}
    found = found_in(answers({}, {}, {}, lost, lost), kimi, grammar)
    assert found.profile == Profile(strips="reasoning_tail")


def test_two_counts_without_the_end_token_are_a_habit_and_one_is_not(answers, kimi, grammar):
    assert not found_in(answers(*[{"off": -1}] * 4), kimi, grammar).profile.counts_end
    found = found_in(answers({}, {}, {}, {"off": -1}), kimi, grammar)
    assert found.profile.counts_end
    assert found.counts_end == "counted"
    found = found_in(answers({}, {}, {"off": -1}, {"off": -1}), kimi, grammar)
    assert found.undecided["counts_end"] == "no count tells"


def test_braces_are_believed_only_from_a_count_that_nothing_else_explains(answers, kimi, grammar):
    call = {"probe": "call", "calls": [("functions.get_weather:0", "{}")]}
    emptied = {**call, "native": {"arguments": ""}}
    assert found_in(answers({}, {}, {}, emptied), kimi, grammar).profile.empty_arguments == "braces"
    # Without content the missing token may as well be `</think>`.
    found = found_in(answers({}, {}, {}, {**emptied, "content": ""}), kimi, grammar)
    assert found.profile.empty_arguments == "verbatim"
    assert "empty_arguments" in found.undecided
    shown = {**call, "calls": [("functions.get_weather:0", "")]}
    assert "empty_arguments" not in found_in(answers({}, {}, {}, shown), kimi, grammar).undecided


def test_an_id_that_counts_on_from_the_history_was_kept(answers, kimi, grammar):
    def after_a_call(call_id):
        return answers({}, {}, {}, {"probe": "tool loop", "calls": [(call_id, "{}")]})

    assert found_in(after_a_call("functions.get_weather:4"), kimi, grammar).call_ids == "kept"
    found = found_in(after_a_call("functions.get_weather:1"), kimi, grammar)
    assert found.call_ids == "like the model's"
    assert "rewrites_ids" in found.undecided


def test_foreign_ids_are_rewritten_if_the_count_says_so_and_else_the_models(answers, kimi, grammar):
    foreign = {"probe": "call", "calls": [("call_0a1b2c3d4e5f60718293a4b5", '{"city": "Paris"}')]}
    kept = found_in(answers({}, {}, {}, foreign), kimi, grammar)
    assert kept.call_ids == "kept"
    assert not kept.profile.rewrites_ids
    rewritten = {**foreign, "native": {"id": "functions.get_weather:0"}}
    found = found_in(answers({}, {}, {}, rewritten), kimi, grammar)
    assert found.profile.rewrites_ids
    assert found.call_ids == "rewritten (call_…)"


def test_a_quoted_mark_is_no_leak(answers, kimi, grammar):
    quoting = {"content": "It ends with <|im_end|>"}
    assert found_in(answers({}, {}, {}, quoting), kimi, grammar).leaks == ()
    leaking = {"content": "It ends.<|im_end|>", "native": {"content": "It ends."}}
    found = found_in(answers({}, {}, {}, leaking), kimi, grammar)
    assert found.leaks == ("<|im_end|> ends content (1 of 4)",)


def test_fields_that_begin_with_a_space_are_joined_and_a_bare_end_of_reasoning_is_stripped(
    answers, kimi, grammar
):
    joined = {
        "reasoning": " Well. ",
        "content": " Fine.",
        "native": {"reasoning": "Well.", "content": "Fine."},
    }
    assert found_in(answers(*[joined] * 4), kimi, grammar).profile == Profile(space_join=True)
    bare = {**joined, "reasoning": " Well."}
    found = found_in(answers(*[bare] * 4), kimi, grammar)
    assert found.profile == Profile(space_join=True, strips="reasoning_tail")


def test_ids_that_do_not_fit_the_text_are_said(kimi, grammar, read, answers):
    body = probe_body(next(p for p in PROBES if p.name == "token ids"), SETTINGS, None)
    message = {"role": "assistant", "reasoning": "Well.", "content": "144"}
    choice = {"finish_reason": "stop", "message": message, "token_ids": [1, 2, 163586]}
    usage = {"prompt_tokens": 9, "completion_tokens": 3}
    wrong = read("token ids", body, {"choices": [choice], "usage": usage})
    assert found_in([*answers({}, {}, {}), wrong], kimi, grammar).token_ids == (
        "token_ids, which do not fit the text"
    )


def test_what_holds_no_answer_says_why_and_by_whom(read):
    body = probe_body(PROBES[0], SETTINGS, None)
    assert read("plain", body, b"<html>", 502).why.startswith("status 502")
    lost = {"provider": "Alpha", "choices": [{"finish_reason": "tool_calls", "message": {"content": "x"}}]}
    assert read("plain", body, lost) == Odd("finish_reason says calls and none came", "Alpha")


def test_a_route_is_asked_alone_and_all_else_of_the_body_stays():
    api = Api(
        identity="p",
        body={"provider": {"order": ["a", "b"], "data_collection": "deny"}, "include_reasoning": True},
    )
    settings = SETTINGS.model_copy(update={"api": api})
    body = probe_body(PROBES[0], settings, "b")
    assert body["provider"] == {"data_collection": "deny", "only": ["b"], "allow_fallbacks": False}
    assert body["include_reasoning"] is True
    assert body["max_tokens"] == PROBES[0].max_tokens
    assert probe_body(PROBES[0], settings, None)["provider"] == api.body["provider"]


def test_routes_are_only_else_order():
    def routes(provider):
        return routes_of(Api(identity="p", body={"provider": provider} if provider else {}))

    assert routes({"only": ["a"], "order": ["b"]}) == ("a",)
    assert routes({"order": ["b", "a", "b"]}) == ("b", "a")
    assert routes({"ignore": ["a"]}) == routes(None) == ()


def test_the_handful_is_small():
    assert len(PROBES) <= 10
    assert all(probe.max_tokens <= 2000 for probe in PROBES)
