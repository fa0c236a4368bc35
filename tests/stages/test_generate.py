import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import web

from pipeline.config import Api, GenerateSettings, Runtime, Sampling, SimulatorSettings, Transport
from pipeline.errors import ConfigError, ExactokError, GenerationError, StageError
from pipeline.stages import generate
from tests.io.loopback import completion, failure, loopback

_CANARY = "sk-canary-0123456789"
_SCRIPT = Path(__file__).with_name("run_generate.py")


@pytest.fixture(autouse=True)
def store_file(tmp_path, monkeypatch):
    path = tmp_path / "store" / "store.sqlite"
    monkeypatch.setenv("EXACTOK_STORE", str(path))
    return path


def _prompts(path, *conversations, tools=None):
    """Each conversation is the texts of its user turns."""
    rows = [
        {
            "prompt_id": f"p{position}",
            "position": position,
            "messages": json.dumps([{"role": "user", "content": turns[0]}]),
            "following_turns": json.dumps([{"role": "user", "content": text} for text in turns[1:]]),
            "tools": tools and json.dumps(tools),
            "source_id": None,
        }
        for position, turns in enumerate(conversations)
    ]
    strings = ("messages", "following_turns", "tools", "source_id")
    schema = pa.schema(
        [("prompt_id", pa.string()), ("position", pa.int64()), *((name, pa.string()) for name in strings)]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return path


def _settings(sampling=None, **api):
    given = {"identity": "loopback", **api}
    return GenerateSettings(
        provider="loopback",
        model="m",
        api=Api(**given),
        sampling=Sampling(**(sampling or {"max_tokens": 50})),
    )


class _World:
    """Answers by what the last message says; counts what was asked."""

    def __init__(self, **answers):
        self.answers = answers
        self.bodies = []
        self.waits = []

    def handle(self, request):
        body = json.loads(request.content)
        self.bodies.append(body)
        text = body["messages"][-1]["content"]
        answer = self.answers.get(text)
        if callable(answer):
            return answer(request)
        if answer is not None:
            return answer
        return httpx.Response(200, json=completion(f"answer to {text}"), headers={"x-generation-id": "gen-1"})

    async def sleep(self, seconds):
        self.waits.append(seconds)

    @property
    def asked(self):
        return sorted(body["messages"][-1]["content"] for body in self.bodies)


def _run(prompts, out, world, settings=None, **transport):
    transport = Transport(**{"base_url": "http://x", "max_attempts": 2, **transport})
    settings = settings or _settings()
    http = httpx.MockTransport(world.handle)
    return generate.run(
        prompts, settings, transport, Runtime(concurrency=4), out, http=http, sleep=world.sleep
    )


def _rows(out):
    return pq.read_table(out).to_pylist()


def test_a_row_a_turn_with_what_was_asked_and_what_came(tmp_path):
    prompts, out = _prompts(tmp_path / "d.parquet", ["a"], ["b", "c"]), tmp_path / "responses/d.parquet"
    summary = _run(prompts, out, _World())
    assert summary == "generate d: 3 rows (3 answers, 0 failures); 3 requests sent, $0.7500"
    rows = _rows(out)
    assert [row["row_id"] for row in rows] == ["p0:0", "p1:0", "p1:1"]
    row = rows[2]
    assert json.loads(row["request"])["messages"] == [
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "answer to b", "reasoning": "well"},
        {"role": "user", "content": "c"},
    ]
    assert json.loads(row["body"]) == completion("answer to c")
    assert json.loads(row["headers"]) == {"content-type": "application/json", "x-generation-id": "gen-1"}
    assert {name: row[name] for name in ("prompt_id", "turn", "status", "failure")} == {
        "prompt_id": "p1",
        "turn": 1,
        "status": 200,
        "failure": None,
    }
    found = [
        row[n] for n in ("served_provider", "served_model", "finish_reason", "generation_id", "cost_usd")
    ]
    assert found == ["Alpha", "m-served", "stop", "gen-1", 0.25]


def test_a_second_build_sends_nothing_and_writes_the_same_bytes(tmp_path, monkeypatch):
    prompts = _prompts(tmp_path / "d.parquet", *[[f"q{n}", "more"] for n in range(20)])
    one, two = tmp_path / "one/d.parquet", tmp_path / "two/d.parquet"
    monkeypatch.setenv("CANARY_KEY", _CANARY)
    _run(prompts, one, _World(), key_env="CANARY_KEY")
    monkeypatch.delenv("CANARY_KEY")
    silent = _World()
    summary = _run(prompts, two, silent, key_env="CANARY_KEY", base_url=None)
    assert silent.bodies == []
    assert "0 requests sent" in summary
    assert one.read_bytes() == two.read_bytes()


