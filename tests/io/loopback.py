"""A real HTTP server on loopback, in a thread, that a test scripts and asks what it was asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Body = dict[str, Any]
here: ContextVar[web.Request] = ContextVar("here")
"""The request that is being answered, for answers that stream or hang up."""
Answer = Callable[[Body, int], Awaitable[web.StreamResponse]]


@dataclass
class Loopback:
    """`asked`: every body in order of arrival; `texts`: the same as they were sent."""

    url: str = ""
    asked: list[Body] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    most_at_once: int = 0
    at_once: int = 0

    @property
    def times(self) -> Counter[str]:
        """How often each body was asked."""
        return Counter(self.texts)


@contextmanager
def loopback(answer: Answer) -> Iterator[Loopback]:
    """`answer(body, number)` gets how often this very body came before."""
    state, loop = Loopback(), asyncio.new_event_loop()

    async def handle(request: web.Request) -> web.StreamResponse:
        here.set(request)
        text = await request.text()
        number = state.times[text]
        state.asked.append(json.loads(text))
        state.texts.append(text)
        state.headers.append({name.lower(): value for name, value in request.headers.items()})
        state.at_once += 1
        state.most_at_once = max(state.most_at_once, state.at_once)
        try:
            return await answer(state.asked[-1], number)
        finally:
            state.at_once -= 1

    async def start() -> web.AppRunner:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/chat/completions", handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        state.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield state
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def completion(content: str = "fine", **changes: Any) -> Body:
    """A whole answer; `changes` go to the choice or, if they are its fields, to the message."""
    message = {"role": "assistant", "content": content, "reasoning": "well"}
    choice: Body = {"index": 0, "finish_reason": "stop", "message": message}
    for name, value in changes.items():
        (message if name in ("reasoning", "tool_calls", "reasoning_details") else choice)[name] = value
    return {
        "id": "gen-1",
        "model": "m-served",
        "provider": "Alpha",
        "choices": [choice],
        "usage": {"prompt_tokens": 5, "completion_tokens": 4, "cost": 0.25},
    }


def failure(status: int, message: str = "no", **error: Any) -> web.Response:
    """An error answer in the shape of the API."""
    body = {"error": {"code": status, "message": message, **error}}
    return web.json_response(body, status=status)
