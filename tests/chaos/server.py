"""A provider in a process of its own: it outlives killed clients, and knows what it was asked and has billed.

    python -m tests.chaos.server      prints its port, then serves until it is ended

POST /v1/chat/completions   the good answer of tests.chaos.answers, or a fault, as the plan says
GET  /v1/generation?id=     what a generation cost
POST /plan?keep=0           a new `Plan` (JSON); all that was counted is forgotten unless keep=1
GET  /stats                 `Stats` (JSON)
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from aiohttp import web

from tests.chaos.answers import Body, as_events, chance, dataset_of, good_answer, key_of, number_of
from tests.chaos.faults import Served, served

FAULTY_OF_TEN = 3
_ECHOING = {0: "500", 3: "broken header", 6: "reason"}
"""Last digit of a prompt's number -> where the server repeats the key, beside its headers."""


@dataclass
class Plan:
    """How the server behaves. Faults hit the first attempt at 3 of 10 requests, each fault in turn."""

    delay_s: tuple[float, float] = (0.04, 0.06)
    faults: tuple[str, ...] = ()
    longest_retry_after_s: float | None = None
    """Shortens what cases ask for, where a test can't wait."""
    always: dict[str, str] = field(default_factory=dict)
    """Number of a prompt -> the fault that every attempt at it meets."""
    signals: tuple[tuple[float, int], ...] = ()
    """(seconds after request `signal_at` has arrived, signal) for the process `pid`."""
    signal_at: int = 0
    pid: int = 0
    echo: bool = False
    """Repeat the request's Authorization in headers, error bodies and broken HTTP; see `_ECHOING`."""
    unauthorized_from: int | None = None
    """From this request on, the answer is 401."""


@dataclass
class Asked:
    """One request that arrived. Times are of the system-wide monotonic clock."""

    key: str
    dataset: str
    number: int
    attempt: int
    served: str
    begun: float
    cost_usd: float
    stream: bool = False
    complete: float | None = None
    """When the whole answer was handed to the network."""


@dataclass
class Stats:
    """What was counted since the last plan. `at_signal`: in flight when the first signal went out."""

    asked: list[Asked] = field(default_factory=list)
    most_in_flight: int = 0
    in_flight: int = 0
    bill_usd: float = 0.0
    at_signal: list[int] = field(default_factory=list)
    signalled: float | None = None
    authorizations: list[str] = field(default_factory=list)
    """Different values of that header."""


