"""Every case of provider_responses.jsonl over real HTTP, scripts too: what comes of it, and what is kept."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from pipeline.config import Api, GenerateSettings, Price, Runtime, Sampling, Transport
from pipeline.core.classify import classify
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.judge import Exchange, judge_batch
from pipeline.core.render import render_ids
from pipeline.errors import GenerationError
from pipeline.io.client import Client
from pipeline.records import Action
from pipeline.schemas import PROMPTS
from pipeline.stages import generate
from tests.chaos.faults import CASES, REFUSED_SETTING, of_case
from tests.chaos.server import play
from tests.io.loopback import completion, here, loopback

_PRICE = Price(prompt=1.0, completion=3.0)
_USABLE = {"ok", "repair"}
# What only a tokenizer can tell is still ok or repair when the exchange is recorded.
_TOLD_LATER = {"ok", "repair", "ambiguous", "reroute"}
_every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@pytest.fixture(scope="module")
def grammar(kimi, kimi_target):
    return CompiledGrammar(kimi_target.grammar, kimi.special)


def _transport(case, url=None, **settings):
    """The case's own client settings; a read timeout has no place here, the deadline is the limit."""
    deadline_s = case.get("client", {}).get("attempt_deadline_s", 20.0)
    return Transport(base_url=url, deadline_s=deadline_s, price=_PRICE, **settings)


def _allowed(case):
    return {case["expect"]["action"], *case["expect"].get("also_ok", [])}


async def _play(case):
    return await play(here.get(), of_case(case))


@_every_case
def test_an_exchange_over_http_leads_to_the_given_decision(case, kimi, kimi_target, grammar):
    async def answer(body, number):
        return await _play(case)

    async def post(url):
        async with Client(url, _transport(case)) as client:
            return await client.post("/chat/completions", json.dumps(case["request"]))

    expect, request, begun = case["expect"], case["request"], time.monotonic()
    with loopback(answer) as server:
        exchange = asyncio.run(post(server.url))
    assert time.monotonic() - begun < expect.get("within_s", 10.0)
    assert [server.asked, exchange.never_sent] == [[request], False]
    response = exchange.response
    assert response.status == case["http"]["status"]
    assert case["http"]["headers"].items() <= dict(response.headers).items()
    if "body" in case["http"]:
        assert (response.body, exchange.problem) == (case["http"]["body"].encode(), None)
    else:
        assert exchange.problem is not None
    verdict = classify(response.status, response.headers, response.body, request, datetime.now(UTC))
    if "retry_after_s" in expect:
        assert verdict.retry_after_s == expect["retry_after_s"]
    if verdict.body is None or not verdict.action.usable:
        assert verdict.action in _allowed(case)
        return
    rendered = render_ids(request, kimi_target.render, kimi)
    (judged,) = judge_batch([Exchange(verdict.body, request, rendered, verdict)], kimi, grammar)
    assert judged.action in _allowed(case)
    if judged.action.usable:
        assert list(judged.completion_ids) == expect["completion_ids"]
        assert judged.result.ending == expect["ending"]
    else:
        assert judged.completion_ids is None


# --- through the stage: what the store and the row hold -----------------------------------------------


def _prompts(path, request):
    row = {
        "prompt_id": "p",
        "position": 0,
        "messages": json.dumps(request["messages"]),
        "following_turns": "[]",
        "tools": json.dumps(request["tools"]) if request.get("tools") else None,
        "source_id": None,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([row], schema=PROMPTS), path)
    return path


def _settings(request, **api):
    reasoning = {name for message in request["messages"] for name in message if name.startswith("reasoning")}
    ours = ("model", "messages", "tools", "max_tokens", "stream")
    return GenerateSettings(
        provider="loopback",
        model=request["model"],
        api=Api(
            identity="loopback",
            body={name: value for name, value in request.items() if name not in ours},
            history_reasoning=next(iter(reasoning), "reasoning_content"),
            **api,
        ),
        sampling=Sampling(max_tokens=request["max_tokens"]),
    )


class _Run:
    """One request through the stage with one attempt; what would be asked after it gets a good answer."""

    def __init__(self, case, folder, *, accept_missing=True):
        self.waits = []
        self.out, self.store = folder / "out/d.parquet", folder / "store.sqlite"

        async def answer(body, number):
            if len(server.asked) == 1:
                return await _play(case)
            return await play(here.get(), _GOOD)

        async def sleep(seconds):
            self.waits.append(seconds)

        with loopback(answer) as server:
            self.error = None
            try:
                generate.run(
                    _prompts(folder / "d.parquet", case["request"]),
                    _settings(case["request"], accept_missing=accept_missing),
                    _transport(case, server.url, max_attempts=1),
                    Runtime(concurrency=4),
                    self.out,
                    sleep=sleep,
                )
            except GenerationError as error:
                self.error = error
        self.asked = server.asked

    @property
    def row(self):
        (row,) = pq.read_table(self.out).to_pylist()
        return row

    def attempts(self):
        """As they stand in the file."""
        with closing(sqlite3.connect(self.store)) as db:
            db.row_factory = lambda _, row: SimpleNamespace(
                **dict(zip(("outcome", "cost_usd", "cost_source", "avoided"), row, strict=True))
            )
            return db.execute(
                "SELECT outcome, cost_usd, cost_source, avoided FROM attempts ORDER BY n"
            ).fetchall()


