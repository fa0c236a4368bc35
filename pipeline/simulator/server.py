"""Profile + seed -> an HTTP application that answers like OpenRouter in front of several providers.

    POST /chat/completions, /v1/chat/completions    one answer; depends only on (body, profile, seed)
    GET  /health                                    profile and seed, once all is loaded
    GET  /stats                                     requests, distinct requests, statuses, faults, dollars
    POST /truth   {"ids": [generation id, ...]}     {id: truth or null}, for answers of this process
    GET  /truth?id=...  or  ?request_hash=...       one of them (404 if it was never asked here)

A truth is what reports and tests compare with, and is never part of an answer:
    {"id", "request_hash", "provider", "prompt_ids", "completion_ids", "ending", "notes"}
`pipeline.simulator.native.truth(body, profile, seed)` gives the same without a server (answers may have
been replayed from a store); `pipeline.simulator.process.truth_for(base_url, ids)` asks for many.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

from aiohttp import web

from pipeline.simulator import faults
from pipeline.simulator.answer import answer_body
from pipeline.simulator.chance import Chance
from pipeline.simulator.faults import Reply
from pipeline.simulator.native import generate, generation_id, truth_of
from pipeline.simulator.process import Running, serve, truth_for
from pipeline.simulator.profile import load_profile
from pipeline.simulator.request import BadRequest, read_request
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
        self._cost = 0.0
        self._answer({"model": "warm-up", "messages": [{"role": "user", "content": "Loads all there is."}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """POST /chat/completions."""
        generation = ""
        try:
            body = json.loads(await request.read())
            reply, generation = self._attempt(body)
            if self.profile.latency_s:
                part = 0.5 + Chance(generation, "latency").share()
                await asyncio.sleep(self.profile.latency_s * part)
        except BadRequest as refused:
            reply = faults.refusal(refused.status, str(refused))
        except ValueError:
            reply = faults.refusal(400, "the body is no JSON")
        self._statuses[reply.status] += 1
        return await _send(request, reply, generation)

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
                "cost": self._cost,
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

    def _attempt(self, body: Any) -> tuple[Reply, str]:
        answer, key, request_hash = self._answer(body)
        digest = int(request_hash[:15], 16)
        self._attempts[digest] += 1
        self._remember(answer["id"], body)
        fault = faults.choose(self.profile.faults, key, self._attempts[digest])
        if fault is None:
            self._cost += (answer.get("usage") or {}).get("cost", 0.0)
            return faults.good(answer, self.profile.faults, key), answer["id"]
        self._faults[fault] += 1
        return faults.broken(fault, answer, self.profile.faults, key, self._attempts[digest]), answer["id"]

    def _answer(self, body: Any) -> tuple[dict[str, Any], str, str]:
        generation = generate(read_request(body), self.profile, self.seed, self._corpus)
        return answer_body(generation, self.profile), generation.key, generation.asked.hash

    def _remember(self, generation: str, body: Any) -> None:
        if generation not in self._bodies:
            self._bodies[generation] = zlib.compress(json.dumps(body).encode(), 1)
            if len(self._bodies) > _REMEMBERED:
                self._bodies.popitem(last=False)

    def _truth(self, generation: str) -> dict[str, Any] | None:
        packed = self._bodies.get(generation)
        if packed is None:
            return None
        asked = read_request(json.loads(zlib.decompress(packed)))
        return truth_of(generate(asked, self.profile, self.seed, self._corpus)).as_dict()


async def _send(request: web.Request, reply: Reply, generation: str) -> web.StreamResponse:
    headers = {"Content-Type": reply.content_type, **reply.headers}
    if generation:
        headers["X-Generation-Id"] = generation
    if not reply.promised:
        return web.Response(status=reply.status, body=reply.body, headers=headers)
    response = web.StreamResponse(status=reply.status, headers=headers)
    response.content_length = len(reply.body) + reply.promised
    await response.prepare(request)
    await response.write(reply.body)
    if request.transport is not None:
        request.transport.close()
    return response


def make_app(profile_name: str, seed: int = 0, corpus: Path = DEFAULT_FOLDER) -> web.Application:
    """Loads everything before it returns, so the first answer is as quick as the others."""
    endpoint = Endpoint(profile_name, seed, corpus)
    app = web.Application(client_max_size=_LARGEST_REQUEST)
    app.router.add_post("/chat/completions", endpoint.complete)
    app.router.add_post("/v1/chat/completions", endpoint.complete)
    app.router.add_get("/health", endpoint.health)
    app.router.add_get("/stats", endpoint.stats)
    app.router.add_get("/truth", endpoint.one_truth)
    app.router.add_post("/truth", endpoint.many_truths)
    return app