def test_other_orders_of_arrival_and_failures_on_the_way_leave_no_trace(tmp_path, monkeypatch):
    conversations = [[f"q{n}"] for n in range(8)]
    prompts = _prompts(tmp_path / "d.parquet", *conversations)
    one, two = tmp_path / "one/d.parquet", tmp_path / "two/d.parquet"
    _run(prompts, one, _World())
    monkeypatch.setenv("EXACTOK_STORE", str(tmp_path / "other.sqlite"))
    failed = set()

    async def bumpy(request):
        text = json.loads(request.content)["messages"][-1]["content"]
        await asyncio.sleep(0.002 * (8 - int(text[1:])))
        if text not in failed:
            failed.add(text)
            return httpx.Response(503, text="<html>")
        return _World().handle(request)

    world = _World()
    world.handle = bumpy
    _run(prompts, two, world)
    assert len(failed) == 8
    assert one.read_bytes() == two.read_bytes()


def test_only_new_and_changed_requests_are_sent(tmp_path):
    out = tmp_path / "out/d.parquet"
    _run(_prompts(tmp_path / "d.parquet", ["a"], ["b"]), out, _World())
    more, world = _prompts(tmp_path / "d.parquet", ["b"], ["new"], ["a"]), _World()
    _run(more, out, world)
    assert world.asked == ["new"]
    assert [json.loads(row["request"])["messages"][0]["content"] for row in _rows(out)] == ["b", "new", "a"]
    hot, cool = _settings({"max_tokens": 50, "temperature": 1.0}), _World()
    _run(more, out, cool, hot)
    assert cool.asked == ["a", "b", "new"]
    back = _World()
    _run(more, out, back)
    assert back.asked == []


def test_requests_that_prompts_share_are_bought_once(tmp_path):
    prompts, world = _prompts(tmp_path / "d.parquet", ["same", "x"], ["same", "y"], ["same"]), _World()
    _run(prompts, tmp_path / "out/d.parquet", world)
    assert world.asked == ["same", "x", "y"]


def test_missing_answers_fail_the_stage_and_the_next_run_asks_for_those_alone(tmp_path):
    prompts, out = _prompts(tmp_path / "d.parquet", ["a"], ["b"], ["c", "d"]), tmp_path / "out/d.parquet"
    broken = _World(b=httpx.Response(500, text="<html>"), c=httpx.Response(500, text="<html>"))
    with pytest.raises(GenerationError, match="2 requests have no answer") as caught:
        _run(prompts, out, broken)
    assert "run again" in str(caught.value)
    assert not out.exists()
    assert broken.asked == ["a", "b", "b", "c", "c"]
    mended = _World()
    _run(prompts, out, mended)
    assert mended.asked == ["b", "c", "d"]
    assert [row["failure"] for row in _rows(out)] == [None] * 4


def test_accept_missing_turns_leftovers_into_failures_the_same_every_time(tmp_path):
    prompts = _prompts(tmp_path / "d.parquet", ["a"], ["b", "c"])
    outs = [tmp_path / f"{n}/d.parquet" for n in range(2)]
    for n, out in enumerate(outs):
        world = _World(b=httpx.Response(502 + n, text=f"<html>{n}"))
        assert "1 answers, 2 failures" in _run(prompts, out, world, _settings(accept_missing=True))
    rows = _rows(outs[0])
    assert [row["failure"] for row in rows] == [None, "missing", "previous_turn_failed"]
    assert rows[1]["request"] is not None
    assert (rows[1]["body"], rows[1]["headers"], rows[1]["status"]) == ("", "{}", None)
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_a_refused_request_is_a_row_with_its_reason_and_is_not_asked_again(tmp_path):
    prompts, out = _prompts(tmp_path / "d.parquet", ["long", "more"], ["a"]), tmp_path / "out/d.parquet"
    error = {"code": 400, "message": "too long", "metadata": {"error_type": "context_length_exceeded"}}
    world = _World(long=httpx.Response(400, json={"error": error}))
    _run(prompts, out, world)
    rows = _rows(out)
    assert [row["failure"] for row in rows] == ["fatal_row", "previous_turn_failed", None]
    assert rows[0]["failure_detail"] == "fatal_row: too long"
    assert json.loads(rows[0]["body"]) == {"error": error}
    assert rows[1]["request"] is None
    again = _World()
    _run(prompts, out, again)
    assert again.bodies == []


def test_conversations_end_where_nobody_could_go_on(tmp_path):
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    prompts = _prompts(tmp_path / "d.parquet", ["cut", "x", "y"], ["call", "z"], tools=tools)
    cut = httpx.Response(200, json=completion(finish_reason="length"))
    called = httpx.Response(200, json=completion("", finish_reason="tool_calls", tool_calls=[call]))
    out = tmp_path / "out/d.parquet"
    world = _World(cut=cut, call=called)
    _run(prompts, out, world)
    assert [row["failure"] for row in _rows(out)] == [
        None,
        "previous_turn_cut",
        "previous_turn_cut",
        None,
        "previous_turn_calls_tools",
    ]
    assert all(body["tools"] == tools for body in world.bodies)


