"""A reply -> bytes on the connection, at their time and to the point where it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from aiohttp import web

from pipeline.simulator.chance import Chance
from pipeline.simulator.reply import EVENTS, Reply

_MOST_PIECES = 8


async def send(
    request: web.Request, reply: Reply, generation: str = "", latency_s: float = 0.0
) -> web.StreamResponse:
    """A plain reply comes after the latency, a stream begins at once and takes that long.

    Raises ConnectionResetError if the client hung up on a stream.
    """
    headers = {"Content-Type": reply.content_type, **reply.headers}
    if generation:
        headers["X-Generation-Id"] = generation
    if reply.content_type == EVENTS:
        return await _stream(request, reply, headers, Chance(generation, "pieces"), latency_s)
    if latency_s:
        await asyncio.sleep(latency_s)
    if not reply.promised:
        return web.Response(status=reply.status, body=reply.body, headers=headers)
    response = web.StreamResponse(status=reply.status, headers=headers)
    response.content_length = len(reply.body) + reply.promised
    await response.prepare(request)
    await response.write(reply.body)
    _hang_up(request)
    return response


async def _stream(
    request: web.Request, reply: Reply, headers: dict[str, str], chance: Chance, latency_s: float
) -> web.StreamResponse:
    response = web.StreamResponse(status=reply.status, headers=headers)
    await response.prepare(request)
    pieces = list(_pieces(reply.body, chance))
    for number, piece in enumerate(pieces):
        if latency_s and number:
            await asyncio.sleep(latency_s / (len(pieces) - 1))
        await response.write(piece)
    if reply.promised:
        _hang_up(request)
    else:
        await response.write_eof()
    return response


def _pieces(body: bytes, chance: Chance) -> Iterator[bytes]:
    """Cut anywhere, inside events and characters too, as a network does."""
    places = sorted({chance.between(1, len(body)) for _ in range(_MOST_PIECES - 1)} | {len(body)})
    for start, end in zip([0, *places[:-1]], places, strict=True):
        yield body[start:end]


def _hang_up(request: web.Request) -> None:
    """What was written still goes out."""
    if request.transport is not None:
        request.transport.close()
