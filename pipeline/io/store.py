"""Request keys <-> raw answers in one SQLite file: what was paid for is here, whole, before it is read.

Three tables. `responses`: the final answer of a request. `attempts`: every exchange, from the moment
before it is sent; its raw answer stays here until it is settled. `leases`: who is asking right now,
so that two runs never buy one answer twice. All writes go through one thread that commits them in
batches (pipeline.io.store_writer), so a write's Future is done only when it is safe on disk.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

import zstandard

from pipeline.core.turns import Asked, Response
from pipeline.errors import GenerationError
from pipeline.io.lease_owner import may_live, new_owner
from pipeline.io.store_file import connect, prepare
from pipeline.io.store_writer import Writer

LEASE_S = 120.0
"""A lease is renewed while its process lives; after this long without, another may take over."""
_HEARTBEAT_S = 20.0


class Claim(StrEnum):
    """What came of the wish to ask for a key."""

    WON = "won"
    TAKEN = "taken"
    ANSWERED = "answered"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One exchange as recorded. `response` None: none came, or it is settled and in `responses`.

    `ended` None: the process died while the request was out; it may have been paid for.
    """

    n: int
    started: float
    ended: float | None
    avoided: str | None
    response: Response | None
    problem: str | None
    outcome: str | None
    detail: str | None
    cost_usd: float | None
    cost_source: str | None


