"""A store file -> every fault in it (verify); a smaller store that answers the same (gc)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import StageError
from pipeline.io.lease_owner import may_live
from pipeline.io.store_check import (
    CHECKED,
    IMPORTED,
    Damaged,
    check,
    check_headers,
    decompressed,
    opened,
    unpack,
)
from pipeline.io.store_stats import leases, size_of
from pipeline.records import Action

DAY_S = 86_400.0
_AT_ONCE = 500
"""Rows of a transaction: a build that writes at the same time never waits long."""
_FAILED = tuple(action.value for action in Action if not action.usable and action is not Action.AMBIGUOUS)


# --- verify ------------------------------------------------------------------------------------


def count_rows(path: Path) -> int:
    """How many rows `verify` steps through. Raises StageError when there is no store."""
    with opened(path) as db:
        (rows,) = db.execute("SELECT (SELECT count(*) FROM responses) + (SELECT count(*) FROM attempts)")
        return int(rows[0])


def verify(path: Path, step: Callable[[], None]) -> Iterator[str]:
    """Each fault as one line that begins with where it is. `step` is called after each row.

    One row is in memory at a time. Raises StageError when the file is no store at all.
    """
    with opened(path) as db:
        yield from _integrity(db)
        try:
            yield from _answers(db, step)
            yield from _attempts(db, step)
            yield from _leases(db)
        except sqlite3.DatabaseError as broken:
            yield f"{path}: can't be read further ({broken})"


def _integrity(db: sqlite3.Connection) -> Iterator[str]:
    try:
        for (line,) in db.execute("PRAGMA integrity_check"):
            if line != "ok":
                yield f"integrity_check: {' '.join(line.split())}"
    except sqlite3.DatabaseError as broken:
        yield f"integrity_check: {broken}"


def _answers(db: sqlite3.Connection, step: Callable[[], None]) -> Iterator[str]:
    own = "SELECT coalesce(outcome, 'unjudged') FROM attempts a WHERE a.key = r.key AND a.n = r.attempt"
    for *row, attempt, outcome in db.execute(f"SELECT {CHECKED}, attempt, ({own}) FROM responses r"):
        where = f"answer {row[0]}"
        try:
            check(unpack(tuple(row)))
        except Damaged as damage:
            yield f"{where}: {damage}"
        if outcome is None and attempt != IMPORTED:
            yield f"{where}: its attempt {attempt} is not there"
        elif outcome == "unjudged":
            yield f"{where}: its attempt {attempt} was never judged"
        step()


def _attempts(db: sqlite3.Connection, step: Callable[[], None]) -> Iterator[str]:
    columns = "key, n, started, ended, status, headers, body, outcome"
    for key, n, started, ended, status, headers, body, outcome in db.execute(
        f"SELECT {columns} FROM attempts"
    ):
        where = f"attempt {key} {n}"
        try:
            if body is not None:
                decompressed(body, "body")
            if headers is not None:
                check_headers(status, headers)
        except Damaged as damage:
            yield f"{where}: {damage}"
        if ended is None and (outcome is not None or body is not None):
            yield f"{where}: has an answer and no end"
        elif ended is not None and ended < started:
            yield f"{where}: ended before it started"
        step()


def _leases(db: sqlite3.Connection) -> Iterator[str]:
    for held in leases(db):
        if not held["alive"]:
            yield f"leases: {held['count']} of a dead owner ({held['owner']}); `store gc` frees them"


# --- gc ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Swept:
    """What gc took away. `in_use`: leases that others hold, so that the file was not compacted."""

    leases: int
    bodies: int
    stale: int
    removed: int
    before: int
    after: int
    in_use: int


@dataclass(frozen=True, slots=True)
class Paid:
    """Answers that a person asked to remove, and what they cost (US dollars, where known)."""

    keys: tuple[str, ...]
    usd: float


def find_paid(path: Path, prefix: str, older_than_days: float) -> Paid:
    """Answers whose identity begins with `prefix`, stored at least so many days ago."""
    matching = "substr(identity, 1, length(?)) = ? AND created <= ?"
    before = time.time() - older_than_days * DAY_S
    with opened(path) as db:
        rows = db.execute(
            f"SELECT key, coalesce(cost_usd, 0.0) FROM responses WHERE {matching}", (prefix, prefix, before)
        ).fetchall()
    return Paid(tuple(key for key, _ in rows), sum(usd for _, usd in rows))


def gc(path: Path, *, current: Collection[str] | None = None, paid: Paid | None = None) -> Swept:
    """Drop what no build needs, then compact the file.

    Always: leases of the dead, raw bodies of failed attempts whose request has an answer. `current`
    (the simulator's store): answers of all other identities. `paid`: these answers too.
    Raises StageError if answers are to go while another process holds leases: it may be about to read them.
    """
    with opened(path) as db:
        before = size_of(path)
        freed = _free_leases(db)
        in_use = int(db.execute("SELECT count(*) FROM leases").fetchone()[0])
        if in_use and (paid is not None or current is not None):
            raise StageError(f"{path}: {in_use} leases are held by a run; wait for it, then remove answers")
        stale = _drop(db, _stale(db, current)) if current is not None else 0
        removed = _drop(db, paid.keys) if paid is not None else 0
        bodies = _drop_bodies(db)
        if not in_use:
            db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return Swept(freed, bodies, stale, removed, before, size_of(path), in_use)


def _free_leases(db: sqlite3.Connection) -> int:
    now = time.time()
    held = db.execute("SELECT key, owner, expires FROM leases").fetchall()
    dead = [(key, owner, expires) for key, owner, expires in held if expires <= now or not may_live(owner)]
    # A lease that was renewed or taken over since it was read is another's and stays.
    return _each(db, ("DELETE FROM leases WHERE key = ? AND owner = ? AND expires = ?",), dead)


def _stale(db: sqlite3.Connection, current: Collection[str]) -> list[str]:
    """Keys of answers, and of requests without one, that were put to somebody else."""
    asked = "SELECT key, identity FROM responses UNION SELECT key, identity FROM attempts"
    return [key for key, identity in db.execute(asked) if identity not in current]


def _drop(db: sqlite3.Connection, keys: Collection[str]) -> int:
    """Answers with their attempts: a raw stream that stayed in an attempt would bring its answer back."""
    statements = ("DELETE FROM attempts WHERE key = ?", "DELETE FROM responses WHERE key = ?")
    return _each(db, statements, [(key,) for key in keys])


def _drop_bodies(db: sqlite3.Connection) -> int:
    """Failed exchanges, but for those whose cost may still have to be found out from the body's own id."""
    marks = ", ".join("?" * len(_FAILED))
    rows = db.execute(
        "SELECT a.rowid FROM attempts a JOIN responses r ON r.key = a.key WHERE a.body IS NOT NULL "
        f"AND a.n <> r.attempt AND a.outcome IN ({marks}) "
        "AND NOT (coalesce(a.cost_source, 'unknown') = 'unknown' AND a.generation_id IS NULL)",
        _FAILED,
    ).fetchall()
    return _each(db, ("UPDATE attempts SET body = NULL WHERE rowid = ?",), rows)


def _each(db: sqlite3.Connection, statements: Sequence[str], rows: Sequence[tuple[object, ...]]) -> int:
    """Run the statements for every row, some hundred in a transaction; rows that the last one changed."""
    changed = 0
    for start in range(0, len(rows), _AT_ONCE):
        db.execute("BEGIN IMMEDIATE")
        for statement in statements:
            last = db.executemany(statement, rows[start : start + _AT_ONCE]).rowcount
        changed += last
        db.execute("COMMIT")
    return changed
