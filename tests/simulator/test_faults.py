import json
from collections import Counter
from email.utils import parsedate_to_datetime

import pytest

from pipeline.simulator.faults import Fault, broken, choose, good
from pipeline.simulator.profile import Faults
from pipeline.simulator.reply import refusal

_BODY = {
    "id": "gen-1",
    "provider": "P",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "All good."}}
    ],
    "usage": {"completion_tokens": 4},
}


def test_rates_by_request_and_attempt():
    faults = Faults(rate_limited=0.2, cut_body=0.1, at_most=2)
    seen = Counter(choose(faults, f"key {n}", 1) for n in range(2000))
    assert 320 < seen[Fault.RATE_LIMITED] < 480
    assert 140 < seen[Fault.CUT_BODY] < 260
    assert set(seen) == {Fault.RATE_LIMITED, Fault.CUT_BODY, None}
    assert any(choose(faults, f"key {n}", 1) != choose(faults, f"key {n}", 2) for n in range(50))
    assert all(choose(Faults(rate_limited=1.0), f"key {n}", 3) is None for n in range(50))
    assert choose(Faults(), "key", 1) is None


@pytest.mark.parametrize("fault", [one for one in Fault if not one.startswith("stream_")])
def test_every_fault_is_a_key_of_a_profile_and_has_a_shape(fault):
    assert choose(Faults(**{fault.value: 1.0}), "key", 1) is fault
    shapes = {broken(fault, _BODY, Faults(), f"key {n}", 1).status for n in range(40)}
    expected = {
        Fault.RATE_LIMITED: {429},
        Fault.UNAVAILABLE: {502, 503},
        Fault.SERVER_ERROR: {500},
        Fault.HTML_PAGE: {502, 520, 524},
    }
    assert shapes == expected.get(fault, {200})


def _broken(fault, n=0):
    return broken(fault, _BODY, Faults(retry_after_s=2), f"key {n}", 1)


def test_retry_after_has_both_forms():
    values = [_broken(Fault.RATE_LIMITED, n).headers["Retry-After"] for n in range(40)]
    assert "2" in values
    dates = [value for value in values if value != "2"]
    assert dates
    assert all(parsedate_to_datetime(date).tzinfo is not None for date in dates)


def test_bodies_without_an_answer():
    assert json.loads(_broken(Fault.ERROR_IN_200).body)["error"]["code"] == 502
    assert json.loads(_broken(Fault.NO_CHOICES).body)["choices"] is None
    choice = json.loads(_broken(Fault.ERROR_IN_CHOICE).body)["choices"][0]
    assert choice["finish_reason"] == "error"
    assert choice["error"]["code"] == 502
    assert _broken(Fault.ONLY_PADDING).body.strip() == b""
    page = _broken(Fault.HTML_PAGE)
    assert page.content_type.startswith("text/html")
    assert page.body.startswith(b"<!DOCTYPE html>")


def test_a_cut_body_is_a_beginning_and_never_json():
    whole = json.dumps(_BODY).encode()
    cuts = [_broken(Fault.CUT_BODY, n) for n in range(40)]
    for cut in cuts:
        assert whole.startswith(cut.body)
        with pytest.raises(json.JSONDecodeError):
            json.loads(cut.body.decode(errors="replace"))
        assert cut.promised in (0, len(whole) - len(cut.body))
    assert any(cut.promised for cut in cuts)
    assert not all(cut.promised for cut in cuts)


def test_good_answers_may_be_dressed():
    assert json.loads(good(_BODY, Faults(), "key").body) == _BODY
    padded = good(_BODY, Faults(padded=1.0), "key").body
    assert padded.startswith(b"\n ")
    assert json.loads(padded) == _BODY
    assert json.loads(good(_BODY, Faults(empty_error=1.0), "key").body) == {**_BODY, "error": {}}


def test_refusals():
    reply = refusal(404, "No endpoints found")
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (404, 404)
