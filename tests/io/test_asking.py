import asyncio
import json

import httpx
import pytest

from pipeline.config import Price, Transport
from pipeline.core.classify import classify
from pipeline.core.money import Account, Ledger
from pipeline.core.turns import Asked, Response
from pipeline.errors import GenerationError
from pipeline.io import asking
from pipeline.io.asking import Asker
from pipeline.io.client import Client
from pipeline.io.line import Line
from pipeline.io.run import Halted, Run, Stopped
from pipeline.io.store import Outcome, Store
from pipeline.records import Action
from tests.io.loopback import completion

_ASKED = Asked.of("here", "/chat/completions", {"model": "m", "messages": [], "max_tokens": 5})
_K = _ASKED.key
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


class _Opened:
    """A client to the world, and the run and asker that use it."""

    def __init__(
        self, store, world, *, at_once=4, limit=None, limits=(), jitter=lambda low, high: 0.25, **settings
    ):
        transport = Transport(**settings)
        self.client = Client("http://x", transport, key=_CANARY, http=httpx.MockTransport(world.handle))
        accounts = {name: Account(most) for name, most in dict(limits).items()}
        self.run = Run(Ledger(Account(limit), accounts), sleep=world.sleep, jitter=jitter)
        self.line = Line(self.run, transport, at_once, self._connect)
        self.asker = Asker(self.run, self.line, store, "d")

    async def _connect(self):
        return self.client


def _ask(store, world, asked=_ASKED, times=1, **settings):
    """The results of asking one after another, and the run."""

    async def ask():
        opened = _Opened(store, world, **settings)
        async with opened.client:
            return [store.get(asked.key) or await opened.asker.ask(asked) for _ in range(times)], opened.run

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
    (one, two), run = _ask(store, world, times=2)
    assert one == two == store.get(_K)
    assert json.loads(one.body) == completion()
    assert one.headers["x-generation-id"] == "gen-9"
    assert (run.tally.sent, run.tally.spent_usd, run.missing) == (1, 0.25, {})
    assert world.bodies == [dict(_ASKED.body)]


def test_retry_after_is_waited_for_and_every_attempt_is_recorded(store):
    world = _World(_bad(429, headers={"Retry-After": "7"}), httpx.ReadError("gone"), _good())
    (answer,), run = _ask(store, world)
    assert answer is not None
    assert world.waits == [7.25, 0.25]
    assert run.tally.sent == 3
    attempts = store.attempts(_K)
    assert [attempt.outcome for attempt in attempts] == ["retry", "retry", "ok"]
    assert attempts[0].response.status == 429
    assert attempts[1].problem == "ReadError: gone"
    assert attempts[1].detail == "ReadError: gone: no answer came"
    assert [attempt.cost_source for attempt in attempts] == ["none", "unknown", "usage"]


def test_an_answer_that_is_an_error_in_a_200_is_no_answer(store):
    error = {"error": {"code": 502, "message": "Provider returned error"}}
    world = _World(httpx.Response(200, json=error), httpx.Response(200, text=" \n \n"), _good())
    (answer,), _ = _ask(store, world)
    assert json.loads(answer.body) == completion()


def test_attempts_end_and_a_later_run_asks_again(store):
    world = _World(*[_bad(500, f"try {n}") for n in range(3)])
    (nothing, again), run = _ask(store, world, times=2, max_attempts=3)
    assert (nothing, again) == (None, None)
    assert run.missing == {_K: "try 2"}
    assert run.tally.sent == 3
    (answer,), run = _ask(store, _World(_good()), max_attempts=3)
    assert answer is not None
    assert [attempt.n for attempt in store.attempts(_K)] == [1, 2, 3, 4]


def test_a_request_that_gives_no_row_is_final(store):
    refused = _bad(400, metadata={"error_type": "context_length_exceeded"})
    (one, two), run = _ask(store, _World(refused), times=2)
    assert one.status == two.status == 400
    assert (run.tally.sent, run.missing) == (1, {})


def test_a_reroute_hangs_under_the_same_request(store):
    lost = completion(finish_reason="tool_calls")
    world = _World(httpx.Response(200, json=lost), _good())
    (answer,), run = _ask(store, world)
    assert json.loads(answer.body) == completion()
    assert world.bodies[1] == {**_ASKED.body, "provider": {"ignore": ["Alpha"]}}
    assert (world.waits, run.tally.spent_usd) == ([], 0.5)
    one, two = store.attempts(_K)
    assert (one.avoided, two.avoided) == (None, "Alpha")
    assert json.loads(one.response.body) == lost


def test_when_nobody_else_serves_the_first_answer_stands(store):
    lost = completion(finish_reason="tool_calls")
    world = _World(httpx.Response(200, json=lost), _bad(404, "No endpoints found"))
    (answer, again), run = _ask(store, world, times=2)
    assert json.loads(answer.body) == lost
    assert again == answer
    assert run.stop_reason is None