_GOOD = of_case(
    {
        "http": {
            "status": 200,
            "headers": {"content-type": "application/json"},
            "body": json.dumps(completion()),
        }
    }
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("EXACTOK_STORE", str(tmp_path / "store.sqlite"))

    def one(case, **options):
        return _Run(case, tmp_path, **options)

    return one


@pytest.mark.parametrize(
    "case", [case for name, case in CASES.items() if name != REFUSED_SETTING], ids=lambda case: case["id"]
)
def test_what_is_recorded_is_what_the_case_says(case, run):
    done, expect, allowed = run(case), case["expect"], _allowed(case)
    first, *later = done.attempts()
    assert _logical(done.asked[0]) == _logical(case["request"])
    if first.outcome in _USABLE:
        assert allowed & _TOLD_LATER
    else:
        assert first.outcome in allowed
    assert (first.cost_usd, first.cost_source) in _costs(case)
    if first.outcome == "reroute":
        assert [attempt.avoided for attempt in later] == [_refuser(case)]
        assert done.asked[1]["provider"]["ignore"] == [_refuser(case)]
    elif first.outcome == "retry" and "not_an_attempt" in expect["flags"]:
        assert len(later) == 1
        assert done.waits[0] >= expect["retry_after_s"]
    elif case["http"]["status"] == 429:  # a push-back says nothing of the request: it need not count
        assert len(later) <= 1
    else:
        assert later == []
    _check_end(case, first, done, settled_later=bool(later))


def _check_end(case, first, done, *, settled_later):
    """The row, or the one line on which the run stopped."""
    if first.outcome == "fatal_run":
        assert isinstance(done.error, GenerationError)
        assert "\n" not in str(done.error)
        assert not done.out.exists()
        return
    assert done.error is None
    row = done.row
    if settled_later:
        assert json.loads(row["body"]) == completion()
        if case["request"].get("tool_choice") != "required":  # that good answer calls nothing
            assert row["failure"] is None
    elif first.outcome in _USABLE:
        assert (row["failure"], row["body"]) == (None, case["http"]["body"])
        assert row["generation_id"] == case["http"]["headers"]["x-generation-id"]
    elif first.outcome == "retry" or case["http"]["status"] == 402:
        assert (row["failure"], row["body"]) == ("missing", "")
    else:
        assert row["failure"] not in (None, "missing")
        assert row["body"] == case["http"]["body"]


def _logical(request):
    return {name: value for name, value in request.items() if name != "stream"}


def _refuser(case):
    body = json.loads(case["http"]["body"])
    return case["expect"].get("avoid_provider") or body["provider"]


def _costs(case):
    """What may be booked: as the case says; where it says nothing, as its answer says."""
    expect = case["expect"]
    unknown, nothing = (None, "unknown"), (0.0, "none")
    if "cost" in expect:
        special = {"unknown": unknown, 0: nothing}
        return [special.get(expect["cost"]) or (expect["cost"], expect["cost_source"])]
    usage = _usage(case["http"].get("body", ""))
    if usage is None:
        return [unknown, nothing]
    if usage.get("cost") is not None:
        return [(usage["cost"], "usage")]
    assert expect["cost_source"] == "estimated"
    tokens = usage["prompt_tokens"] * _PRICE.prompt + usage["completion_tokens"] * _PRICE.completion
    return [(pytest.approx(tokens / 1_000_000), "estimated")]


def _usage(body):
    """The usage that the text of an answer, or of a stream, states."""
    texts = [line.removeprefix("data:") for line in body.splitlines() if line.startswith("data: {")]
    for text in [*texts, body]:
        start = text.find("{")
        if start < 0:
            continue
        try:
            found = json.JSONDecoder().raw_decode(text[start:])[0]
        except ValueError:
            continue
        if isinstance(found.get("usage"), dict):
            return found["usage"]
    return None


def test_a_stop_string_is_refused_before_anything_is_sent(run):
    with pytest.raises(ValidationError, match="remove `stop`"):
        run(CASES[REFUSED_SETTING])


def test_without_accept_missing_a_passing_fault_fails_the_stage_in_one_line(run):
    done = run(CASES["A4"], accept_missing=False)
    assert isinstance(done.error, GenerationError)
    assert "1 requests have no answer" in str(done.error)
    assert "\n" not in str(done.error)
    assert Action(done.attempts()[0].outcome) is Action.RETRY