def test_a_reroute_leaves_the_logical_request_in_the_row(tmp_path):
    prompts, out = _prompts(tmp_path / "d.parquet", ["a"]), tmp_path / "out/d.parquet"
    lost = httpx.Response(200, json=completion(finish_reason="tool_calls"))

    def answer(request):
        ignored = json.loads(request.content).get("provider", {}).get("ignore", [])
        return httpx.Response(200, json={**completion(), "provider": "Beta"}) if "Alpha" in ignored else lost

    _run(prompts, out, _World(a=answer))
    (row,) = _rows(out)
    assert row["served_provider"] == "Beta"
    assert "provider" not in json.loads(row["request"])


def test_a_wrong_key_stops_at_once_and_keeps_everything(tmp_path, monkeypatch, store_file):
    monkeypatch.setenv("CANARY_KEY", _CANARY)
    prompts = _prompts(tmp_path / "d.parquet", *[[f"q{n}"] for n in range(200)])
    out = tmp_path / "out/d.parquet"

    def echo(request):
        text = f"no such key {request.headers['authorization']}"
        return httpx.Response(401, json={"error": {"code": 401, "message": text}})

    world = _World(q20=echo)
    with pytest.raises(GenerationError, match="no such key") as caught:
        _run(prompts, out, world, key_env="CANARY_KEY")
    assert "\n" not in str(caught.value)
    assert len(world.bodies) < 100  # those before it, and what was in flight or about to start
    assert not out.exists()
    _assert_no_key(tmp_path, caught)
    before, rest = set(world.asked) - {"q20"}, _World()
    _run(prompts, out, rest, key_env="CANARY_KEY")
    assert set(rest.asked) == {f"q{n}" for n in range(200)} - before
    _assert_no_key(tmp_path, caught)


def _assert_no_key(folder, caught):
    assert _CANARY not in repr(caught.getrepr(style="long", showlocals=False))
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) >= 2
    for path in files:
        assert _CANARY.encode() not in path.read_bytes(), path
    for path in files:
        if path.suffix == ".sqlite":
            for line in sqlite3.connect(path).iterdump():
                assert _CANARY not in line
                assert _CANARY.encode().hex() not in line.lower()


def test_a_missing_key_or_address_is_said_before_anything_is_sent(tmp_path, monkeypatch):
    monkeypatch.delenv("CANARY_KEY", raising=False)
    prompts, out, world = _prompts(tmp_path / "d.parquet", ["a"]), tmp_path / "out/d.parquet", _World()
    with pytest.raises(ConfigError, match="CANARY_KEY is not set"):
        _run(prompts, out, world, key_env="CANARY_KEY")
    with pytest.raises(ConfigError, match=r"transport\.base_url"):
        _run(prompts, out, world, base_url=None)
    assert world.bodies == []


def test_settings_that_falsify_rows_stop_the_stage(tmp_path):
    prompts, world = _prompts(tmp_path / "d.parquet", ["a"]), _World()
    with pytest.raises(ConfigError, match=r"api\.body\.n"):
        _run(prompts, tmp_path / "out/d.parquet", world, _settings(body={"n": 3}))
    assert world.bodies == []


def test_prompts_that_would_give_the_same_row_ids_are_refused(tmp_path):
    prompts = _prompts(tmp_path / "d.parquet", ["a"], ["b"])
    table = pq.read_table(prompts)
    pq.write_table(pa.concat_tables([table, table]), prompts)
    with pytest.raises(StageError, match="twice"):
        _run(prompts, tmp_path / "out/d.parquet", _World())
    with pytest.raises(StageError, match="missing"):
        _run(tmp_path / "none.parquet", tmp_path / "out/d.parquet", _World())


def test_no_prompts_give_an_empty_table(tmp_path):
    out = tmp_path / "out/d.parquet"
    _run(_prompts(tmp_path / "d.parquet"), out, _World())
    assert pq.read_table(out).num_rows == 0
    assert "request_key" in pq.read_schema(out).names


def _start(server, prompts, out, concurrency=4):
    command = [sys.executable, str(_SCRIPT), server.url, str(prompts), str(out), str(concurrency)]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def _kept(store_file):
    """Requests whose answer is on disk, settled or not."""
    with sqlite3.connect(store_file) as db:
        return {key for (key,) in db.execute("SELECT key FROM attempts WHERE ended IS NOT NULL")}


