"""What goes wrong with streams, and that none of it can pass for an answer."""

import json

import httpx
import pytest

from pipeline.core.answer import read_answer
from pipeline.core.classify import classify
from pipeline.records import Action
from pipeline.simulator import faults
from pipeline.simulator.answer import answer_body
from pipeline.simulator.faults import Fault, choose
from pipeline.simulator.native import generate
from pipeline.simulator.profile import Faults, load_profile
from pipeline.simulator.reply import Bill
from pipeline.simulator.request import read_request
from pipeline.simulator.stream_faults import broken, good
from pipeline.simulator.texts import load_corpus
from tests.simulator.conftest import question

_OF_STREAMS = (Fault.STREAM_ERROR, Fault.STREAM_CUT, Fault.STREAM_BROKEN)
_COUNT = 40


@pytest.fixture(scope="module")
def bodies():
    """Plain answers by the key of their draws."""
    profile = load_profile("stormy")
    made = [generate(read_request(question(n)), profile, 7, load_corpus()) for n in range(_COUNT)]
    return {one.key: answer_body(one, profile) for one in made}


def _all(fault, bodies):
    return [broken(fault, body, Faults(), key, 1) for key, body in bodies.items()]


def _verdict(reply):
    return classify(reply.status, {"content-type": reply.content_type}, reply.body, question(1))


@pytest.mark.parametrize("fault", _OF_STREAMS)
def test_faults_of_streams_meet_streams_only(fault):
    given = Faults(**{fault.value: 1.0})
    assert choose(given, "key", 1, streamed=True) is fault
    assert choose(given, "key", 1) is None
    with pytest.raises(ValueError, match="of streams only"):
        faults.broken(fault, {"provider": "P"}, given, "key", 1)


def test_faults_of_streams_leave_the_other_faults_where_they_were():
    old = Faults(rate_limited=0.2, only_padding=0.2)
    new = Faults(rate_limited=0.2, only_padding=0.2, stream_cut=0.3)
    for n in range(200):
        before = choose(old, f"key {n}", 1)
        assert choose(new, f"key {n}", 1) is before
        assert choose(new, f"key {n}", 1, streamed=True) in (
            (before,) if before else (None, Fault.STREAM_CUT)
        )


@pytest.mark.parametrize("fault", Fault)
def test_no_broken_stream_passes_for_an_answer(fault, bodies):
    for reply in _all(fault, bodies):
        assert _verdict(reply).action is Action.RETRY
        assert b"[DONE]" not in reply.body or fault in (Fault.ERROR_IN_CHOICE, Fault.NO_CHOICES)
        stated = reply.status == 200
        assert reply.content_type.startswith("text/event-stream") == stated


@pytest.mark.parametrize("fault", [*_OF_STREAMS, Fault.ERROR_IN_CHOICE])
def test_text_comes_before_the_trouble(fault, bodies):
    replies = _all(fault, bodies)
    assert all(reply.body.count(b"data: ") >= 2 for reply in replies)
    assert len({reply.body.count(b"data: ") for reply in replies}) > 10


def test_an_error_chunk_has_an_error_finish_or_no_choices(bodies):
    forms = set()
    for reply in _all(Fault.STREAM_ERROR, bodies):
        last = json.loads(reply.body.decode().rstrip().rpartition("data: ")[2])
        assert last["error"]["code"] == 502
        finish = last["choices"][0]["finish_reason"] if last["choices"] else None
        # Nobody pays for an error finish; text without one is paid for.
        assert (finish, reply.bill) in (("error", Bill.FREE), (None, Bill.FULL))
        forms.add(finish)
    assert forms == {"error", None}


def test_a_cut_stream_ends_after_an_event_and_a_broken_one_inside_an_event(bodies):
    for reply in _all(Fault.STREAM_CUT, bodies):
        assert reply.body.endswith(b"\n\n")
        assert not reply.promised
    for reply in _all(Fault.STREAM_BROKEN, bodies):
        assert reply.promised
        with pytest.raises(json.JSONDecodeError):
            json.loads(reply.body.rpartition(b"\n")[2].removeprefix(b"data: ").decode(errors="replace"))


def test_dress_is_harmless_and_there(bodies):
    for key, body in bodies.items():
        plain = good(body, Faults(), key)
        assert plain.body.endswith(b"data: [DONE]\n\n")
        bare = good(body, Faults(no_done=1.0), key)
        assert b"[DONE]" not in bare.body
        dressed = good(body, Faults(no_done=1.0, keep_alives=1.0, empty_error=1.0), key)
        assert dressed.body.count(b"\n:") > bare.body.count(b"\n:")
        assert b'"error": {}' in dressed.body
        answers = [_verdict(reply).body for reply in (plain, bare, dressed)]
        assert all(answer is not None for answer in answers)
        assert answers[0] == answers[1]
        assert {**answers[0], "error": {}} == answers[2]


@pytest.mark.parametrize("fault", [one for one in Fault if one not in _OF_STREAMS])
def test_plain_and_streamed_cost_the_same(fault, bodies):
    paid = {Fault.HTML_PAGE: Bill.FULL, Fault.CUT_BODY: Bill.FULL, Fault.ONLY_PADDING: Bill.FULL}
    free = {Fault.ERROR_IN_200: Bill.FREE, Fault.ERROR_IN_CHOICE: Bill.FREE, Fault.NO_CHOICES: Bill.FREE}
    expected = {**paid, **free}.get(fault, Bill.NONE)
    for key, body in bodies.items():
        for way in (faults.broken, broken):
            assert way(fault, body, Faults(), key, 1).bill is expected


@pytest.mark.parametrize("fault", Fault)
def test_an_answer_without_a_letter_breaks_before_its_finish_too(fault, bodies):
    body = next(iter(bodies.values()))
    message = {"role": "assistant", "content": None, "refusal": None, "reasoning": None}
    body = {**body, "choices": [{**body["choices"][0], "message": message, "finish_reason": "length"}]}
    for n in range(20):
        assert _verdict(broken(fault, body, Faults(), f"key {n}", 1)).action is Action.RETRY


# --- over HTTP ---------------------------------------------------------------------------------


def _outcome(client, body):
    """(status, headers, what came, whether the connection held)."""
    received, held = b"", True
    with client.stream("POST", "/chat/completions", json=body) as response:
        try:
            for part in response.iter_raw():
                received += part
        except httpx.RemoteProtocolError:
            held = False
    return response.status_code, response.headers, received, held


def test_in_a_storm_the_third_attempt_always_comes_through(stormy_server):
    before = stormy_server.get("/stats").json()
    profile, failed, broke = load_profile("stormy"), 0, 0
    for n in range(200):
        asked = question(n, salt="storm", stream=n % 4 > 0)
        for attempt in range(1, 4):
            status, headers, received, held = _outcome(stormy_server, asked)
            broke += not held
            lower = {name.lower(): value for name, value in headers.items()}
            verdict = classify(status, lower, received, asked)
            if held and verdict.action is Action.OK:
                break
            assert attempt < 3, (status, received)
            failed += 1
        made = generate(read_request(asked), profile, 7, load_corpus())
        assert read_answer(verdict.body) == read_answer(answer_body(made, profile))
    stats = stormy_server.get("/stats").json()
    met = {name: count - before["faults"].get(name, 0) for name, count in stats["faults"].items()}
    assert {fault for fault, count in met.items() if count} >= set(Fault)
    assert 0.2 < failed / (200 + failed) < 0.4
    assert broke > 3