def test_a_wrong_key_stops_the_run(store, tmp_path):
    def echo(request):
        return httpx.Response(401, json={"error": {"code": 401, "message": request.headers["authorization"]}})

    world = _World()
    world.handle = echo
    with pytest.raises(Stopped):
        _ask(store, world)
    attempts = store.attempts(_K)
    assert [attempt.outcome for attempt in attempts] == ["fatal_run"]
    assert _CANARY not in repr(attempts)
    store.close()
    for path in tmp_path.iterdir():
        assert _CANARY.encode() not in path.read_bytes()


def test_what_an_interrupted_run_received_is_judged_and_not_bought_again(store):
    n = store.start(_ASKED).result().n
    received = Response(200, {"x-generation-id": "gen-9"}, json.dumps(completion()).encode())
    store.record_response(_ASKED, n, received).result()
    store.release(_K).result()
    (answer,), run = _ask(store, _World())
    assert answer == received
    assert run.tally.sent == 0
    (attempt,) = store.attempts(_K)
    assert (attempt.outcome, attempt.cost_usd) == ("ok", 0.25)


def test_a_run_that_died_after_a_bad_answer_goes_on_past_that_provider(store):
    lost = completion(finish_reason="tool_calls")
    n = store.start(_ASKED).result().n
    store.record_response(_ASKED, n, Response(200, {}, json.dumps(lost).encode())).result()
    store.release(_K).result()
    world = _World(_good())
    _ask(store, world)
    assert world.bodies[0]["provider"] == {"ignore": ["Alpha"]}


def test_one_who_asks_waits_for_another_and_takes_its_answer(store, tmp_path):
    with Store(tmp_path / "store.sqlite") as other:
        n = other.start(_ASKED).result().n
        world = _World()

        async def sleep(seconds):
            world.waits.append(seconds)
            if len(world.waits) == 3:
                answer = Response(200, {}, json.dumps(completion()).encode())
                outcome = Outcome("ok", "complete", None, 0.25, "usage")
                other.finish(_ASKED, n, answer, None, outcome, answer).result()

        world.sleep = sleep
        (answer,), run = _ask(store, world)
    assert json.loads(answer.body) == completion()
    assert (run.tally.sent, len(world.waits)) == (0, 3)


def test_a_price_stands_in_where_no_cost_is_reported(store):
    body = completion()
    del body["usage"]["cost"]
    world = _World(httpx.Response(200, json=body))
    _, run = _ask(store, world, price=Price(prompt=1.0, completion=2.0))
    assert run.tally.spent_usd == pytest.approx((5 * 1.0 + 4 * 2.0) / 1e6)
    assert store.attempts(_K)[0].cost_source == "estimated"


_PRICE = Price(prompt=0.0, completion=50_000.0)
"""A request for 5 tokens may cost a quarter of a dollar, as `completion` does."""


def test_a_limit_that_leaves_nothing_sends_nothing(store):
    with pytest.raises(Stopped):
        _ask(store, _World(_good()), limit=0.0, price=_PRICE)
    assert store.attempts(_K) == []


def _many(count):
    body = {"model": "m", "messages": [], "max_tokens": 5}
    return [Asked.of("here", "/chat/completions", {**body, "seed": n}) for n in range(count)]


def _ask_many(store, world, asked, **settings):
    """The results of asking all at once, exceptions among them, and the run."""

    async def ask():
        opened = _Opened(store, world, **settings)
        async with opened.client:
            results = await asyncio.gather(*map(opened.asker.ask, asked), return_exceptions=True)
            return results, opened.run

    return asyncio.run(ask())


def test_reaching_the_limit_stops_cleanly_and_is_never_passed(store):
    world = _World()
    world.handle = lambda request: _good()
    results, run = _ask_many(store, world, _many(40), at_once=40, limit=2.6, price=_PRICE)
    assert sum(isinstance(result, Response) for result in results) == 10
    assert sum(isinstance(result, Stopped) for result in results) == 30
    assert run.tally.spent_usd == pytest.approx(2.5)
    assert run.ledger.run.reserved == 0
    assert isinstance(run.stop_reason, GenerationError)
    assert "max_cost_usd: 2.5000 of 2.6000" in str(run.stop_reason)
    again, run = _ask_many(store, world, _many(40), limit=100.0, price=_PRICE)
    assert not any(isinstance(result, Exception) for result in again)
    assert run.tally.sent == 30


def test_answers_that_are_cheaper_than_reserved_make_room_for_more(store):
    world = _World()
    cheap = completion()
    cheap["usage"]["cost"] = 0.05
    world.handle = lambda request: httpx.Response(200, json=cheap)
    results, run = _ask_many(store, world, _many(40), at_once=40, limit=2.5, price=_PRICE)
    assert sum(isinstance(result, Response) for result in results) == 40
    assert run.tally.spent_usd == pytest.approx(2.0)


def test_a_dataset_at_its_own_limit_halts_alone(store):
    world = _World()
    world.handle = lambda request: _good()
    results, run = _ask_many(store, world, _many(5), limits={"d": 0.5}, price=_PRICE)
    assert [type(result) for result in results].count(Halted) == 3
    assert run.stop_reason is None
    assert "max_cost_usd_by_dataset.d" in str(run.halted["d"])