def test_a_killed_run_loses_nothing_and_the_next_asks_only_for_the_rest(tmp_path, store_file):
    prompts = _prompts(tmp_path / "d.parquet", *[[f"q{n}"] for n in range(40)])
    out, killing = tmp_path / "out/d.parquet", []

    async def answer(body, number):
        if len(server.asked) == 20 and killing:
            os.kill(killing.pop().pid, signal.SIGKILL)
        await asyncio.sleep(0.02)
        return web.json_response(completion(f"answer to {body['messages'][-1]['content']}"))

    with loopback(answer) as server:
        killing.append(child := _start(server, prompts, out))
        assert child.wait(60) == -signal.SIGKILL
        child.communicate()
        asked, kept = len(server.asked), len(_kept(store_file))
        assert not out.exists()
        assert 20 - 2 * 4 <= kept < 40  # each of 4 slots: one on the wire, one on its way to the disk
        child = _start(server, prompts, out)
        _, complaints = child.communicate(timeout=60)
        assert child.returncode == 0, complaints
        assert len(server.asked) - asked == 40 - kept
        assert len(server.times) == 40
        assert sum(times - 1 for times in server.times.values()) == asked - kept <= 2 * 4
    assert [row["failure"] for row in _rows(out)] == [None] * 40


def test_two_runs_at_once_send_each_request_once(tmp_path):
    prompts = _prompts(tmp_path / "d.parquet", *[[f"q{n}", "more"] for n in range(30)])
    outs = [tmp_path / "one/d.parquet", tmp_path / "two/d.parquet"]

    async def answer(body, number):
        await asyncio.sleep(0.02)
        return web.json_response(completion(f"answer to {body['messages'][0]['content']}"))

    with loopback(answer) as server:
        children = [_start(server, prompts, out) for out in outs]
        results = [(child.communicate(timeout=120), child.returncode) for child in children]
    assert [code for _, code in results] == [0, 0], results
    assert set(server.times.values()) == {1}
    assert len(server.times) == 60
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_an_interrupt_waits_for_what_is_in_flight_and_keeps_it(tmp_path, store_file):
    prompts = _prompts(tmp_path / "d.parquet", *[[f"q{n}"] for n in range(30)])
    out, children = tmp_path / "out/d.parquet", []

    async def answer(body, number):
        if len(server.asked) == 10 and children:
            os.kill(children.pop().pid, signal.SIGINT)
        await asyncio.sleep(0.2)
        return web.json_response(completion())

    with loopback(answer) as server:
        children.append(child := _start(server, prompts, out))
        _, complaints = child.communicate(timeout=60)
        assert child.returncode == 1
        assert complaints.strip().splitlines()[-1].startswith("interrupted")
        assert len(_kept(store_file)) == len(server.asked) < 30


def test_failing_rows_exit_with_an_error_in_one_line(tmp_path):
    prompts, out = _prompts(tmp_path / "d.parquet", ["a"], ["b"]), tmp_path / "out/d.parquet"

    async def answer(body, number):
        return failure(500) if body["messages"][-1]["content"] == "b" else web.json_response(completion())

    with loopback(answer) as server:
        child = _start(server, prompts, out)
        _, complaints = child.communicate(timeout=60)
    assert child.returncode == 1
    assert complaints.count("\n") == 1
    assert "1 requests have no answer" in complaints


def test_the_simulator_is_started_only_to_send_and_keeps_to_a_store_of_its_own(tmp_path, store_file):
    prompts = _prompts(tmp_path / "d.parquet", ["Say one word."], ["Say another."])
    simulator = SimulatorSettings(profile="plain", seed=1, code="c")
    settings = _settings(identity="simulator", simulator=simulator)
    outs = [tmp_path / f"{n}/d.parquet" for n in range(2)]
    sent = [
        generate.run(prompts, settings, Transport(), Runtime(concurrency=2), out).rsplit("; ", 1)[1]
        for out in outs
    ]
    assert sent[0].startswith("2 requests sent")
    assert sent[1].startswith("0 requests sent")
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert not store_file.exists()
    assert store_file.with_name("store.simulator.sqlite").exists()
    other = _settings(identity="simulator", simulator=simulator.model_copy(update={"seed": 2}))
    assert "2 requests sent" in generate.run(prompts, other, Transport(), Runtime(concurrency=2), outs[0])


def test_an_unexpected_error_stops_the_run_and_is_not_swallowed(tmp_path):
    prompts = _prompts(tmp_path / "d.parquet", *[[f"q{n}"] for n in range(20)])

    def bug(request):
        raise ZeroDivisionError("a bug")

    world = _World(q5=bug)
    with pytest.raises(ZeroDivisionError) as caught:
        _run(prompts, tmp_path / "out/d.parquet", world)
    assert not isinstance(caught.value, ExactokError)
    rest = _World()
    _run(prompts, tmp_path / "out/d.parquet", rest)
    assert set(rest.asked) == {f"q{n}" for n in range(20)} - (set(world.asked) - {"q5"})