class Provider:
    """The one endpoint."""

    def __init__(self) -> None:
        self.plan, self.stats = Plan(), Stats()
        self._times: dict[str, int] = {}
        self._running: set[int] = set()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        plan, stats = self.plan, self.stats
        key = key_of(body)
        attempt = self._times.get(key, 0)
        self._times[key] = attempt + 1
        position = len(stats.asked)
        what = self._choose(body, attempt, position)
        answer = good_answer(body) if what == "good" else None
        cost = answer["usage"]["cost"] if answer else 0.0
        # Billed when it begins: hanging up does not stop a generation (OpenRouter, plain requests).
        entry = Asked(key, dataset_of(body), number_of(body), attempt, what, time.monotonic(), cost)
        entry.stream = bool(body.get("stream"))
        stats.asked.append(entry)
        stats.bill_usd += cost
        said = request.headers.get("authorization", "none")
        if said not in stats.authorizations:
            stats.authorizations.append(said)
        self._running.add(position)
        stats.in_flight = len(self._running)
        stats.most_in_flight = max(stats.most_in_flight, stats.in_flight)
        if plan.signals and position + 1 == plan.signal_at:
            for after_s, number in plan.signals:
                asyncio.get_running_loop().call_later(after_s, self._signal, plan.pid, number)
        try:
            low, high = plan.delay_s
            await asyncio.sleep(low + (high - low) * chance(key, attempt))
            response = await self._answer(request, body, what, answer, attempt)
            entry.complete = time.monotonic()
            return response
        finally:
            self._running.discard(position)
            stats.in_flight = len(self._running)

    def _choose(self, body: Body, attempt: int, position: int) -> str:
        plan, number = self.plan, number_of(body)
        if plan.unauthorized_from is not None and position >= plan.unauthorized_from:
            return "401"
        if str(number) in plan.always:
            return plan.always[str(number)]
        if plan.echo and attempt == 0 and number % 10 in _ECHOING:
            return _ECHOING[number % 10]
        if plan.faults and attempt == 0 and number % 10 < FAULTY_OF_TEN:
            return plan.faults[(number // 10 * FAULTY_OF_TEN + number % 10) % len(plan.faults)]
        return "good"

    def _signal(self, pid: int, number: int) -> None:
        if self.stats.signalled is None:
            self.stats.signalled, self.stats.at_signal = time.monotonic(), sorted(self._running)
        os.kill(pid, number)

    async def _answer(
        self, request: web.Request, body: Body, what: str, answer: Body | None, attempt: int
    ) -> web.StreamResponse:
        said = request.headers.get("authorization", "none") if self.plan.echo else "none"
        echoed = {"x-request-authorization": said, "x-forwarded-key": said.removeprefix("Bearer ")}
        extra = echoed if self.plan.echo else {}
        if what in ("broken header", "reason"):
            return _broken_http(request, what, said)
        if what in ("401", "500"):
            error = {"code": int(what), "message": f"no: {said}", "metadata": {"raw": f"headers {said}"}}
            return web.json_response({"error": error}, status=int(what), headers=extra)
        if answer is None:
            return await self._fault(request, served(what, body))
        headers = {"x-generation-id": answer["id"], **extra}
        if not body.get("stream"):
            return web.json_response(answer, headers=headers)
        # Comments and the places where packets end differ from one attempt to the next.
        events = [": OPENROUTER PROCESSING\n\n" * (1 + attempt), *as_events(answer)]
        events.insert(3 + attempt % 5, ": OPENROUTER PROCESSING\n\n")
        raw = "".join(events).encode()
        cuts = sorted(int(chance(answer["id"], attempt, n) * len(raw)) for n in range(3))
        parts = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **headers})
        await response.prepare(request)
        for part in parts:
            if part:
                await response.write(part)
                await asyncio.sleep(0.001)
        await response.write_eof()
        return response

    async def _fault(self, request: web.Request, fault: Served) -> web.StreamResponse:
        headers, longest = dict(fault.headers), self.plan.longest_retry_after_s
        if "retry-after" in headers and longest is not None:
            headers["retry-after"] = f"{min(float(headers['retry-after']), longest):g}"
        return await play(request, Served(fault.status, headers, fault.body, fault.steps))

    async def generation(self, request: web.Request) -> web.Response:
        wanted = request.query["id"].removeprefix("gen-")
        costs = [entry.cost_usd for entry in self.stats.asked if entry.key == wanted and entry.cost_usd]
        if not costs:
            return web.json_response({"error": {"code": 404, "message": "no such generation"}}, status=404)
        return web.json_response({"data": {"id": request.query["id"], "total_cost": costs[0]}})

    async def replan(self, request: web.Request) -> web.Response:
        self.plan = Plan(**await request.json())
        if request.query["keep"] == "0":
            self.stats, self._times, self._running = Stats(), {}, set()
        return web.json_response({})

    async def report(self, request: web.Request) -> web.Response:
        return web.json_response(asdict(self.stats))


def _broken_http(request: web.Request, what: str, said: str) -> web.StreamResponse:
    """Bytes that no library would send: a header that is none, or the key in the status line."""
    lines = {
        "broken header": f"HTTP/1.1 200 OK\r\nthis is {said} no header\r\n\r\n",
        "reason": f"HTTP/1.1 500 no {said}\r\ncontent-length: 0\r\n\r\n",
    }
    assert request.transport is not None
    request.transport.write(lines[what].encode())
    request.transport.close()
    return web.Response()


async def play(request: web.Request, exchange: Served) -> web.StreamResponse:
    """Serve an exchange exactly: a body whole, or its steps one after the other."""
    if exchange.body is not None:
        return web.Response(status=exchange.status, headers=exchange.headers, body=exchange.body)
    response = web.StreamResponse(status=exchange.status, headers=exchange.headers)
    await response.prepare(request)
    for step in exchange.steps:
        if step.get("close") == "abrupt":
            assert request.transport is not None
            request.transport.abort()
            return response
        for _ in range(step.get("times", 0)):
            await asyncio.sleep(step["every_s"])
            if request.transport is None or request.transport.is_closing():
                return response  # the client has gone: nobody is left to write to
            await response.write(step["send"].encode())
    await response.write_eof()
    return response


def application(provider: Provider) -> web.Application:
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", provider.complete)
    app.router.add_get("/v1/generation", provider.generation)
    app.router.add_post("/plan", provider.replan)
    app.router.add_get("/stats", provider.report)
    return app


async def _serve() -> None:
    runner = web.AppRunner(application(Provider()), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    # The starter holds the other end of stdin: when it goes, however it goes, this server goes too.
    await asyncio.to_thread(Path("/dev/stdin").read_bytes)


if __name__ == "__main__":
    asyncio.run(_serve())
