"""Our whole generation against bare aiohttp, same server, in the same rounds: wall clock, CPU, memory.

5,000 requests of half a second and 4 KB, at 500 and at 2,000 in flight. Ours reads prompts, makes and hashes
requests, parses and classifies answers and has them in the store, synced to disk; aiohttp reads the body:
`aiohttp` as its documentation starts it (asyncio.run), `uvloop` on the event loop that we use. Then
50,000 requests, for the memory. The server is a process of its own that does next to nothing else.

Writes build/bench/generate.json. `bench_generate.py --rounds 1` is a quick look.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import uvloop
from rich.console import Console

from pipeline.config import Api, GenerateSettings, Price, Runtime, Sampling, Transport
from pipeline.io.event_loop import run_loop
from pipeline.io.fetch import Job, fetch
from pipeline.io.files import write_json, write_parquet_parts
from pipeline.io.prompts import AT_ONCE
from pipeline.io.store import Store
from pipeline.schemas import PROMPTS

ROOT = Path(__file__).resolve().parent.parent.parent
REQUESTS, LONG = 5_000, 50_000
DELAY_S = 0.5
_WORDS = "the drafter proposes and the target disposes of every token that it would not have written "


def _answer() -> bytes:
    message = {"role": "assistant", "reasoning": (_WORDS * 22)[:1900], "content": (_WORDS * 22)[:1800]}
    body = {
        "id": "gen-1",
        "model": "m",
        "provider": "P",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 500, "completion_tokens": 900, "cost": 0.001},
    }
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
    return f"{head}X-Generation-Id: gen-1\r\n\r\n".encode() + text


class _Half(asyncio.Protocol):
    """Answers every request after half a second."""

    answer = _answer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.got = b""

    def data_received(self, data: bytes) -> None:
        self.got += data
        head, end, rest = self.got.partition(b"\r\n\r\n")
        if not end:
            return
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        if len(rest) >= length:
            self.got = rest[length:]
            asyncio.get_running_loop().call_later(DELAY_S, self._send)

    def _send(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(self.answer)


def _serve(listening: socket.socket) -> None:
    async def forever() -> None:
        server = await asyncio.get_running_loop().create_server(_Half, sock=listening, backlog=8192)
        await server.serve_forever()

    uvloop.run(forever())


def _ours(url: str, count: int, at_once: int, folder: Path) -> None:
    settings = GenerateSettings(
        provider="half", model="m", api=Api(identity="half"), sampling=Sampling(max_tokens=2000)
    )
    transport = Transport(base_url=url, price=Price(prompt=0.6, completion=2.5))
    with _measured(count) as measured, Store(folder / "store.sqlite") as store:
        job = Job("d", folder / "d.parquet", count, settings, transport, store)
        with measured.wall:
            run = run_loop(fetch([job], Runtime(concurrency=at_once)))
        stored = sqlite3.connect(store.path).execute("SELECT count(*) FROM responses").fetchone()[0]
    if stored != count or run.missing:
        raise SystemExit(f"error: {stored} answers are stored, {len(run.missing)} are missing")


def _write_prompts(path: Path, count: int) -> None:
    """Not in the process that is measured: the peak of its memory counts."""
    rows = [
        {
            "prompt_id": f"p{n}",
            "position": n,
            "messages": json.dumps([{"role": "user", "content": f"{n}: " + (_WORDS * 22)[:1900]}]),
            "following_turns": "[]",
            "tools": None,
            "source_id": None,
        }
        for n in range(count)
    ]
    parts = (pa.Table.from_pylist(rows[at : at + AT_ONCE], schema=PROMPTS) for at in range(0, count, AT_ONCE))
    write_parquet_parts(path, PROMPTS, parts)


def _aiohttp(url: str, count: int, at_once: int, folder: Path, start: Any = asyncio.run) -> None:
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": (_WORDS * 22)[:1900]}]}
    ).encode()
    numbers = iter(range(count))
    headers = {"content-type": "application/json"}

    async def work(session: aiohttp.ClientSession) -> None:
        for _ in numbers:
            async with session.post(url + "/chat/completions", data=body, headers=headers) as answer:
                await answer.read()

    async def all_of_them() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(work(session) for _ in range(at_once)))

    with _measured(count) as measured, measured.wall:
        start(all_of_them())


class _Wall:
    """Seconds that pass inside."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *ignored: object) -> None:
        self.seconds = time.perf_counter() - self._began