class Store:
    """Open store. Reads are direct; writes return Futures. API keys never come near it."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time, lease_s: float = LEASE_S) -> None:
        self.path = path
        self._clock = clock
        self._lease_s = lease_s
        self._owner = new_owner()
        self._lock = threading.Lock()
        self._compressor = zstandard.ZstdCompressor(level=3)  # used in the writer's thread only
        self._decompressor = zstandard.ZstdDecompressor()  # used under the lock only
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._reader = connect(path)
            prepare(self._reader, path)
            self._writer = Writer(connect(path), self._renew, min(_HEARTBEAT_S, lease_s / 4))
        except (sqlite3.Error, OSError) as error:
            raise GenerationError(
                f"{path}: can't be opened as a store ({error}); check the path in $EXACTOK_STORE"
            ) from None

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write what waits, give up this process's leases."""
        self._writer.submit(lambda db: db.execute("DELETE FROM leases WHERE owner = ?", (self._owner,)))
        self._writer.close()
        self._reader.close()

    # --- reads ---------------------------------------------------------------------------------

    def get(self, key: str) -> Response | None:
        """The final answer of a request."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, Response]:
        """Final answers of those requests that have one."""
        found = {}
        for key in keys:
            for status, headers, body in self._read(
                "SELECT status, headers, body FROM responses WHERE key = ?", key
            ):
                found[key] = self._response(status, headers, body)
        return found

    def attempts(self, key: str) -> list[Attempt]:
        """Every exchange of one request, in order."""
        rows = self._read(
            "SELECT n, started, ended, avoided, status, headers, body, problem, outcome, detail, cost_usd, "
            "cost_source FROM attempts WHERE key = ? ORDER BY n",
            key,
        )
        return [
            Attempt(
                *(n, started, ended, avoided),
                None if body is None else self._response(status, headers, body),
                *rest,
            )
            for n, started, ended, avoided, status, headers, body, *rest in rows
        ]

    def _read(self, statement: str, key: str) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._reader.execute(statement, (key,)).fetchall()

    def _response(self, status: int | None, headers: str, body: bytes) -> Response:
        with self._lock:
            return Response(status, json.loads(headers), self._decompressor.decompress(body))

    # --- writes --------------------------------------------------------------------------------

    def claim(self, key: str) -> Future[Claim]:
        """Ask for the right to send this request; `release` or `put` gives it back."""

        def claim(db: sqlite3.Connection) -> Claim:
            if db.execute("SELECT 1 FROM responses WHERE key = ?", (key,)).fetchone():
                return Claim.ANSWERED
            now = self._clock()
            held = db.execute("SELECT owner, expires FROM leases WHERE key = ?", (key,)).fetchone()
            if held is not None and held[1] > now and may_live(held[0]):
                return Claim.TAKEN
            db.execute("REPLACE INTO leases VALUES (?, ?, ?)", (key, self._owner, now + self._lease_s))
            return Claim.WON

        return self._writer.submit(claim)

    def begin_attempt(self, key: str, avoided: str | None = None) -> Future[int]:
        """Record, before sending, that an attempt goes out; its number.

        Raises LeaseLost if another process took over meanwhile (this one was asleep too long).
        """

        def begin(db: sqlite3.Connection) -> int:
            now = self._clock()
            held = "UPDATE leases SET expires = ? WHERE key = ? AND owner = ?"
            if db.execute(held, (now + self._lease_s, key, self._owner)).rowcount != 1:
                raise LeaseLost(key)
            last = db.execute("SELECT max(n) FROM attempts WHERE key = ?", (key,)).fetchone()[0]
            n = 1 + (last or 0)
            statement = "INSERT INTO attempts (key, n, started, avoided) VALUES (?, ?, ?, ?)"
            db.execute(statement, (key, n, now, avoided))
            return n

        return self._writer.submit(begin)

    def record_response(
        self, key: str, n: int, response: Response, problem: str | None = None
    ) -> Future[None]:
        """Keep what came, raw, before anyone looks at it. `problem`: how the exchange broke off."""

        def record(db: sqlite3.Connection) -> None:
            body = self._compressor.compress(response.body)
            db.execute(
                "UPDATE attempts SET ended = ?, status = ?, headers = ?, body = ?, problem = ? "
                "WHERE key = ? AND n = ?",
                (self._clock(), response.status, json.dumps(dict(response.headers)), body, problem, key, n),
            )

        return self._writer.submit(record)

    def record_outcome(
        self,
        key: str,
        n: int,
        outcome: str,
        detail: str,
        generation_id: str | None,
        cost_usd: float | None,
        cost_source: str,
    ) -> Future[None]:
        """Keep what was made of an attempt's answer, and what it cost."""

        def record(db: sqlite3.Connection) -> None:
            db.execute(
                "UPDATE attempts SET outcome = ?, detail = ?, generation_id = ?, cost_usd = ?, "
                "cost_source = ? WHERE key = ? AND n = ?",
                (outcome, detail, generation_id, cost_usd, cost_source, key, n),
            )

        return self._writer.submit(record)

    def put(self, asked: Asked, n: int) -> Future[None]:
        """Make attempt `n` the final answer of the request and end the lease. A first answer stands."""

        def put(db: sqlite3.Connection) -> None:
            request = self._compressor.compress(asked.text.encode())
            db.execute(
                "INSERT INTO responses SELECT key, ?, ?, ?, n, status, headers, body, generation_id, "
                "cost_usd, cost_source, ? FROM attempts WHERE key = ? AND n = ? ON CONFLICT (key) DO NOTHING",
                (asked.identity, asked.path, request, self._clock(), asked.key, n),
            )
            (kept,) = db.execute("SELECT attempt FROM responses WHERE key = ?", (asked.key,)).fetchone()
            if kept == n:
                db.execute("UPDATE attempts SET body = NULL WHERE key = ? AND n = ?", (asked.key, n))
            self._release(db, asked.key)

        return self._writer.submit(put)

    def release(self, key: str) -> Future[None]:
        """Let others ask for this key."""
        return self._writer.submit(lambda db: self._release(db, key))

    def _release(self, db: sqlite3.Connection, key: str) -> None:
        db.execute("DELETE FROM leases WHERE key = ? AND owner = ?", (key, self._owner))

    def _renew(self, db: sqlite3.Connection) -> None:
        expires = self._clock() + self._lease_s
        db.execute("UPDATE leases SET expires = ? WHERE owner = ?", (expires, self._owner))


class LeaseLost(Exception):
    """Another process has taken over this key; claim it again before sending."""
