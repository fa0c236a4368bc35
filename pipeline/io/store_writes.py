"""Writes of one kind, many at a time -> a few SQL statements; what each table's rows go through.

A request's life: `start` (lease and first attempt), perhaps `begin` (a later attempt), `finish` (what came,
what was made of it and, if final, the answer).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pipeline.core.turns import Asked, Response
from pipeline.io.lease_owner import may_live

Clock = Callable[[], float]
Pack = Callable[[bytes], bytes]
_ROWS = (256, 128, 64, 32, 16, 8, 4, 2, 1)
"""Rows of one statement: few sizes, so that SQLite keeps them all prepared."""

_ANSWER_COLUMNS = (
    "key, identity, path, request, attempt, status, headers, body, generation_id, cost_usd, cost_source, "
    "created, sample, model, prompt_tokens, completion_tokens"
)
_FINISHED_COLUMNS = (
    "key, n, started, ended, status, headers, body, problem, outcome, detail, generation_id, cost_usd, "
    "cost_source, identity"
)
_LATER = [name for name in _FINISHED_COLUMNS.split(", ") if name not in ("key", "n", "started", "ended")]
_ON_FINISH = ", ".join(
    ["ended = coalesce(ended, excluded.ended)", *(f"{name} = excluded.{name}" for name in _LATER)]
)


class Claim(StrEnum):
    """What came of the wish to ask for a key."""

    WON = "won"
    TAKEN = "taken"
    ANSWERED = "answered"


class LeaseLost(Exception):
    """Another process has taken over this key; start again before sending."""


@dataclass(frozen=True, slots=True)
class Start:
    """The wish to send."""

    key: str
    identity: str
    avoided: str | None
    bound_usd: float | None


@dataclass(frozen=True, slots=True)
class Started:
    """`n`: the attempt that goes out, 0 if none was begun."""

    claim: Claim
    n: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was made of one exchange. `cost_source` as in pipeline.core.classify.Verdict."""

    action: str
    detail: str
    generation_id: str | None
    cost_usd: float | None
    cost_source: str
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of an exchange."""

    asked: Asked
    n: int
    response: Response
    problem: str | None
    outcome: Outcome | None = None
    answer: Response | None = None


def start(
    owner: str, clock: Clock, lease_s: float, db: sqlite3.Connection, items: Sequence[Start]
) -> list[Started | Exception]:
    """Leases for what nobody has answered or is asking; a first attempt for what was never asked."""
    now = clock()
    keys = json.dumps([item.key for item in items])
    answered = _column(db, "SELECT json_group_array(key) FROM responses WHERE key IN", keys)
    held = db.execute(
        "SELECT key, owner FROM leases WHERE expires > ? AND key IN (SELECT value FROM json_each(?))",
        (now, keys),
    ).fetchall()
    taken = {key for key, holder in held if may_live(holder)}
    asked_before = _column(db, "SELECT json_group_array(DISTINCT key) FROM attempts WHERE key IN", keys)
    results: list[Started | Exception] = []
    won: list[Start] = []
    first: list[Start] = []
    for item in items:
        if item.key in answered:
            results.append(Started(Claim.ANSWERED))
            continue
        if item.key in taken:
            results.append(Started(Claim.TAKEN))
            continue
        taken.add(item.key)  # also against the next one in this batch
        won.append(item)
        if item.key in asked_before:
            results.append(Started(Claim.WON))
        else:
            first.append(item)
            results.append(Started(Claim.WON, 1))
    _insert(db, "REPLACE INTO leases VALUES", [(item.key, owner, now + lease_s) for item in won])
    _insert(db, _BEGIN, [(item.key, 1, now, item.avoided, item.identity, item.bound_usd) for item in first])
    return results


_BEGIN = "INSERT INTO attempts (key, n, started, avoided, identity, bound_usd) VALUES"


def begin(
    owner: str, clock: Clock, lease_s: float, db: sqlite3.Connection, items: Sequence[Start]
) -> list[int | Exception]:
    """One more attempt for those that still hold their lease."""
    now = clock()
    numbers: list[int | Exception] = []
    for item in items:  # rare: only after a failed attempt
        held = "UPDATE leases SET expires = ? WHERE key = ? AND owner = ?"
        if db.execute(held, (now + lease_s, item.key, owner)).rowcount != 1:
            numbers.append(LeaseLost(item.key))
            continue
        (last,) = db.execute("SELECT max(n) FROM attempts WHERE key = ?", (item.key,)).fetchone()
        n = 1 + (last or 0)
        _insert(db, _BEGIN, [(item.key, n, now, item.avoided, item.identity, item.bound_usd)])
        numbers.append(n)
    return numbers


def finish(
    owner: str, clock: Clock, pack: Pack, db: sqlite3.Connection, items: Sequence[Finish]
) -> list[None]:
    """What came, and the final answers among it."""
    now = clock()
    final = [item for item in items if item.answer is not None]
    packed = {(item.asked.key, item.n): pack(item.response.body) for item in items}
    kept = _first_answers(db, now, pack, final, packed)
    rows = []
    for item in items:
        response, made = item.response, item.outcome
        # The answer's own body is not kept twice; a stream is, beside what was assembled from it.
        moved = item.asked.key in kept and item.answer is response
        body = None if moved else packed[item.asked.key, item.n]
        rows.append(
            (
                *(
                    item.asked.key,
                    item.n,
                    now,
                    now,
                    response.status,
                    json.dumps(dict(response.headers)),
                    body,
                ),
                *(item.problem, made and made.action, made and made.detail, made and made.generation_id),
                *(made and made.cost_usd, made and made.cost_source, item.asked.identity),
            )
        )
    sql = f"INSERT INTO attempts ({_FINISHED_COLUMNS}) VALUES"
    _insert(db, sql, rows, f"ON CONFLICT (key, n) DO UPDATE SET {_ON_FINISH}")
    release(owner, db, [item.asked.key for item in final])
    return [None] * len(items)


def _first_answers(
    db: sqlite3.Connection,
    now: float,
    pack: Pack,
    final: Sequence[Finish],
    packed: dict[tuple[str, int], bytes],
) -> set[str]:
    """Insert answers where there is none; the keys of those that were inserted."""
    if not final:
        return set()
    keys = json.dumps([item.asked.key for item in final])
    known = _column(db, "SELECT json_group_array(key) FROM responses WHERE key IN", keys)
    rows = []
    fresh: set[str] = set()
    for item in final:
        asked, answer, made = item.asked, item.answer, item.outcome
        if asked.key in known or asked.key in fresh or answer is None or made is None:
            continue
        fresh.add(asked.key)
        body = packed[asked.key, item.n] if answer is item.response else pack(answer.body)
        rows.append(_answer_row(asked, item.n, answer, body, made, now, pack))
    _insert(db, f"INSERT INTO responses ({_ANSWER_COLUMNS}) VALUES", rows)
    return fresh


def _answer_row(
    asked: Asked, n: int, answer: Response, body: bytes, made: Outcome, now: float, pack: Pack
) -> tuple[Any, ...]:
    return (
        *(asked.key, asked.identity, asked.path, pack(asked.text.encode()), n, answer.status),
        *(json.dumps(dict(answer.headers)), body, made.generation_id, made.cost_usd, made.cost_source, now),
        *(asked.sample, made.model, made.prompt_tokens, made.completion_tokens),
    )


def book(db: sqlite3.Connection, items: Sequence[tuple[str, int, float]]) -> list[None]:
    """Costs that were unknown."""
    for key, n, cost in items:
        known = (cost, "generation", key, n)
        db.execute("UPDATE attempts SET cost_usd = ?, cost_source = ? WHERE key = ? AND n = ?", known)
        db.execute("UPDATE responses SET cost_usd = ?, cost_source = ? WHERE key = ? AND attempt = ?", known)
    return [None] * len(items)


def release(owner: str, db: sqlite3.Connection, keys: Sequence[str]) -> list[None]:
    """Let others ask for these keys."""
    db.execute(
        "DELETE FROM leases WHERE owner = ? AND key IN (SELECT value FROM json_each(?))",
        (owner, json.dumps(list(keys))),
    )
    return [None] * len(keys)


def release_all(db: sqlite3.Connection, owners: Sequence[str]) -> list[None]:
    """Give up every lease of these owners."""
    db.executemany("DELETE FROM leases WHERE owner = ?", [(owner,) for owner in owners])
    return [None] * len(owners)


def _column(db: sqlite3.Connection, select: str, keys: str) -> set[str]:
    """One row with a JSON list: fetching row by row would give the interpreter lock away at each."""
    (found,) = db.execute(f"{select} (SELECT value FROM json_each(?))", (keys,)).fetchone()
    return set(json.loads(found))


def _insert(db: sqlite3.Connection, sql: str, rows: Sequence[tuple[Any, ...]], then: str = "") -> None:
    """Many rows in few statements."""
    for part in _parts(rows):
        marks = "(" + ", ".join("?" * len(part[0])) + ")"
        values = [value for row in part for value in row]
        db.execute(f"{sql} {', '.join([marks] * len(part))} {then}", values)


def _parts(rows: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    at = 0
    for size in _ROWS:
        while len(rows) - at >= size:
            yield rows[at : at + size]
            at += size