class _measured:
    """Prints wall seconds, CPU milliseconds a request and peak megabytes, the store's process included."""

    def __init__(self, count: int) -> None:
        self.count, self.wall = count, _Wall()

    def __enter__(self) -> _measured:
        self._cpu = _cpu_s()
        return self

    def __exit__(self, *ignored: object) -> None:
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        figures = {
            "wall_s": self.wall.seconds,
            "cpu_ms": (_cpu_s() - self._cpu) * 1000 / self.count,
            "rss_mb": sum(usage.ru_maxrss for usage in both) / 1024,
        }
        sys.stdout.write(json.dumps(figures) + "\n")


def _cpu_s() -> float:
    """Of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _one(kind: str, url: str, count: int, at_once: int) -> dict[str, float]:
    """In a process of its own, so that neither warms up the other."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_TMP")) as folder:
        _write_prompts(Path(folder) / "d.parquet", count)
        command = [sys.executable, __file__, "--one", kind, url, str(count), str(at_once), folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _rounds(url: str, at_once: int, rounds: int) -> list[dict[str, dict[str, float]]]:
    kinds = ("ours", "aiohttp", "uvloop")
    return [{kind: _one(kind, url, REQUESTS, at_once) for kind in kinds} for _ in range(rounds)]


def _median(values: Any) -> float:
    return round(statistics.median(values), 3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=5)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if given.one:
        kind, url, count, at_once, folder = given.one
        kinds = {"ours": _ours, "aiohttp": _aiohttp, "uvloop": partial(_aiohttp, start=uvloop.run)}
        kinds[kind](url, int(count), int(at_once), Path(folder))
        return
    listening = socket.create_server(("127.0.0.1", 0), backlog=8192)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = multiprocessing.get_context("fork").Process(target=_serve, args=(listening,), daemon=True)
    server.start()
    result: dict[str, float] = {}
    for at_once in (500, 2000):
        rounds = _rounds(url, at_once, given.rounds)

        def ratio(name: str, peer: str, rounds: Any = rounds) -> float:
            return _median(one["ours"][name] / one[peer][name] for one in rounds)

        result |= {
            f"wall_ratio_{at_once}": ratio("wall_s", "aiohttp"),
            f"wall_ratio_to_uvloop_{at_once}": ratio("wall_s", "uvloop"),
            f"cpu_ms_per_request_{at_once}": _median(one["ours"]["cpu_ms"] for one in rounds),
            f"rss_mb_{at_once}": _median(one["ours"]["rss_mb"] for one in rounds),
        }
        for kind in ("ours", "aiohttp", "uvloop"):
            result[f"wall_s_{at_once}_{kind}"] = _median(one[kind]["wall_s"] for one in rounds)
    result["cpu_ms_per_request"] = max(result["cpu_ms_per_request_500"], result["cpu_ms_per_request_2000"])
    result["rss_mb"] = result["rss_mb_2000"]
    if given.rounds > 1:
        long = _one("ours", url, LONG, 2000)
        result |= {"rss_mb_50k": round(long["rss_mb"]), "wall_s_50k": round(long["wall_s"], 1)}
        result["rss_ratio_50k_5k"] = round(long["rss_mb"] / result["rss_mb_2000"], 3)
    server.terminate()
    write_json(ROOT / "build/bench/generate.json", result)
    Console().print_json(json.dumps(result))


if __name__ == "__main__":
    main()
