"""More at once than the profile allows: refused at once, counted, and forgotten."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, web

from pipeline.simulator import profile as profiles
from pipeline.simulator.native import generate
from pipeline.simulator.profile import load_profile
from pipeline.simulator.request import read_request
from pipeline.simulator.server import make_app
from pipeline.simulator.texts import load_corpus
from tests.simulator.conftest import question

_LATENCY_S = 1.0


@pytest.fixture
def limited(tmp_path, monkeypatch):
    """A new profile with these faults; its name."""

    def write(name, **faults):
        given = ", ".join(f"{key}: {value}" for key, value in faults.items())
        text = f"about: x\nlatency_s: {_LATENCY_S}\nfaults: {{{given}}}\nproviders: [{{name: P}}]\n"
        (tmp_path / f"{name}.yaml").write_text(text)
        monkeypatch.setattr(profiles, "FOLDER", tmp_path)
        return name

    return write


@asynccontextmanager
async def _client(name):
    """As `python -m pipeline.simulator` serves it, but in this process."""
    runner = web.AppRunner(make_app(name))
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
            yield client
    finally:
        await runner.cleanup()


async def _serve(name, bodies, then=()):
    """Every answer to `bodies`, asked at once, then to `then`, one by one; and /stats."""
    async with _client(name) as client:

        async def ask(body):
            begun = time.monotonic()
            async with client.post("/chat/completions", json=body) as response:
                text = await response.text()
                return response.status, response.headers, text, time.monotonic() - begun

        answers = await asyncio.gather(*map(ask, bodies))
        answers += [await ask(body) for body in then]
        async with client.get("/stats") as response:
            return answers, await response.json()


def _hold(body, name):
    profile = load_profile(name)
    prompt = len(generate(read_request(body), profile, 0, load_corpus()).prompt)
    return (prompt * profile.price.prompt + body["max_tokens"] * profile.price.completion) / 1e6


@pytest.mark.parametrize("stream", [False, True])
def test_the_surplus_gets_429_at_once(limited, stream):
    name = limited(f"few_{stream}", most_in_flight=5, retry_after_s=3)
    bodies = [question(n, stream=stream) for n in range(12)]
    answers, stats = asyncio.run(_serve(name, bodies, then=bodies[:2]))
    refused = [answer for answer in answers[:12] if answer[0] == 429]
    assert [status for status, *_ in answers].count(200) == 5 + 2
    assert len(refused) == 7
    for _, headers, text, took in refused:
        assert headers["Retry-After"] == "3"
        assert "X-Generation-Id" not in headers
        assert '"code": 429' in text
        assert took < _LATENCY_S / 2
    assert all(took > 0.9 * _LATENCY_S / 2 for status, _, _, took in answers if status == 200)
    assert stats["most_in_flight"] == 5
    assert stats["faults"] == {"most_in_flight": 7}
    assert stats["by_status"] == {"200": 7, "429": 7}
    assert stats["billed"] == 7


def test_a_refusal_is_no_attempt(limited):
    """What a request meets next does not depend on how often it was refused."""
    name = limited("one", most_in_flight=1, server_error=1.0, at_most=1)
    body = question(1)
    answers, stats = asyncio.run(_serve(name, [body] * 4, then=[body]))
    assert sorted(status for status, *_ in answers) == [200, 429, 429, 429, 500]
    assert answers[-1][0] == 200
    assert stats["faults"] == {"most_in_flight": 3, "server_error": 1}


def test_holds_beyond_the_budget_get_402(limited):
    bodies = [question(n, max_tokens=1000) for n in range(1, 9)]
    hold = _hold(bodies[0], limited("probe"))
    name = limited("poor", in_flight_budget=3.5 * hold, retry_after_s=2)
    answers, stats = asyncio.run(_serve(name, bodies, then=bodies[-1:]))
    refused = [answer for answer in answers if answer[0] == 402]
    assert [status for status, *_ in answers].count(200) == 3 + 1
    assert len(refused) == 5
    for _, headers, text, took in refused:
        assert headers["Retry-After"] == "2"
        assert '"reason": "in_flight_budget_exhausted"' in text
        assert '"limit_source": "openrouter_in_flight_budget"' in text
        assert took < _LATENCY_S / 2
    assert answers[-1][0] == 200
    assert stats["faults"] == {"in_flight_budget": 5}
    assert stats["most_in_flight"] == 3


def test_a_request_that_never_fits_is_told_not_to_wait(limited):
    name = limited("broke", in_flight_budget=1e-6)
    (answer,), stats = asyncio.run(_serve(name, [question(1)]))
    status, headers, text, _ = answer
    assert status == 402
    assert "Retry-After" not in headers
    assert '"limit_source": "openrouter_credits"' in text
    assert stats["cost"] == 0


def test_without_limits_the_most_in_flight_is_still_told(limited):
    answers, stats = asyncio.run(_serve(limited("free"), [question(n) for n in range(9)]))
    assert {status for status, *_ in answers} == {200}
    assert stats["most_in_flight"] == 9
    assert stats["faults"] == {}


def test_a_client_that_hangs_up_frees_its_place_and_pays(limited):
    name = limited("leaving", most_in_flight=1)

    async def leave():
        async with _client(name) as client:
            response = await client.post("/chat/completions", json=question(1, stream=True))
            attempt = response.headers["X-Generation-Id"]
            await response.content.readany()
            response.close()
            await asyncio.sleep(2 * _LATENCY_S)
            async with client.post("/chat/completions", json=question(2, stream=True)) as again:
                await again.read()
            async with client.get("/generation", params={"id": attempt}) as told:
                return again.status, (await told.json())["data"]

    status, told = asyncio.run(leave())
    assert status == 200
    assert told["cancelled"]
    assert told["total_cost"] > 0


def test_a_stream_begins_before_it_is_done(limited):
    name = limited("slow")

    async def first_and_whole():
        async with _client(name) as client:
            begun = time.monotonic()
            async with client.post("/chat/completions", json=question(1, stream=True)) as response:
                await response.content.readany()
                first = time.monotonic() - begun
                await response.read()
                return first, time.monotonic() - begun

    first, whole = asyncio.run(first_and_whole())
    assert first < whole / 2
    assert whole > 0.9 * _LATENCY_S / 2
