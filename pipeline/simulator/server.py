"""Profile + seed -> an HTTP application that answers like OpenRouter in front of several providers.

    POST /chat/completions, /v1/chat/completions    one answer; depends only on (body, profile, seed),
                                                    the same whole or as a stream (`"stream": true`)
    GET  /generation?id=..., /v1/generation         what one attempt cost, whether its answer arrived or not
    GET  /health                                    profile and seed, once all is loaded
    GET  /stats                                     requests, distinct requests, statuses, faults, dollars
                                                    billed, attempts billed, most requests in flight
    POST /truth   {"ids": [generation id, ...]}     {id: truth or null}, for answers of this process
    GET  /truth?id=...  or  ?request_hash=...       one of them (404 if it was never asked here)

A truth is what reports and tests compare with, and is never part of an answer:
    {"id", "request_hash", "provider", "prompt_ids", "completion_ids", "ending", "notes"}
`pipeline.simulator.native.truth(body, profile, seed)` gives the same without a server (answers may have
been replayed from a store); `pipeline.simulator.process.truth_for(base_url, ids)` asks for many.

An answer has the same id whenever it is given; an attempt that fails has one of its own, so that each
can be asked for its bill.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

from aiohttp import web

from pipeline.simulator import faults, stream_faults
from pipeline.simulator.answer import answer_body
from pipeline.simulator.bills import Bills
from pipeline.simulator.chance import Chance
from pipeline.simulator.limits import Limits, OverLimit
from pipeline.simulator.native import Generation, generate, generation_id, truth_of
from pipeline.simulator.process import Running, serve, truth_for
from pipeline.simulator.profile import load_profile
from pipeline.simulator.reply import Reply, refusal
from pipeline.simulator.request import BadRequest, read_request
from pipeline.simulator.sending import send
from pipeline.simulator.stream import check_streamable
from pipeline.simulator.texts import DEFAULT_FOLDER, load_corpus

__all__ = ["Running", "make_app", "serve", "truth_for"]

_LARGEST_REQUEST = 64 * 1024 * 1024
_REMEMBERED = 200_000
"""Requests kept (packed) for /truth; the oldest go first."""


class Endpoint:
    """The state of one application: what was asked, how often, and what came of it."""

    def __init__(self, profile_name: str, seed: int, corpus: Path) -> None:
        self.profile = load_profile(profile_name)
        self.seed = seed
        self._corpus = load_corpus(corpus)
        self._attempts: Counter[int] = Counter()
        self._bodies: OrderedDict[str, bytes] = OrderedDict()
        self._statuses: Counter[int] = Counter()
        self._faults: Counter[str] = Counter()
        self._bills = Bills(self.profile.price)
        self._limits = Limits(self.profile)
        self._generate({"model": "warm-up", "messages": [{"role": "user", "content": "Loads all there is."}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """POST /chat/completions."""
        raw = await request.read()
        try:
            self._limits.check_number()
            generation = self._generate(_json(raw))
            check_streamable(generation)
            with self._limits.in_flight(generation):
                return await self._answer(request, generation)
        except OverLimit as over:
            self._faults[over.limit] += 1
            reply = over.reply
        except BadRequest as refused:
            reply = refusal(refused.status, str(refused))
        self._statuses[reply.status] += 1
        return await send(request, reply)

    async def bill(self, request: web.Request) -> web.StreamResponse:
        """GET /generation."""
        wanted = request.query.get("id", "")
        told = self._bills.tell(wanted)
        if told is None:
            return await send(request, refusal(404, f"Generation {wanted} not found"))
        return web.json_response({"data": told})

    async def health(self, request: web.Request) -> web.Response:
        """GET /health."""
        return web.json_response({"status": "ok", "profile": self.profile.name, "seed": self.seed})

    async def stats(self, request: web.Request) -> web.Response:
        """GET /stats."""
        return web.json_response(
            {
                "requests": self._statuses.total(),
                "distinct_requests": len(self._attempts),
                "by_status": {str(status): count for status, count in sorted(self._statuses.items())},
                "faults": dict(sorted(self._faults.items())),
                "cost": self._bills.cost,
                "billed": self._bills.paid,
                "most_in_flight": self._limits.most,
            }
        )

    async def one_truth(self, request: web.Request) -> web.Response:
        """GET /truth."""
        asked_hash, wanted = request.query.get("request_hash"), request.query.get("id", "")
        if asked_hash is not None:
            wanted = generation_id(self.profile, self.seed, asked_hash)
        truth = self._truth(wanted)
        if truth is None:
            return web.json_response({"error": f"{asked_hash or wanted!r} was not asked here"}, status=404)
        return web.json_response({asked_hash or wanted: truth})

    async def many_truths(self, request: web.Request) -> web.Response:
        """POST /truth."""
        wanted = (await request.json())["ids"]
        return web.json_response({one: self._truth(one) for one in wanted})

    async def _answer(self, request: web.Request, generation: Generation) -> web.StreamResponse:
        reply, attempt_id = self._attempt(generation)
        self._statuses[reply.status] += 1
        latency = self.profile.latency_s * (0.5 + Chance(attempt_id, "latency").share())
        try:
            return await send(request, reply, attempt_id, latency)
        except ConnectionResetError:
            self._bills.cancel(attempt_id)
            raise

    def _attempt(self, generation: Generation) -> tuple[Reply, str]:
        asked, given = generation.asked, self.profile.faults
        digest = int(asked.hash[:15], 16)
        self._attempts[digest] += 1
        attempt = self._attempts[digest]
        self._remember(generation.id, asked.body)
        body = answer_body(generation, self.profile)
        form = stream_faults if asked.streamed else faults
        fault = faults.choose(given, generation.key, attempt, streamed=asked.streamed)
        if fault is None:
            attempt_id, reply = generation.id, form.good(body, given, generation.key)
        else:
            self._faults[fault] += 1
            attempt_id = generation_id(self.profile, self.seed, f"{asked.hash}/{attempt}")
            body["id"] = attempt_id
            reply = form.broken(fault, body, given, generation.key, attempt)
        self._bills.book(attempt_id, generation, generation.native.ending, reply.bill)
        return reply, attempt_id

    def _generate(self, body: Any) -> Generation:
        return generate(read_request(body), self.profile, self.seed, self._corpus)

    def _remember(self, generation: str, body: Any) -> None:
        if generation not in self._bodies:
            self._bodies[generation] = zlib.compress(json.dumps(body).encode(), 1)
            if len(self._bodies) > _REMEMBERED:
                self._bodies.popitem(last=False)

    def _truth(self, generation: str) -> dict[str, Any] | None:
        packed = self._bodies.get(generation)
        if packed is None:
            return None
        return truth_of(self._generate(json.loads(zlib.decompress(packed)))).as_dict()


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise BadRequest("the body is no JSON") from None


def make_app(profile_name: str, seed: int = 0, corpus: Path = DEFAULT_FOLDER) -> web.Application:
    """Loads everything before it returns, so the first answer is as quick as the others."""
    endpoint = Endpoint(profile_name, seed, corpus)
    app = web.Application(client_max_size=_LARGEST_REQUEST)
    app.router.add_post("/chat/completions", endpoint.complete)
    app.router.add_post("/v1/chat/completions", endpoint.complete)
    app.router.add_get("/generation", endpoint.bill)
    app.router.add_get("/v1/generation", endpoint.bill)
    app.router.add_get("/health", endpoint.health)
    app.router.add_get("/stats", endpoint.stats)
    app.router.add_get("/truth", endpoint.one_truth)
    app.router.add_post("/truth", endpoint.many_truths)
    return app
