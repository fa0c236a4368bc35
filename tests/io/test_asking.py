import asyncio
import json

import httpx
import pytest

from pipeline.config import Price, Transport
from pipeline.core.turns import Asked, Response
from pipeline.errors import GenerationError
from pipeline.io.asking import Asker, Stopped
from pipeline.io.client import Client
from pipeline.io.store import Store
from tests.io.loopback import completion

_ASKED = Asked("k", "here", "/chat/completions", {"model": "m", "messages": [], "max_tokens": 5})
_CANARY = "sk-canary-0123456789"


class _World:
    """Answers from a list, and a clock that never makes anyone wait."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.bodies = []
        self.waits = []

    def handle(self, request):
        self.bodies.append(json.loads(request.content))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def sleep(self, seconds):
        self.waits.append(seconds)


def _ask(store, world, asked=_ASKED, times=1, **settings):
    """The results of asking, and the asker."""
    money = settings.pop("max_cost_usd", None)
    transport = Transport(**settings)

    async def ask():
        async with Client(
            "http://x", transport, key=_CANARY, http=httpx.MockTransport(world.handle)
        ) as client:

            async def connect():
                return client

            asker = Asker(
                *(store, transport, 4, connect),
                max_cost_usd=money,
                sleep=world.sleep,
                jitter=lambda low, high: 0.25,
            )
            return [await asker.ask(asked) for _ in range(times)], asker

    return asyncio.run(ask())


def _good(**changes):
    return httpx.Response(200, json=completion(**changes), headers={"x-generation-id": "gen-9"})


def _bad(status, message="no", headers=None, **error):
    return httpx.Response(
        status, json={"error": {"code": status, "message": message, **error}}, headers=headers
    )


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store.sqlite") as opened:
        yield opened


def test_an_answer_is_bought_once(store):
    world = _World(_good())
    (one, two), asker = _ask(store, world, times=2)
    assert one == two == store.get("k")
    assert json.loads(one.body) == completion()
    assert one.headers["x-generation-id"] == "gen-9"
    assert (asker.sent, asker.cost_usd, asker.missing) == (1, 0.25, {})
    assert world.bodies == [dict(_ASKED.body)]


def test_retry_after_is_waited_for_and_every_attempt_is_recorded(store):
    world = _World(_bad(429, headers={"Retry-After": "7"}), httpx.ReadError("gone"), _good())
    (answer,), asker = _ask(store, world)
    assert answer is not None
    assert world.waits == [7.25, 0.25]
    assert asker.sent == 3
    attempts = store.attempts("k")
    assert [attempt.outcome for attempt in attempts] == ["retry", "retry", "ok"]
    assert attempts[0].response.status == 429
    assert attempts[1].problem == "ReadError: gone"
    assert [attempt.cost_source for attempt in attempts] == ["none", "unknown", "usage"]


def test_an_answer_that_is_an_error_in_a_200_is_no_answer(store):
    error = {"error": {"code": 502, "message": "Provider returned error"}}
    world = _World(httpx.Response(200, json=error), httpx.Response(200, text=" \n \n"), _good())
    (answer,), _ = _ask(store, world)
    assert json.loads(answer.body) == completion()


def test_attempts_end_and_a_later_run_asks_again(store):
    world = _World(*[_bad(500, f"try {n}") for n in range(3)])
    (nothing, again), asker = _ask(store, world, times=2, max_attempts=3)
    assert (nothing, again) == (None, None)
    assert asker.missing == {"k": "try 2"}
    assert asker.sent == 3
    (answer,), asker = _ask(store, _World(_good()), max_attempts=3)
    assert answer is not None
    assert [attempt.n for attempt in store.attempts("k")] == [1, 2, 3, 4]


def test_a_request_that_gives_no_row_is_final(store):
    refused = _bad(400, metadata={"error_type": "context_length_exceeded"})
    (one, two), asker = _ask(store, _World(refused), times=2)
    assert one.status == two.status == 400
    assert (asker.sent, asker.missing) == (1, {})


def test_a_reroute_hangs_under_the_same_request(store):
    lost = completion(finish_reason="tool_calls")
    world = _World(httpx.Response(200, json=lost), _good())
    (answer,), asker = _ask(store, world)
    assert json.loads(answer.body) == completion()
    assert world.bodies[1] == {**_ASKED.body, "provider": {"ignore": ["Alpha"]}}
    assert (world.waits, asker.cost_usd) == ([], 0.5)
    one, two = store.attempts("k")
    assert (one.avoided, two.avoided) == (None, "Alpha")
    assert json.loads(one.response.body) == lost


def test_when_nobody_else_serves_the_first_answer_stands(store):
    lost = completion(finish_reason="tool_calls")
    world = _World(httpx.Response(200, json=lost), _bad(404, "No endpoints found"))
    (answer, again), asker = _ask(store, world, times=2)
    assert json.loads(answer.body) == lost
    assert again == answer
    assert asker.stop_reason is None


def test_a_wrong_key_stops_the_run(store, tmp_path):
    def echo(request):
        return httpx.Response(401, json={"error": {"code": 401, "message": request.headers["authorization"]}})

    world = _World()
    world.handle = echo
    with pytest.raises(Stopped):
        _ask(store, world)
    attempts = store.attempts("k")
    assert [attempt.outcome for attempt in attempts] == ["fatal_run"]
    assert _CANARY not in repr(attempts)
    store.close()
    for path in tmp_path.iterdir():
        assert _CANARY.encode() not in path.read_bytes()


def test_what_an_interrupted_run_received_is_judged_and_not_bought_again(store):
    store.claim("k").result()
    n = store.begin_attempt("k").result()
    received = Response(200, {"x-generation-id": "gen-9"}, json.dumps(completion()).encode())
    store.record_response("k", n, received).result()
    store.release("k").result()
    (answer,), asker = _ask(store, _World())
    assert answer == received
    assert asker.sent == 0
    (attempt,) = store.attempts("k")
    assert (attempt.outcome, attempt.cost_usd) == ("ok", 0.25)


def test_a_run_that_died_after_a_bad_answer_goes_on_past_that_provider(store):
    lost = completion(finish_reason="tool_calls")
    store.claim("k").result()
    n = store.begin_attempt("k").result()
    store.record_response("k", n, Response(200, {}, json.dumps(lost).encode())).result()
    store.release("k").result()
    world = _World(_good())
    _ask(store, world)
    assert world.bodies[0]["provider"] == {"ignore": ["Alpha"]}


def test_one_who_asks_waits_for_another_and_takes_its_answer(store, tmp_path):
    with Store(tmp_path / "store.sqlite") as other:
        other.claim("k").result()
        n = other.begin_attempt("k").result()
        world = _World()

        async def sleep(seconds):
            world.waits.append(seconds)
            if len(world.waits) == 3:
                other.record_response("k", n, Response(200, {}, json.dumps(completion()).encode())).result()
                other.record_outcome("k", n, "ok", "complete", None, 0.25, "usage").result()
                other.put(_ASKED, n).result()

        world.sleep = sleep
        (answer,), asker = _ask(store, world)
    assert json.loads(answer.body) == completion()
    assert (asker.sent, len(world.waits)) == (0, 3)


def test_a_price_stands_in_where_no_cost_is_reported(store):
    body = completion()
    del body["usage"]["cost"]
    world = _World(httpx.Response(200, json=body))
    _, asker = _ask(store, world, price=Price(prompt=1.0, completion=2.0))
    assert asker.cost_usd == pytest.approx((5 * 1.0 + 4 * 2.0) / 1e6)
    assert store.attempts("k")[0].cost_source == "estimated"


def test_a_limit_that_is_reached_already_sends_nothing(store):
    with pytest.raises(Stopped):
        _ask(store, _World(_good()), max_cost_usd=0.0)
    assert store.attempts("k") == []


def test_reaching_the_limit_stops_and_keeps_what_came(store):
    async def ask():
        world, transport = _World(_good(), _good()), Transport()
        async with Client("http://x", transport, http=httpx.MockTransport(world.handle)) as client:

            async def connect():
                return client

            asker = Asker(store, transport, 1, connect, max_cost_usd=0.2)
            assert await asker.ask(_ASKED) is not None
            with pytest.raises(Stopped):
                await asker.ask(Asked("other", "here", "/chat/completions", {}))
            return asker

    asker = asyncio.run(ask())
    assert isinstance(asker.stop_reason, GenerationError)
    assert "max_cost_usd" in str(asker.stop_reason)
    assert asker.sent == 1
    assert store.get("k") is not None


def test_a_stop_wakes_those_that_wait(store):
    async def ask():
        world, transport = _World(_bad(429, headers={"Retry-After": "500"})), Transport()
        async with Client("http://x", transport, http=httpx.MockTransport(world.handle)) as client:

            async def connect():
                return client

            asleep = asyncio.Event()

            async def sleep(seconds):
                asleep.set()
                await asyncio.Event().wait()

            asker = Asker(store, transport, 1, connect, sleep=sleep)
            waiting = asyncio.create_task(asker.ask(_ASKED))
            await asleep.wait()
            asker.stop(GenerationError("enough"))
            with pytest.raises(Stopped):
                await waiting

    asyncio.run(ask())
    assert store.claim("k").result() == "won"
