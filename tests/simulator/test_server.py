"""Over real HTTP: what clients, reports and load tests rely on."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from pipeline.errors import ConfigError, GenerationError
from pipeline.simulator.native import truth
from pipeline.simulator.server import serve, truth_for
from tests.simulator.conftest import MARKS, question, spelled


def _ask(client, body, path="/chat/completions"):
    return client.post(path, json=body)


def test_two_processes_give_the_same_bytes(default_server):
    bodies = [question(n) for n in range(60)]
    first = [_ask(default_server, body).content for body in bodies]
    with serve("default", 7) as other, httpx.Client(base_url=other.base_url, trust_env=False) as client:
        second = [_ask(client, body, "/v1/chat/completions").content for body in reversed(bodies)]
    assert second[::-1] == first
    assert [_ask(default_server, body).content for body in bodies] == first
    with serve("default", 8) as other, httpx.Client(base_url=other.base_url, trust_env=False) as client:
        assert _ask(client, bodies[0]).content != first[0]


def _shown_text(message):
    """The completion as the fields of a provider that loses nothing tell it."""
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    reasoning = reasoning or "".join(part["text"] for part in message.get("reasoning_details") or [])
    text = f"{reasoning}</think>{message['content'] or ''}"
    calls = message.get("tool_calls") or []
    for call in calls:
        text += f"<|tool_call_begin|>{call['id']}<|tool_call_argument_begin|>"
        text += f"{call['function']['arguments']}<|tool_call_end|>"
    return text.replace("<|tool_call_begin|>", "<|tool_calls_section_begin|><|tool_call_begin|>", 1) + (
        "<|tool_calls_section_end|>" if calls else ""
    )


@pytest.mark.parametrize("slug", ["verbatim", "contentful", "detailed", "triplicate", "endless", "idful"])
def test_the_truth_is_what_a_lossless_provider_shows_and_counts(slug, default_server, reference):
    answers = [_ask(default_server, question(n, provider={"only": [slug]})).json() for n in range(40)]
    truths = truth_for(str(default_server.base_url).rstrip("/"), [answer["id"] for answer in answers])
    texts = 0
    for answer in answers:
        true = truths[answer["id"]]
        message, usage = answer["choices"][0]["message"], answer["usage"]
        assert answer["provider"].lower() == slug == true["provider"].lower()
        assert usage["prompt_tokens"] == len(true["prompt_ids"])
        assert usage["completion_tokens"] == len(true["completion_ids"]) - (slug == "endless")
        assert answer["choices"][0]["finish_reason"] == true["ending"]
        if true["notes"]:
            continue  # a literal marker or a missing </think> is not to be told from the fields
        assert spelled(true["completion_ids"], reference) == _shown_text(message) + MARKS[163586]
        texts += 1
    assert texts > 20


def test_inline_and_raw_show_the_whole_completion(default_server, reference):
    for slug in ("inline", "rawbone"):
        for n in range(0, 60, 3):
            answer = _ask(default_server, question(n, provider={"only": [slug]})).json()
            true = truth(question(n, provider={"only": [slug]}), "default", 7)
            message = answer["choices"][0]["message"]
            shown = message["content"] or ""
            if slug == "rawbone":
                marked = "</think>" if 163607 in true.completion_ids else ""
                shown = f"{message['reasoning'] or ''}{marked}{shown}"
            whole = spelled(true.completion_ids[:-1], reference)
            assert shown == (whole if slug == "rawbone" else whole.partition(MARKS[163595])[0])


def test_the_joiner_puts_one_space_at_each_side(default_server, reference):
    for n in range(30):
        body = question(n, provider={"only": ["spacious"]})
        message = _ask(default_server, body).json()["choices"][0]["message"]
        ids = truth(body, "default", 7).completion_ids
        if 163607 in ids and ids.index(163607) > 0:
            reasoning = spelled(ids[: ids.index(163607)], reference)
            assert message["reasoning"] == f" {reasoning} "
        if "tool_calls" not in message and message["content"]:
            content = spelled(ids[ids.index(163607) + 1 : -1], reference)
            assert message["content"] == f" {content}"


def test_native_ids_come_only_when_asked_for(default_server):
    only = {"only": ["idful"]}
    body = question(1, provider=only, return_token_ids=True)
    answer = _ask(default_server, body).json()
    true = truth(body, "default", 7)
    assert answer["choices"][0]["token_ids"] == true.completion_ids
    assert answer["prompt_token_ids"] == true.prompt_ids
    assert "token_ids" not in _ask(default_server, question(1, provider=only)).text


def test_short_answers_are_cut_where_max_tokens_says(default_server):
    endings = set()
    for n in range(40):
        body = question(n, max_tokens=1 + 5 * n, provider={"only": ["verbatim"]})
        answer = _ask(default_server, body).json()
        count = answer["usage"]["completion_tokens"]
        endings.add(answer["choices"][0]["finish_reason"])
        assert count <= 1 + 5 * n
        assert (count == 1 + 5 * n) == (answer["choices"][0]["finish_reason"] == "length")
    assert "length" in endings


def test_truth_over_http(default_server):
    answer = _ask(default_server, question(5)).json()
    by_id = default_server.get("/truth", params={"id": answer["id"]}).json()[answer["id"]]
    by_hash = default_server.get("/truth", params={"request_hash": by_id["request_hash"]}).json()
    assert by_hash == {by_id["request_hash"]: by_id}
    assert by_id == truth(question(5), "default", 7).as_dict()
    assert default_server.get("/truth", params={"id": "gen-none"}).status_code == 404
    assert default_server.post("/truth", json={"ids": ["gen-none"]}).json() == {"gen-none": None}


def test_headers_and_health(default_server):
    response = _ask(default_server, question(1))
    assert response.headers["x-generation-id"] == response.json()["id"]
    assert response.headers["content-type"] == "application/json"
    assert default_server.get("/health").json() == {"status": "ok", "profile": "default", "seed": 7}


def test_refusals_over_http(default_server):
    before = default_server.get("/stats").json()
    bad = default_server.post("/chat/completions", content=b"{nothing")
    nobody = _ask(default_server, question(1, provider={"only": ["nobody"]}))
    empty = _ask(default_server, {"messages": []})
    assert [one.status_code for one in (bad, nobody, empty)] == [400, 404, 400]
    assert "verbatim" in nobody.json()["error"]["message"]
    after = default_server.get("/stats").json()
    assert after["requests"] - before["requests"] == 3
    assert after["distinct_requests"] == before["distinct_requests"]


def _until_good(client, body):
    """(status or reason of each failure, the answer)."""
    failures = []
    while True:
        try:
            response = _ask(client, body)
            answer = response.json()
        except httpx.RemoteProtocolError:
            failures.append("cut")
            continue
        except json.JSONDecodeError:
            failures.append(f"no JSON {response.status_code}")
            continue
        choices = answer.get("choices")
        if response.status_code == 200 and choices and not choices[0].get("error"):
            return failures, answer
        failures.append(f"error {response.status_code}")
        if response.status_code == 429:
            assert response.headers["retry-after"]


def test_faults_pass_when_asked_again(faulty_server):
    before = faulty_server.get("/stats").json()
    outcomes = [_until_good(faulty_server, question(n, salt="faults")) for n in range(150)]
    kinds = {failure for failures, _ in outcomes for failure in failures}
    assert {"cut", "no JSON 200", "error 429", "error 500", "error 200"} <= kinds
    assert any(kind.startswith("no JSON 5") for kind in kinds)
    assert max(len(failures) for failures, _ in outcomes) == 2
    failed = sum(len(failures) for failures, _ in outcomes)
    stats = faulty_server.get("/stats").json()
    assert stats["requests"] - before["requests"] == 150 + failed
    assert stats["distinct_requests"] - before["distinct_requests"] == 150
    assert sum(stats["faults"].values()) - sum(before["faults"].values()) == failed
    assert sum(stats["by_status"].values()) == stats["requests"]
    # Failures leave no trace in the answer: another attempt is the same answer.
    assert [_until_good(faulty_server, question(n, salt="faults"))[1] for n in range(20)] == [
        answer for _, answer in outcomes[:20]
    ]
    assert any("error" in answer for _, answer in outcomes)  # empty, and harmless


def test_hostile_habits_over_http(hostile_server):
    def answers(slug, **extra):
        return [
            _ask(hostile_server, question(3 * n, provider={"only": [slug]}, **extra)).json()
            for n in range(40)
        ]

    def messages(slug, **extra):
        return [answer["choices"][0]["message"] for answer in answers(slug, **extra)]

    for message in messages("stripper"):
        for text in (message["reasoning_content"], message["content"]):
            assert text == text.strip()
    assert all((m["reasoning"] or "") == (m["reasoning"] or "").rstrip() for m in messages("trimmer"))
    called = [call for message in messages("renamer") for call in message.get("tool_calls", [])]
    assert called
    assert all(call["id"].startswith("call_") for call in called)
    called = [call for message in messages("toolsmith") for call in message.get("tool_calls", [])]
    assert all(call["id"].startswith("chatcmpl-tool-") for call in called)
    assert "{}" in [call["function"]["arguments"] for call in called]
    assert any((message["content"] or "").endswith("<|im_end|>") for message in messages("leaker"))
    assert not any("usage" in answer for answer in answers("countless"))
    assert all(answer["usage"] is None for answer in answers("nullcount"))
    for answer in answers("miscount"):
        true = hostile_server.get("/truth", params={"id": answer["id"]}).json()[answer["id"]]
        assert answer["usage"]["completion_tokens"] != len(true["completion_ids"])
    cut = [message for limit in range(20, 26) for message in messages("miscount", max_tokens=limit)]
    assert any("�" in (message["reasoning"] or "") for message in cut)


# --- the process -------------------------------------------------------------------------------


def _listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_server_ends_with_the_block_whatever_happens():
    ports = []

    def fail_inside():
        with serve("plain") as running:
            ports.append(running.port)
            assert _listens(running.port)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail_inside()
    assert not _listens(ports[0])
    with serve("plain") as running:
        running.stop()
        running.stop()
        assert not _listens(running.port)


def test_the_server_ends_with_a_killed_parent():
    code = (
        "import sys, time\nfrom pipeline.simulator.server import serve\n"
        "with serve('plain') as running:\n"
        "    sys.stdout.write(f'{running.port}\\n')\n    sys.stdout.flush()\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path.cwd()) as parent:
        port = int(parent.stdout.readline())
        assert _listens(port)
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while _listens(port):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_cannot_start_says_why(tmp_path):
    with pytest.raises(ConfigError, match="there are default"), serve("nothing"):
        pass
    with (
        pytest.raises(GenerationError, match="no texts to answer with"),
        serve("plain", corpus=tmp_path),
    ):
        pass


def test_another_corpus(tiny_corpus):
    with serve("plain", corpus=tiny_corpus) as running:
        answer = httpx.post(f"{running.base_url}/chat/completions", json=question(1), trust_env=False).json()
        assert "Let me think." in answer["choices"][0]["message"]["reasoning"]
        assert truth_for(running.base_url, [answer["id"]])[answer["id"]] == (
            truth(question(1), "plain", 0, tiny_corpus).as_dict()
        )
