"""One request body -> one raw HTTP exchange, within a wall-clock deadline; nothing is judged here.

httpx is the interface; aiohttp carries the bytes, because httpx's own pool collapses above some fifty
requests in flight (5,000 requests, 500 at once: 280-400 s against 6.7 s).
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from pipeline.config import Transport
from pipeline.core.turns import Response
from pipeline.errors import ConfigError

_REMOVED = "[key removed]"


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
    """Open connections to one endpoint. Use as an async context manager."""

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
        headers = {"content-type": "application/json", "accept": "application/json"}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        self._http = httpx.AsyncClient(
            transport=http or AiohttpTransport(client=_session),
            headers=headers,
            # No read timeout: padding that keeps the connection alive would defeat it. No pool
            # timeout: the transport would apply it to the wait for a connection; the queue is ours.
            timeout=httpx.Timeout(None, connect=transport.connect_timeout_s),
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # httpx keeps a jar of its own
            trust_env=False,
        )

    async def __aenter__(self) -> Client:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def post(self, path: str, text: str) -> Exchange:
        """Send one body. Whatever arrives is returned, also where the connection broke or time ran out."""
        arriving = _Arriving()
        problem, never_sent = None, False
        try:
            async with asyncio.timeout(self._transport.deadline_s):
                problem = await self._receive(path, text, arriving)
        except TimeoutError:
            problem = f"no complete answer within {self._transport.deadline_s:g} s"
        except (httpx.HTTPError, httpx.StreamError, aiohttp.ClientError, OSError) as error:
            cause = error.__cause__
            never_sent = isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            named = cause if isinstance(cause, aiohttp.ClientError) else error
            problem = f"{type(named).__name__}: {error}"
        return self._without_key(arriving, problem, never_sent)

    async def _receive(self, path: str, text: str, arriving: _Arriving) -> str | None:
        url = self._base_url + path
        async with self._http.stream("POST", url, content=text.encode()) as answer:
            arriving.status = answer.status_code
            arriving.headers |= {
                name.lower(): value for name, value in answer.headers.items() if name.lower() != "set-cookie"
            }
            async for part in answer.aiter_bytes():
                arriving.body += part
                if len(arriving.body) > self._transport.max_response_bytes:
                    arriving.body.clear()
                    return f"more than transport.max_response_bytes ({self._transport.max_response_bytes})"
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


def _session() -> aiohttp.ClientSession:
    """No limit of its own (the adapter's default is 100), no cookies, no environment."""
    connector = aiohttp.TCPConnector(limit=0, ssl=httpx.create_ssl_context())
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)
