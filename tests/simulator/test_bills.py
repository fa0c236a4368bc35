"""What /generation and /stats say is what was billed, whether the answer arrived or not."""

import httpx
import pytest

from pipeline.simulator.native import truth
from pipeline.simulator.profile import load_profile
from tests.simulator.conftest import question
from tests.simulator.test_stream_faults import _outcome


def _told(client, attempt_id, path="/generation"):
    response = client.get(path, params={"id": attempt_id})
    return response.json()["data"] if response.status_code == 200 else None


def test_the_bills_of_all_attempts_add_up_to_the_cost_in_stats(stormy_server):
    before = stormy_server.get("/stats").json()
    told, good_cost, ids = [], 0.0, set()
    for n in range(150):
        asked = question(n, salt="bills", stream=n % 2 == 0)
        for _ in range(3):
            status, headers, _, _ = _outcome(stormy_server, asked)
            entry = _told(stormy_server, headers["x-generation-id"])
            ids.add(headers["x-generation-id"])
            if status in (429, 500, 503):
                assert entry is None  # no model worked on it
            if entry is not None:
                assert entry["streamed"] == (n % 2 == 0)
                told.append(entry)
            if headers["x-generation-id"] == truth(asked, "stormy", 7).id:
                good_cost += entry["total_cost"]
                break
        else:
            pytest.fail("three attempts did not suffice")
    stats = stormy_server.get("/stats").json()
    assert stats["cost"] - before["cost"] == pytest.approx(sum(entry["total_cost"] for entry in told))
    assert stats["billed"] - before["billed"] == sum(entry["total_cost"] > 0 for entry in told)
    assert len(ids) == stats["requests"] - before["requests"]  # an id is one attempt
    assert sum(entry["total_cost"] for entry in told) > 1.03 * good_cost  # text that got lost was paid for
    free = [entry for entry in told if not entry["total_cost"]]
    assert free
    assert all((one["finish_reason"], one["native_tokens_completion"]) == ("error", 0) for one in free)


@pytest.mark.parametrize("server", ["default_server", "hostile_server"])
def test_a_bill_is_what_the_usage_said(server, request):
    client = request.getfixturevalue(server)
    price = load_profile("default").price
    silent = 0
    for n in range(120):
        before = client.get("/stats").json()["cost"]
        answer = client.post("/chat/completions", json=question(n, salt="told")).json()
        entry, usage = _told(client, answer["id"], "/v1/generation"), answer.get("usage")
        assert entry["id"] == answer["id"]
        assert (entry["provider_name"], entry["model"]) == (answer["provider"], answer["model"])
        assert client.get("/stats").json()["cost"] - before == pytest.approx(entry["total_cost"])
        prompt, completion = entry["native_tokens_prompt"], entry["native_tokens_completion"]
        by_tokens = (prompt * price.prompt + completion * price.completion) / 1e6
        assert entry["total_cost"] == pytest.approx(by_tokens)
        if usage:
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt, completion)
            assert usage["cost"] == entry["total_cost"] == entry["usage"]
        else:
            silent += 1
            assert entry["total_cost"] > 0
    assert (silent > 5) == (server == "hostile_server")


def test_a_generation_that_was_never_made_is_not_found(default_server):
    for path in ("/generation", "/v1/generation"):
        for query in ({"id": "gen-none"}, {}):
            response = default_server.get(path, params=query)
            assert response.status_code == 404
            assert response.json()["error"]["code"] == 404


def test_asking_for_a_bill_is_no_request(default_server):
    before = default_server.get("/stats").json()
    default_server.get("/generation", params={"id": "gen-none"})
    assert default_server.get("/stats").json() == before


def test_a_lost_answer_says_its_id_before_it_is_lost(stormy_server):
    lost = 0
    for n in range(200):
        asked = question(n, salt="lost", stream=True)
        _, headers, _, held = _outcome(stormy_server, asked)
        if not held:
            lost += 1
            assert _told(stormy_server, headers["x-generation-id"])["total_cost"] > 0
    assert lost > 3
    assert httpx.codes.is_success(stormy_server.get("/health").status_code)
