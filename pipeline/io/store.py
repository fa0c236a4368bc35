"""Request keys <-> raw answers in one SQLite file: what was paid for is here, whole, before it is used.

Three tables. `responses`: the final answer of a request. `attempts`: every exchange, from the moment
before it is sent; its raw answer stays here until it is settled. `leases`: who is asking right now,
so that two runs never buy one answer twice. All writes go through one process that commits them in
batches (pipeline.io.store_writer), so a write is done only when it is safe on disk.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import zstandard

from pipeline.core.turns import Asked, Response
from pipeline.errors import GenerationError
from pipeline.io.lease_owner import new_owner
from pipeline.io.store_file import connect, prepare
from pipeline.io.store_writer import Writer, Written
from pipeline.io.store_writes import Claim, Finish, LeaseLost, Outcome, Raw, Start, Started, answered

__all__ = ["Attempt", "Claim", "LeaseLost", "Outcome", "Started", "Store", "Unpriced"]

LEASE_S = 120.0
"""A lease is renewed while its process lives; after this long without, another may take over."""
_HEARTBEAT_S = 20.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One exchange as recorded. `response` None: none came, or it is settled and in `responses`.

    `ended` None: the process died while the request was out; it may have been paid for.
    `bound_usd`: the most that it can have cost, where that was reckoned.
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
    bound_usd: float | None


@dataclass(frozen=True, slots=True)
class Unpriced:
    """An exchange whose cost nobody told yet, though the endpoint may know it by its generation id."""

    key: str
    n: int
    generation_id: str
    bound_usd: float | None


class Store:
    """Open store. Reads are direct; writes return `Written`. API keys never come near it."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time, lease_s: float = LEASE_S) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._unpack = zstandard.ZstdDecompressor().decompress  # used under the lock only
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._reader = connect(path)
            prepare(self._reader, path)
            self._writer = Writer(path, new_owner(), clock, lease_s, min(_HEARTBEAT_S, lease_s / 4))
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
        self._writer.close()
        self._reader.close()

    # --- reads ---------------------------------------------------------------------------------

    def get(self, key: str) -> Response | None:
        """The final answer of a request."""
        rows = self._read("SELECT status, headers, body FROM responses WHERE key = ?", key)
        return self._response(*rows[0]) if rows else None

    def get_many(self, keys: Iterable[str]) -> dict[str, Response]:
        """Final answers of those requests that have one."""
        found = ((key, self.get(key)) for key in keys)
        return {key: response for key, response in found if response is not None}

    def known(self, keys: Iterable[str]) -> set[str]:
        """Those requests that have a final answer."""
        with self._lock:
            return answered(self._reader, keys)

    def attempts(self, key: str) -> list[Attempt]:
        """Every exchange of one request, in order."""
        rows = self._read(
            "SELECT n, started, ended, avoided, status, headers, body, problem, outcome, detail, cost_usd, "
            "cost_source, bound_usd FROM attempts WHERE key = ? ORDER BY n",
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

    def unpriced(self, identity: str, since: float = 0.0) -> list[Unpriced]:
        """Exchanges with this endpoint that began at `since` or later and whose cost is still unknown."""
        with self._lock:
            rows = self._reader.execute(
                "SELECT key, n, generation_id, bound_usd FROM attempts WHERE identity = ? AND started >= ? "
                "AND cost_source = 'unknown' AND generation_id IS NOT NULL ORDER BY started",
                (identity, since),
            ).fetchall()
        return [Unpriced(*row) for row in rows]

    def _read(self, statement: str, key: str) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._reader.execute(statement, (key,)).fetchall()

    def _response(self, status: int | None, headers: str, body: bytes) -> Response:
        with self._lock:
            return Response(status, json.loads(headers), self._unpack(body))

    def warm_up(self) -> None:
        """Writes are to be expected."""
        self._writer.warm_up()

    # --- writes --------------------------------------------------------------------------------

    def start(self, asked: Asked, bound_usd: float | None = None) -> Written[Started]:
        """Ask for the right to send this request, and record that it goes out if nothing was asked before.

        `n` of the result is the number of that attempt; 0: earlier ones must be looked at first, or the
        claim was not won. `release`, or `finish` with an answer, gives the right back.
        """
        return self._writer.submit("start", Start(asked.key, asked.identity, None, bound_usd))

    def begin_attempt(
        self, asked: Asked, avoided: str | None = None, bound_usd: float | None = None
    ) -> Written[int]:
        """Record, before sending, that one more attempt goes out; its number.

        Raises LeaseLost if another process took over meanwhile (this one was asleep too long).
        """
        return self._writer.submit("begin", Start(asked.key, asked.identity, avoided, bound_usd))

    def hold(self, asked: Asked) -> Written[None]:
        """Renew the lease. Raises LeaseLost if another process took over meanwhile."""
        return self._writer.submit("hold", asked.key)

    def withdraw(self, asked: Asked, n: int) -> Written[None]:
        """An attempt that was noted has not gone out."""
        return self._writer.submit("withdraw", (asked.key, n))

    def record_response(
        self, asked: Asked, n: int, response: Response, problem: str | None = None
    ) -> Written[None]:
        """Keep what came, raw, when nothing could be made of it. `problem`: how the exchange broke off."""
        return self._writer.submit("finish", _finish(asked, n, response, problem))

    def finish(
        self,
        asked: Asked,
        n: int,
        response: Response,
        problem: str | None,
        outcome: Outcome,
        answer: Response | None = None,
    ) -> Written[None]:
        """Keep what came, raw, and what was made of it; with `answer`, it is final and the lease ends.

        `answer` is `response` itself, or what was assembled from a stream. A first answer stands. May be
        called again for an attempt, when an earlier one turns out to be the last word.
        """
        return self._writer.submit("finish", _finish(asked, n, response, problem, outcome, answer))

    def book(self, unpriced: Unpriced, cost_usd: float) -> Written[None]:
        """The endpoint told what an exchange of unknown cost has cost."""
        return self._writer.submit("book", (unpriced.key, unpriced.n, cost_usd))

    def release(self, key: str) -> Written[None]:
        """Let others ask for this key."""
        return self._writer.submit("release", key)


def _finish(
    asked: Asked,
    n: int,
    response: Response,
    problem: str | None,
    outcome: Outcome | None = None,
    answer: Response | None = None,
) -> Finish:
    raw = _raw(response)
    final = raw if answer is response else None if answer is None else _raw(answer)
    return Finish(
        *(asked.key, asked.identity, asked.path, asked.sample, asked.text, n, raw, problem, outcome, final)
    )


def _raw(response: Response) -> Raw:
    return Raw(response.status, json.dumps(dict(response.headers)), response.body)
