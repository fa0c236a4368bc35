import asyncio
import json

import httpx
import pytest

from pipeline.config import Transport
from pipeline.core.turns import Asked, Response
from pipeline.io import reconcile as module
from pipeline.io.client import Client
from pipeline.io.reconcile import reconcile
from pipeline.io.store import Outcome, Store

_COSTS = {"gen-1": 0.125, "gen-2": "free", "gen-3": None}


def _answer(request):
    wanted = request.url.params["id"]
    if wanted not in _COSTS:
        return httpx.Response(404, json={"error": {"code": 404}})
    return httpx.Response(200, json={"data": {"id": wanted, "total_cost": _COSTS[wanted]}})


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store.sqlite") as opened:
        for number in range(1, 5):
            asked = Asked(f"k{number}", "here", "/chat/completions", {}, "{}")
            n = opened.start(asked, bound_usd=0.5).result().n
            unknown = Outcome("retry", "cut", f"gen-{number}", None, "unknown")
            opened.finish(asked, n, Response(502, {}, b"<html>"), None, unknown).result()
        yield opened


def _reconcile(store, **settings):
    async def ask():
        transport = Transport(**settings)
        async with Client("http://x/v1", transport, http=httpx.MockTransport(_answer)) as client:
            return await reconcile(store, "here", transport, client)

    return asyncio.run(ask())


def test_costs_that_the_endpoint_tells_are_booked_and_nothing_else_is(store, monkeypatch):
    monkeypatch.setattr(module, "_WAIT_S", 0.0)
    ((unpriced, cost),) = _reconcile(store, generation_path="/generation")
    assert (unpriced.key, unpriced.bound_usd, cost) == ("k1", 0.5, 0.125)
    (attempt,) = store.attempts("k1")
    assert (attempt.cost_usd, attempt.cost_source) == (0.125, "generation")
    assert [one.key for one in store.unpriced("here")] == ["k2", "k3", "k4"]


def test_an_endpoint_without_such_a_path_is_not_asked(store):
    assert _reconcile(store) == []


def test_an_endpoint_that_does_not_know_yet_is_asked_again(store, monkeypatch):
    monkeypatch.setattr(module, "_WAIT_S", 0.0)
    asked = []

    def late(request):
        asked.append(request.url.params["id"])
        if asked.count("gen-1") < 3:
            return httpx.Response(404, json={})
        return httpx.Response(200, text=json.dumps({"data": {"total_cost": 1}}))

    monkeypatch.setattr(f"{__name__}._answer", late)
    told = _reconcile(store, generation_path="/generation")
    assert ("k1", 1.0) in [(unpriced.key, cost) for unpriced, cost in told]
    assert asked.count("gen-1") == 3
