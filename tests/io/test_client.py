import asyncio
import gzip
import json
import socket

import httpx
import pytest
from aiohttp import web

from pipeline.config import Transport
from pipeline.errors import ConfigError
from pipeline.io.client import Client, read_key
from tests.io.loopback import completion, here, loopback

_CANARY = "sk-canary-0123456789"
_PATH = "/chat/completions"


def _post(url, text='{"a": "漢"}', http=None, key=None, **settings):
    async def post():
        async with Client(url, Transport(**settings), key=key, http=http) as client:
            return await client.post(_PATH, text)

    return asyncio.run(post())


def _mock(answer):
    return httpx.MockTransport(answer)


def test_a_body_goes_out_as_it_is_and_the_answer_comes_back_raw():
    async def answer(body, number):
        headers = {"X-Generation-Id": "gen-7", "Set-Cookie": "a=b"}
        return web.Response(body=b"\n \n" + json.dumps(body).encode(), headers=headers)

    with loopback(answer) as server:
        exchange = _post(server.url + "/", key=_CANARY)
    assert server.texts == ['{"a": "漢"}']
    assert server.headers[0]["authorization"] == f"Bearer {_CANARY}"
    assert server.headers[0]["content-type"] == "application/json"
    assert exchange.response.status == 200
    assert exchange.response.body == b'\n \n{"a": "\\u6f22"}'
    assert exchange.response.headers["x-generation-id"] == "gen-7"
    assert "set-cookie" not in exchange.response.headers
    assert (exchange.problem, exchange.never_sent) == (None, False)


def test_cookies_and_redirects_lead_nowhere():
    async def answer(body, number):
        return web.Response(status=302, headers={"Location": "/elsewhere", "Set-Cookie": "a=b"})

    async def twice(url):
        async with Client(url, Transport()) as client:
            return [await client.post(_PATH, "{}") for _ in range(2)]

    with loopback(answer) as server:
        # By name: aiohttp's own jar takes nothing from a bare address.
        exchanges = asyncio.run(twice(server.url.replace("127.0.0.1", "localhost")))
    assert [exchange.response.status for exchange in exchanges] == [302, 302]
    assert ["cookie" in headers for headers in server.headers] == [False, False]


def test_more_than_a_hundred_are_in_flight_at_once():
    arrived, all_here = [], asyncio.Event()

    async def answer(body, number):
        arrived.append(body)
        if len(arrived) == 150:
            all_here.set()
        await all_here.wait()
        return web.json_response(completion())

    async def many(url):
        async with Client(url, Transport(deadline_s=60.0)) as client:
            return await asyncio.gather(*(client.post(_PATH, f'{{"n": {n}}}') for n in range(150)))

    with loopback(answer) as server:
        exchanges = asyncio.run(many(server.url))
    assert {exchange.response.status for exchange in exchanges} == {200}


def test_padding_that_never_ends_meets_the_deadline_and_what_came_is_kept():
    async def answer(body, number):
        response = web.StreamResponse(headers={"X-Generation-Id": "gen-1"})
        await response.prepare(here.get())
        for _ in range(1000):
            await response.write(b" \n")
            await asyncio.sleep(0.01)
        return response

    with loopback(answer) as server:
        exchange = _post(server.url, deadline_s=0.3)
    assert "within 0.3 s" in exchange.problem
    assert exchange.response.status == 200
    assert exchange.response.headers["x-generation-id"] == "gen-1"
    assert exchange.response.body.strip() == b""
    assert exchange.response.body != b""
    assert not exchange.never_sent


def test_a_connection_that_breaks_inside_the_body_keeps_its_first_part():
    async def answer(body, number):
        response = web.StreamResponse()
        response.content_length = 100
        await response.prepare(here.get())
        await response.write(b'{"id": "gen-1", "choi')
        here.get().transport.close()
        return response

    with loopback(answer) as server:
        exchange = _post(server.url)
    assert exchange.response.status == 200
    assert exchange.response.body == b'{"id": "gen-1", "choi'
    assert "Payload" in exchange.problem


def test_hanging_up_after_the_request_is_not_taken_for_never_sent():
    async def answer(body, number):
        here.get().transport.abort()
        return web.Response()

    with loopback(answer) as server:
        exchange = _post(server.url)
    assert exchange.response.status is None
    assert exchange.problem
    assert not exchange.never_sent


def test_a_refused_connection_was_never_sent():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        exchange = _post(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert exchange.response.status is None
    assert exchange.never_sent


def test_too_large_an_answer_is_dropped_not_held():
    async def answer(body, number):
        return web.Response(body=b"x" * 200_000)

    with loopback(answer) as server:
        exchange = _post(server.url, max_response_bytes=100_000)
    assert "max_response_bytes" in exchange.problem
    assert exchange.response.body == b""


def test_compressed_answers_are_unpacked_and_broken_ones_are_no_crash():
    whole = gzip.compress(b'{"a": 1}')

    async def answer(body, number):
        sent = whole if body["whole"] else b"not gzip at all"
        return web.Response(body=sent, headers={"Content-Encoding": "gzip"})

    with loopback(answer) as server:
        assert _post(server.url, '{"whole": true}').response.body == b'{"a": 1}'
        broken = _post(server.url, '{"whole": false}')
    assert broken.response.status == 200
    assert "Decoding" in broken.problem


def test_an_oversized_header_is_no_crash():
    async def answer(body, number):
        return web.Response(headers={"X-Long": "x" * 20_000})

    with loopback(answer) as server:
        exchange = _post(server.url)
    assert exchange.response.status is None
    assert exchange.problem


def test_a_key_that_is_echoed_is_removed_from_all_that_is_kept():
    def echo(request):
        sent = request.headers["authorization"]
        return httpx.Response(401, text=f"bad key: {sent}", headers={"x-echo": sent})

    exchange = _post("http://x", http=_mock(echo), key=_CANARY)
    assert _CANARY not in repr(exchange)
    assert exchange.response.body == b"bad key: Bearer [key removed]"

    def broken(request):
        raise httpx.ReadError(f"while sending {request.headers['authorization']}")

    assert _CANARY not in repr(_post("http://x", http=_mock(broken), key=_CANARY))


def test_keys_come_from_the_environment_and_are_never_shown(monkeypatch):
    named = Transport(key_env="CANARY_KEY")
    monkeypatch.delenv("CANARY_KEY", raising=False)
    with pytest.raises(ConfigError, match="CANARY_KEY is not set"):
        read_key(named)
    for bad in (f"{_CANARY}\nx: y", f"{_CANARY} x", f"{_CANARY}é"):
        monkeypatch.setenv("CANARY_KEY", bad)
        with pytest.raises(ConfigError, match="CANARY_KEY") as caught:
            read_key(named)
        assert _CANARY not in str(caught.value)
    monkeypatch.setenv("CANARY_KEY", f" {_CANARY}\n")
    assert read_key(named) == _CANARY
    assert read_key(Transport()) is None


def test_an_address_without_a_scheme_is_refused():
    with pytest.raises(ConfigError, match="base_url"):
        Client("api.example.org/v1", Transport())