def test_an_exchange_of_unknown_cost_is_booked_at_the_most_that_it_can_cost(store):
    world = _World(httpx.ReadError("gone"), _good())
    _, run = _ask(store, world, limit=1.0, price=_PRICE)
    assert run.tally.spent_usd == pytest.approx(0.5)
    assert run.tally.unknown_usd == pytest.approx(0.25)
    assert [attempt.bound_usd for attempt in store.attempts(_K)] == [0.25, 0.25]


def test_a_request_that_costs_more_than_the_price_allows_stops_a_run_with_a_limit(store):
    results, run = _ask(store, _World(_good()), limit=100.0, price=Price(prompt=0.0, completion=1.0))
    assert results[0] is not None
    assert "transport.price" in str(run.stop_reason)


def test_nothing_is_held_or_booked_for_what_another_process_answered_meanwhile(store, tmp_path):
    with Store(tmp_path / "store.sqlite") as other:
        answer = Response(200, {}, json.dumps(completion()).encode())
        n = other.start(_ASKED).result().n
        other.finish(_ASKED, n, answer, None, Outcome("ok", "c", None, 0.25, "usage"), answer).result()

    async def ask():
        opened = _Opened(store, _World(), limit=1.0, price=_PRICE)
        async with opened.client:
            return await opened.asker.ask(_ASKED), opened

    got, opened = asyncio.run(ask())
    assert got == answer
    assert (opened.line.pacer.in_flight, opened.run.ledger.run) == (0, Account(1.0))


def test_a_stream_is_stored_as_the_plain_answer_and_kept_raw_beside_it(store):
    chunks = [
        {"id": "gen-1", "model": "m-served", "choices": [{"index": 0, "delta": {"reasoning": "we"}}]},
        {"choices": [{"index": 0, "delta": {"reasoning": "ll", "content": "fi"}}]},
        {"choices": [{"index": 0, "delta": {"content": "ne"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": completion()["usage"]},
    ]
    text = ": WAIT\n\n" + "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    headers = {"content-type": "text/event-stream", "x-generation-id": "gen-9"}
    world = _World(httpx.Response(200, text=text, headers=headers))
    (answer,), _ = _ask(store, world, stream=True)
    assert world.bodies == [{**_ASKED.body, "stream": True, "stream_options": {"include_usage": True}}]
    assert answer.headers == {"content-type": "application/json", "x-generation-id": "gen-9"}
    stored = json.loads(answer.body)
    assert stored["choices"][0]["message"] == {"role": "assistant", "reasoning": "well", "content": "fine"}
    assert stored["usage"] == completion()["usage"]
    verdict = classify(answer.status, answer.headers, answer.body, _ASKED.body)
    assert (verdict.action, verdict.flags) == (Action.OK, ())
    assert store.get(_K) == answer
    assert store.attempts(_K)[0].response.body == text.encode()


def test_a_stream_that_a_killed_run_received_is_settled_as_its_plain_answer(store):
    chunk = {"choices": [{"index": 0, "delta": {"content": "a", "reasoning": "b"}, "finish_reason": "stop"}]}
    n = store.start(_ASKED).result().n
    store.record_response(_ASKED, n, Response(200, {}, f"data: {json.dumps(chunk)}\n\n".encode())).result()
    store.release(_K).result()
    (answer,), run = _ask(store, _World(), stream=True)
    assert run.tally.sent == 0
    assert json.loads(answer.body)["choices"][0]["message"]["content"] == "a"
    assert store.get(_K) == answer


def test_a_cut_stream_is_asked_again(store):
    cut = 'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    world = _World(httpx.Response(200, text=cut), _good())
    (answer,), _ = _ask(store, world, stream=True)
    assert json.loads(answer.body) == completion()


def test_an_answer_that_breaks_the_reader_is_kept_before_the_run_ends(store, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("a bug")

    monkeypatch.setattr(asking, "classify", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        _ask(store, _World(_good()))
    (attempt,) = store.attempts(_K)
    assert json.loads(attempt.response.body) == completion()
    assert store.start(_ASKED).result().claim == "won"


def test_a_stop_wakes_those_that_wait(store):
    async def ask():
        asleep = asyncio.Event()

        async def sleep(seconds):
            asleep.set()
            await asyncio.Event().wait()

        world = _World(_bad(429, headers={"Retry-After": "500"}))
        world.sleep = sleep
        opened = _Opened(store, world, at_once=1)
        async with opened.client:
            waiting = asyncio.create_task(opened.asker.ask(_ASKED))
            await asleep.wait()
            opened.run.stop(GenerationError("enough"))
            with pytest.raises(Stopped):
                await waiting

    asyncio.run(ask())
    assert store.start(_ASKED).result().claim == "won"


def test_an_endpoint_that_only_fails_is_given_up_and_its_requests_are_not_used_up(store):
    world = _World()
    world.handle = lambda request: httpx.Response(502, text="<html>")
    settings = {"at_once": 10, "breaker_failures": 12, "breaker_s": 0.0}
    results, run = _ask_many(store, world, _many(50), **settings)
    assert "in a row failed" in str(run.stop_reason)
    assert run.tally.sent <= 12 + 10
    assert all(isinstance(result, Stopped) or result is None for result in results)
