"""Writes of one kind, many at a time -> a few SQL statements; what each table's rows go through.

A request's life: `start` (lease and first attempt), perhaps `begin` (a later attempt), `finish` (what came,
what was made of it and, if final, the answer). Runs in the store's writing process, so it knows nothing of
the rest of the program, and what is written comes as plain tuples.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from pipeline.io.lease_owner import may_live

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
_BEGIN = "INSERT INTO attempts (key, n, started, avoided, identity, bound_usd) VALUES"


class Claim(StrEnum):
    """What came of the wish to ask for a key."""

    WON = "won"
    TAKEN = "taken"
    ANSWERED = "answered"


class LeaseLost(Exception):
    """Another process has taken over this key; start again before sending."""


class Writing(NamedTuple):
    """Who writes, and when. `pack` compresses many texts in one call."""

    owner: str
    lease_s: float
    now: float
    pack: Callable[[Sequence[bytes]], list[bytes]]


class Start(NamedTuple):
    """The wish to send."""

    key: str
    identity: str
    avoided: str | None
    bound_usd: float | None


class Started(NamedTuple):
    """`n`: the attempt that goes out, 0 if none was begun."""

    claim: Claim
    n: int = 0


class Outcome(NamedTuple):
    """What was made of one exchange. `cost_source` as in pipeline.core.classify.Verdict."""

    action: str
    detail: str
    generation_id: str | None
    cost_usd: float | None
    cost_source: str
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Raw(NamedTuple):
    """What came; `headers` is JSON."""

    status: int | None
    headers: str
    body: bytes


class Finish(NamedTuple):
    """The end of an exchange. `answer` is final, and `raw` itself unless it was assembled from a stream."""

    key: str
    identity: str
    path: str
    sample: int
    request: str
    n: int
    raw: Raw
    problem: str | None
    outcome: Outcome | None
    answer: Raw | None


def start(writing: Writing, db: sqlite3.Connection, items: Sequence[Start]) -> list[Started]:
    """Leases for what nobody has answered or is asking; a first attempt for what was never asked."""
    now = writing.now
    keys = json.dumps([item.key for item in items])
    done = answered(db, [item.key for item in items])
    held = db.execute(
        "SELECT key, owner FROM leases WHERE expires > ? AND key IN (SELECT value FROM json_each(?))",
        (now, keys),
    ).fetchall()
    taken = {key for key, holder in held if may_live(holder)}
    asked_before = _column(db, "SELECT json_group_array(DISTINCT key) FROM attempts WHERE key IN", keys)
    results: list[Started] = []
    won: list[Start] = []
    first: list[Start] = []
    for item in items:
        if item.key in done:
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
    leases = [(item.key, writing.owner, now + writing.lease_s) for item in won]
    _insert(db, "REPLACE INTO leases VALUES", leases)
    _insert(db, _BEGIN, [(item.key, 1, now, item.avoided, item.identity, item.bound_usd) for item in first])
    return results


def begin(writing: Writing, db: sqlite3.Connection, items: Sequence[Start]) -> list[int | Exception]:
    """One more attempt for those that still hold their lease."""
    numbers: list[int | Exception] = []
    for item in items:  # rare: only after a failed attempt
        (lost,) = hold(writing, db, [item.key])
        if lost is not None:
            numbers.append(lost)
            continue
        (last,) = db.execute("SELECT max(n) FROM attempts WHERE key = ?", (item.key,)).fetchone()
        n = 1 + (last or 0)
        _insert(db, _BEGIN, [(item.key, n, writing.now, item.avoided, item.identity, item.bound_usd)])
        numbers.append(n)
    return numbers


def hold(writing: Writing, db: sqlite3.Connection, keys: Sequence[str]) -> list[Exception | None]:
    """Renew these leases; LeaseLost for those that are another's by now."""
    held = "UPDATE leases SET expires = ? WHERE key = ? AND owner = ?"
    leases = [(writing.now + writing.lease_s, key, writing.owner) for key in keys]
    return [None if db.execute(held, lease).rowcount == 1 else LeaseLost(lease[1]) for lease in leases]


def withdraw(writing: Writing, db: sqlite3.Connection, items: Sequence[tuple[str, int]]) -> list[None]:
    """Attempts that were noted and did not go out."""
    db.executemany("DELETE FROM attempts WHERE key = ? AND n = ? AND ended IS NULL", items)
    return [None] * len(items)


