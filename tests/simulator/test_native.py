import pytest

from pipeline.simulator.chance import Chance
from pipeline.simulator.composer import Said, SaidCall
from pipeline.simulator.native import generate, truth, write
from pipeline.simulator.profile import NativeRates, load_profile
from pipeline.simulator.request import BadRequest, read_request
from pipeline.simulator.splits import resplit
from pipeline.simulator.texts import load_corpus
from tests.simulator.conftest import TOOLS, question, spelled

_SAID = Said(
    "Let's see </think> Zwischenspiele.\n",
    "\n您好 🥾",
    (SaidCall("functions.f:0", '{"a": 1}'), SaidCall("functions.g:1", "")),
)


def _write(said=_SAID, limit=10_000, rates=None, thinking=True, seed=0):
    return write(said, rates or NativeRates(), limit, Chance(seed), thinking=thinking)


def test_every_part_is_encoded_alone_between_single_ids(reference):
    e = reference.encode_ordinary
    assert list(_write().ids) == [
        *e("Let's see </think> Zwischenspiele.\n"),
        163607,
        *e("\n您好 🥾"),
        163595,
        *(163597, *e("functions.f:0"), 163598, *e('{"a": 1}'), 163599),
        *(163597, *e("functions.g:1"), 163598, 163599),
        163596,
        163586,
    ]
    assert _write().ending == "tool_calls"


def test_plain_turns(reference):
    e = reference.encode_ordinary
    assert list(_write(Said("a", "b")).ids) == [*e("a"), 163607, *e("b"), 163586]
    assert list(_write(Said("", "b")).ids) == [163607, *e("b"), 163586]
    assert list(_write(Said("", "b"), thinking=False).ids) == [*e("b"), 163586]
    assert _write(Said("a", "b")).ending == "stop"


def test_odd_turns(reference):
    call = (SaidCall("f:0", "{}"),)
    assert 163607 not in _write(Said("a", "", call, closes_reasoning=False)).ids
    assert list(_write(Said("a", "", call, after_calls="\n")).ids)[-3:] == [163596, 198, 163586]


def test_max_tokens_cuts_anywhere_and_ends_nothing():
    whole = _write().ids
    for limit in range(1, len(whole)):
        cut = _write(limit=limit)
        assert cut.ids == whole[:limit]
        assert cut.ending == "length"
    assert _write(limit=len(whole)).ending == "tool_calls"


@pytest.mark.parametrize("same_length", [True, False])
def test_resplit_ids_are_the_same_text_otherwise(same_length, reference):
    text = "Zwischenspiele and hexametrical 東京 boots 🥾 since yesterday."
    ids = reference.encode_ordinary(text)
    for seed in range(30):
        other = resplit(ids, Chance(seed), same_length=same_length)
        assert other != ids
        assert len(other) == len(ids) + (not same_length)
        assert spelled(other, reference) == text
    assert resplit([], Chance(0), same_length=same_length) is None
    assert resplit([13], Chance(0), same_length=same_length) is None  # one byte can't be divided


def test_non_canonical_turns_are_noted(reference):
    rates = NativeRates(non_canonical=1.0)
    canonical = _write().ids
    lengths = set()
    for seed in range(40):
        native = _write(rates=rates, seed=seed)
        assert native.ids != canonical
        assert spelled(native.ids, reference) == spelled(canonical, reference)
        lengths.add((native.notes, len(native.ids) - len(canonical)))
    assert lengths == {(("non_canonical",), 1), (("non_canonical_same_length",), 0)}
    assert _write().notes == ()


def test_an_answer_depends_on_body_profile_and_seed_alone():
    body = question(3)
    reordered = dict(reversed(list(body.items())))
    first = truth(body, "default", 7)
    truth(question(4), "default", 7)
    assert truth(reordered, "default", 7) == first
    others = [truth(body, "default", 8), truth(body, "hostile", 7), truth(question(6), "default", 7)]
    assert len({first.id, *(other.id for other in others)}) == 4
    assert all(other.completion_ids != first.completion_ids for other in others)


def test_ids_stay_in_the_vocabulary_and_markers_where_they_belong():
    structural = {163586, 163595, 163596, 163597, 163598, 163599, 163607}
    for profile in ("default", "hostile"):
        for n in range(150):
            ids = truth(question(n), profile, 1).completion_ids
            special = [one for one in ids if one >= 163584]
            assert set(special) <= structural
            assert special[-1] == ids[-1] == 163586
            assert special.count(163607) <= 1


def test_providers_can_be_chosen():
    def served(n, **provider):
        return truth(question(n, provider=provider), "default", 0).provider

    assert {served(n, only=["inline"]) for n in range(5)} == {"Inline"}
    assert {served(n, only=["Rawbone", "spacious"]) for n in range(30)} == {"Rawbone", "Spacious"}
    assert {served(n, order=["nobody", "detailed/turbo"]) for n in range(5)} == {"Detailed"}
    assert "Verbatim" not in {served(n, ignore=["Verbatim"]) for n in range(60)}
    with pytest.raises(BadRequest, match="No endpoints") as refused:
        served(0, only=["nobody"])
    assert refused.value.status == 404
    with pytest.raises(BadRequest, match="No endpoints"):
        served(0, order=["nobody"], allow_fallbacks=False)
    with pytest.raises(BadRequest, match=r"provider\.only"):
        served(0, only="inline")


def test_all_providers_serve():
    profile = load_profile("default")
    served = {generate(read_request(question(n)), profile, 0, load_corpus()).served.name for n in range(300)}
    assert served == {one.name for one in profile.providers}


def test_a_conversation_with_a_tool_result_goes_on():
    history = [
        {"role": "user", "content": "Look it up."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "functions.now:0", "type": "function", "function": {"name": "now", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "functions.now:0", "content": "12:00"},
    ]
    endings = [truth({"messages": history, "tools": TOOLS, "n": n}, "plain", 0).ending for n in range(60)]
    assert 10 < endings.count("tool_calls") < 35
    assert endings.count("tool_calls") + endings.count("stop") == 60
