"""A store file -> one portable file for a colleague (export); such a file -> new answers in a store (import).

The file is a store too, without leases and in one piece, so it has the store's schema and version.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.errors import StageError
from pipeline.io.files import atomic
from pipeline.io.store_check import (
    CHECKED,
    IMPORTED,
    Damaged,
    check,
    is_simulated,
    opened,
    unpack,
)
from pipeline.io.store_file import SCHEMA_VERSION, connect, prepare

_AT_ONCE = 500
"""Rows of a transaction: a build that writes at the same time never waits long."""


# --- export ------------------------------------------------------------------------------------


def export(
    path: Path, file: Path, *, identity: str = "", since: float | None = None, attempts: bool = False
) -> tuple[int, int]:
    """Copy answers whose identity begins so and that were stored since then; (answers, attempts) copied.

    Raises StageError when `file` exists or nothing matches.
    """
    if file.exists():
        raise StageError(f"{file}: is there already and is not overwritten; name another file")
    with opened(path) as db, atomic(file) as part:
        out = _prepared(part)
        out.execute("PRAGMA journal_mode = DELETE")  # no -wal beside the file: it travels alone
        out.close()
        db.execute("ATTACH DATABASE ? AS out", (str(part),))
        db.execute("BEGIN")  # one view of the store, whoever writes meanwhile
        wanted = "substr(identity, 1, length(?)) = ? AND created >= ?"
        which = (identity, identity, since or 0.0)
        answers = _copy(db, "responses", wanted, which)
        of_them = "key IN (SELECT key FROM out.responses)"
        copied = _copy(db, "attempts", of_them, ()) if attempts else 0
        if not attempts:
            db.execute(f"UPDATE out.responses SET attempt = {IMPORTED}")
        db.execute("COMMIT")
        db.execute("DETACH DATABASE out")
        if not answers:
            raise StageError(f"{path}: no answer matches, so no file was written")
    return answers, copied


def _prepared(path: Path) -> sqlite3.Connection:
    db = connect(path)
    prepare(db, path)
    return db


def _copy(db: sqlite3.Connection, table: str, where: str, values: tuple[Any, ...]) -> int:
    # By name: in a store that came from an older schema the columns stand in another order.
    columns = ", ".join(_columns(db, table))
    statement = f"INSERT INTO out.{table} ({columns}) SELECT {columns} FROM main.{table} WHERE {where}"
    return db.execute(statement, values).rowcount


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA main.table_info({table})")]


# --- import ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Adopted:
    """A final answer that was bought elsewhere, as it goes into `responses`; blobs are zstd frames."""

    key: str
    identity: str
    path: str
    request: bytes
    sample: int
    status: int | None
    headers: str
    body: bytes
    model: str | None
    generation_id: str | None
    cost_usd: float | None
    cost_source: str
    prompt_tokens: int | None
    completion_tokens: int | None
    created: float


@dataclass(slots=True)
class Imported:
    """What came of an import. `elsewhere`: answers of the simulator for the real store, or the reverse."""

    seen: int = 0
    new: int = 0
    elsewhere: int = 0
    damaged: Counter[str] = field(default_factory=Counter)
    """How many, by what is wrong with them."""


Offer = tuple[str, Callable[[], Adopted]]
"""A key, and its answer, which is unpacked only if the store lacks it; that may raise Damaged."""

_COLUMNS = tuple(Adopted.__dataclass_fields__)
_ANSWERS = f"SELECT {', '.join(_COLUMNS)} FROM responses"
_CHECKED = len(CHECKED.split(","))  # they come first


def adopt(path: Path, offers: Iterable[Offer], *, simulator: bool) -> Imported:
    """Put answers into the store, which is made if need be. Those that it has stand."""
    found, waiting = Imported(), list[tuple[Any, ...]]()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        db = _prepared(path)
    except sqlite3.Error as error:
        raise StageError(f"{path}: can't be used as a store ({error})") from None
    try:
        for key, unpacked in offers:
            found.seen += 1
            if db.execute("SELECT 1 FROM responses WHERE key = ?", (key,)).fetchone():
                continue
            try:
                answer = unpacked()
            except Damaged as damage:
                found.damaged[str(damage)] += 1
                continue
            if is_simulated(answer.identity) is not simulator:
                found.elsewhere += 1
                continue
            waiting.append(tuple(getattr(answer, name) for name in _COLUMNS))
            if len(waiting) == _AT_ONCE:
                found.new += _insert(db, waiting)
        found.new += _insert(db, waiting)
    except sqlite3.Error as error:
        raise StageError(f"{path}: can't be written ({error}); what was taken before is kept") from None
    finally:
        db.close()
    return found


def _insert(db: sqlite3.Connection, waiting: list[tuple[Any, ...]]) -> int:
    statement = (
        f"INSERT INTO responses ({', '.join(_COLUMNS)}, attempt) "
        f"VALUES ({', '.join('?' * len(_COLUMNS))}, {IMPORTED}) ON CONFLICT (key) DO NOTHING"
    )
    db.execute("BEGIN IMMEDIATE")
    new = db.executemany(statement, waiting).rowcount
    db.execute("COMMIT")
    waiting.clear()
    return max(0, new)


def import_file(path: Path, source: Path, *, simulator: bool) -> Imported:
    """Take the answers of an exported file that the store lacks, each checked first.

    Raises StageError when the file is no store.
    """
    if path.exists() and source.samefile(path):
        raise StageError(f"{source}: is the store itself; name a file that `store export` wrote")
    with _source(source) as db:
        broken: list[str] = []
        found = adopt(path, _offers(db, broken), simulator=simulator)
    found.damaged.update(broken)
    return found


def _offers(db: sqlite3.Connection, broken: list[str]) -> Iterator[Offer]:
    """Every row; where the file itself breaks off, that is noted and what came before is kept."""
    cursor = db.execute(_ANSWERS)
    while True:
        try:
            row = cursor.fetchone()
        except sqlite3.DatabaseError as error:
            broken.append(f"the file can't be read further ({error})")
            return
        if row is None:
            return
        yield row[0], partial(_checked, row)


def _checked(row: tuple[Any, ...]) -> Adopted:
    check(unpack(row[:_CHECKED]))
    return Adopted(*row)


@contextmanager
def _source(source: Path) -> Iterator[sqlite3.Connection]:
    """The file, read only; one of an older schema is brought up to date in a copy."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        try:
            db = stack.enter_context(_read_only(source))
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA_VERSION:
                raise StageError(
                    f"{source}: has schema {version}, this program knows {SCHEMA_VERSION}: update it"
                )
            if 0 < version < SCHEMA_VERSION:
                copy = Path(folder) / "copy.sqlite"
                shutil.copyfile(source, copy)
                db = stack.enter_context(opened(copy))
            db.execute(_ANSWERS).close()
        except sqlite3.Error as error:
            raise StageError(f"{source}: is no whole file of `store export` ({error})") from None
        yield db


def _read_only(file: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True))