def finish(writing: Writing, db: sqlite3.Connection, items: Sequence[Finish]) -> list[None]:
    """What came, and the final answers among it, where there is none yet."""
    fresh = _first_answers(db, items)
    made = [item for item in fresh if item.answer is not item.raw]  # assembled from streams
    texts = [item.raw.body for item in items]
    texts += [item.request.encode() for item in fresh]
    texts += [item.answer.body for item in made if item.answer is not None]
    packed = iter(writing.pack(texts))
    bodies = {id(item): next(packed) for item in items}
    requests = {id(item): next(packed) for item in fresh}
    answers = bodies | {id(item): next(packed) for item in made}
    rows = [_answer_row(item, requests[id(item)], answers[id(item)], writing.now) for item in fresh]
    _insert(db, f"INSERT INTO responses ({_ANSWER_COLUMNS}) VALUES", rows)
    kept = dict.fromkeys(id(item) for item in fresh if item.answer is item.raw)  # not kept twice
    rows = [_attempt_row(item, None if id(item) in kept else bodies[id(item)], writing.now) for item in items]
    sql = f"INSERT INTO attempts ({_FINISHED_COLUMNS}) VALUES"
    _insert(db, sql, rows, f"ON CONFLICT (key, n) DO UPDATE SET {_ON_FINISH}")
    release(writing, db, [item.key for item in items if item.answer is not None])
    return [None] * len(items)


def _first_answers(db: sqlite3.Connection, items: Sequence[Finish]) -> list[Finish]:
    """Those that are final, of requests that have no answer yet: the first one stands."""
    final = {item.key: item for item in reversed(items) if item.answer is not None}
    known = answered(db, final) if final else set()
    return [item for key, item in final.items() if key not in known]


def _answer_row(item: Finish, request: bytes, body: bytes, now: float) -> tuple[Any, ...]:
    answer, made = item.answer, item.outcome
    assert answer is not None
    assert made is not None
    return (
        *(item.key, item.identity, item.path, request, item.n, answer.status, answer.headers, body),
        *(made.generation_id, made.cost_usd, made.cost_source, now),
        *(item.sample, made.model, made.prompt_tokens, made.completion_tokens),
    )


def _attempt_row(item: Finish, body: bytes | None, now: float) -> tuple[Any, ...]:
    raw, made = item.raw, item.outcome
    return (
        *(item.key, item.n, now, now, raw.status, raw.headers, body, item.problem),
        *(made[:5] if made is not None else (None,) * 5),  # action to cost_source
        item.identity,
    )


def book(writing: Writing, db: sqlite3.Connection, items: Sequence[tuple[str, int, float]]) -> list[None]:
    """Costs that were unknown."""
    for key, n, cost in items:
        known = (cost, "generation", key, n)
        db.execute("UPDATE attempts SET cost_usd = ?, cost_source = ? WHERE key = ? AND n = ?", known)
        db.execute("UPDATE responses SET cost_usd = ?, cost_source = ? WHERE key = ? AND attempt = ?", known)
    return [None] * len(items)


def release(writing: Writing, db: sqlite3.Connection, keys: Sequence[str]) -> list[None]:
    """Let others ask for these keys."""
    db.execute(
        "DELETE FROM leases WHERE owner = ? AND key IN (SELECT value FROM json_each(?))",
        (writing.owner, json.dumps(list(keys))),
    )
    return [None] * len(keys)


def release_all(writing: Writing, db: sqlite3.Connection, items: Sequence[None]) -> list[None]:
    """Give up every lease."""
    db.execute("DELETE FROM leases WHERE owner = ?", (writing.owner,))
    return [None] * len(items)


def renew(writing: Writing, db: sqlite3.Connection, items: Sequence[None]) -> list[None]:
    """Keep every lease."""
    lease = (writing.now + writing.lease_s, writing.owner)
    db.execute("UPDATE leases SET expires = ? WHERE owner = ?", lease)
    return [None] * len(items)


HANDLERS: dict[str, Callable[[Writing, sqlite3.Connection, Sequence[Any]], Sequence[Any]]] = {
    handler.__name__: handler
    for handler in (start, begin, hold, withdraw, finish, book, release, release_all, renew)
}


def answered(db: sqlite3.Connection, keys: Iterable[str]) -> set[str]:
    """Those of these keys that have an answer."""
    select = "SELECT json_group_array(key) FROM responses WHERE key IN"
    return _column(db, select, json.dumps(list(keys)))


def _column(db: sqlite3.Connection, select: str, keys: str) -> set[str]:
    """All of them in one row: SQLite is asked once, not once a key."""
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
