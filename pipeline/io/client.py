"""One request body -> one raw HTTP exchange, within a wall-clock deadline; nothing is judged here.

httpx is the interface; aiohttp carries the bytes, because httpx's own pool collapses above some fifty
requests in flight (5,000 requests, 500 at once: 280-400 s against 6.7 s).
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from pipeline.config import Transport
from pipeline.core.turns import Response
from pipeline.errors import ConfigError

_REMOVED = "[key removed]"
_STREAMED = '{"stream":true,"stream_options":{"include_usage":true},'
"""Before a canonical body. vLLM tells usage in a stream only when asked; others ignore it."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What came, and how it broke off if it did.

    `never_sent`: no connection was made, so nothing can have been billed. A server that hangs up after
    the request is `httpx.ConnectTimeout` too under this transport; only the cause tells them apart.
    """

    response: Response
    problem: str | None = None
    never_sent: bool = False


@dataclass
class _Arriving:
    """The part of an answer that is here, kept when the rest does not come."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)


class Client:
    """Open connections to one endpoint. Use as an async context manager.

    `http` may stand in for the network; whatever it is, it is used below httpx's client layer: redirects,
    cookies, proxies from the environment and a default timeout are not wanted here, and leaving them out
    saves a third of the CPU a request.
    """

    def __init__(
        self,
        base_url: str,
        transport: Transport,
        *,
        key: str | None = None,
        http: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"conf/provider: transport.base_url: {base_url!r} is no http:// or https:// address"
            )
        self._base_url = base_url.rstrip("/")
        self._transport = transport
        self._key = key
        headers = {
            "host": httpx.URL(base_url).netloc.decode("ascii"),
            "user-agent": "exactok",
            "accept": "text/event-stream, application/json" if transport.stream else "application/json",
            "accept-encoding": "gzip, deflate",
            "content-type": "application/json",
        }
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        # aiohttp keeps what is the same for all; handed over with each request it is copied each time.
        self._http = http or _aiohttp(base_url, headers)
        self._headers = httpx.Headers(headers if http else {"host": headers["host"]}, encoding="ascii")
        # No read timeout: padding that keeps the connection alive would defeat it. No pool timeout: the
        # transport would apply it to the wait for a connection; the queue is ours.
        self._extensions = {"timeout": {"connect": transport.connect_timeout_s}}

    async def __aenter__(self) -> Client:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def post(self, path: str, text: str) -> Exchange:
        """Send one body, for a streamed answer if so set. Whatever arrives is returned, whole or not."""
        content = _STREAMED + text[1:] if self._transport.stream else text
        return await self._exchange("POST", path, content.encode())

    async def get(self, path: str) -> Exchange:
        """Read what the endpoint tells at a path."""
        return await self._exchange("GET", path, b"")

    async def _exchange(self, method: str, path: str, content: bytes) -> Exchange:
        arriving = _Arriving()
        problem, never_sent = None, False
        try:
            async with asyncio.timeout(self._transport.deadline_s):
                problem = await self._receive(method, path, content, arriving)
        except TimeoutError:
            problem = f"no complete answer within {self._transport.deadline_s:g} s"
        except (httpx.HTTPError, httpx.StreamError, aiohttp.ClientError, OSError) as error:
            cause = error.__cause__
            never_sent = isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            named = cause if isinstance(cause, aiohttp.ClientError) else error
            problem = f"{type(named).__name__}: {error}"
        return self._without_key(arriving, problem, never_sent)

    async def _receive(self, method: str, path: str, content: bytes, arriving: _Arriving) -> str | None:
        url = _url(self._base_url + path)
        # As a stream that is read at once: `content=` would work out headers that never change.
        body = httpx.ByteStream(content)
        request = httpx.Request(method, url, headers=self._headers, stream=body, extensions=self._extensions)
        request.headers.encoding = "ascii"  # else it is guessed anew for each request
        await request.aread()
        answer = await self._http.handle_async_request(request)
        try:
            arriving.status = answer.status_code
            arriving.headers |= _headers(answer)
            plain = "content-encoding" not in arriving.headers
            async for part in _raw(answer) if plain else answer.aiter_bytes():
                arriving.body += part
                if len(arriving.body) > self._transport.max_response_bytes:
                    arriving.body.clear()
                    return f"more than transport.max_response_bytes ({self._transport.max_response_bytes})"
        finally:
            await answer.aclose()
        return None

    def _without_key(self, arriving: _Arriving, problem: str | None, never_sent: bool) -> Exchange:
        """Some gateways repeat the request's headers in their error pages."""
        body, headers = bytes(arriving.body), arriving.headers
        if self._key is not None:
            body = body.replace(self._key.encode(), _REMOVED.encode())
            headers = {name: value.replace(self._key, _REMOVED) for name, value in headers.items()}
            problem = problem and problem.replace(self._key, _REMOVED)
        return Exchange(Response(arriving.status, headers, body), problem, never_sent)


def read_key(transport: Transport) -> str | None:
    """The API key that the environment holds under the name in `transport.key_env`.

    Raises ConfigError if it is missing, or holds what no header may (the value is never shown).
    """
    if transport.key_env is None:
        return None
    key = os.environ.get(transport.key_env, "").strip()
    if not key:
        raise ConfigError(
            f"conf/provider: transport.key_env: the environment variable {transport.key_env} is not set; "
            "export the API key under that name"
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            f"the environment variable {transport.key_env} holds characters that no API key has; "
            "export it again"
        )
    return key


@lru_cache(maxsize=64)
def _url(address: str) -> httpx.URL:
    """Parsed once: an endpoint has few paths."""
    return httpx.URL(address)


def _headers(answer: httpx.Response) -> dict[str, str]:
    """By name in lower case; several of one name are joined (RFC 9110, 5.3). No cookies."""
    found: dict[str, str] = {}
    for raw_name, raw_value in answer.headers.raw:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        if name != "set-cookie":
            found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _raw(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The body as it comes, without the layers that count and decode it."""
    assert isinstance(answer.stream, httpx.AsyncByteStream)
    return aiter(answer.stream)


def _aiohttp(base_url: str, headers: Mapping[str, str]) -> AiohttpTransport:
    """No limit of its own (the adapter's default is 100), no cookies, no environment, no unpacking."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if base_url.startswith("https://"):
        tls = httpx.create_ssl_context()

    def session() -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0, ssl=tls)
        return aiohttp.ClientSession(
            connector=connector, headers=headers, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        )

    return AiohttpTransport(client=session, verify=tls)
