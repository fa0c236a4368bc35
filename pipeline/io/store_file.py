"""Path -> an open store file with its tables made or brought up to date, or a clear refusal."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

import zstandard

from pipeline.errors import GenerationError

SCHEMA_VERSION = 2
_BUSY_S = 60.0
# What statistics read stands before the bodies: SQLite walks a body's pages to what stands behind it.
_SCHEMA = """
CREATE TABLE responses (
  key TEXT PRIMARY KEY, identity TEXT NOT NULL, path TEXT NOT NULL, sample INTEGER NOT NULL DEFAULT 0,
  attempt INTEGER NOT NULL, status INTEGER, headers TEXT NOT NULL,
  generation_id TEXT, cost_usd REAL, cost_source TEXT NOT NULL, created REAL NOT NULL,
  model TEXT, prompt_tokens INTEGER, completion_tokens INTEGER,
  request BLOB NOT NULL, body BLOB NOT NULL);
CREATE TABLE attempts (
  key TEXT NOT NULL, n INTEGER NOT NULL, started REAL NOT NULL, ended REAL, avoided TEXT,
  status INTEGER, headers TEXT, body BLOB, problem TEXT,
  outcome TEXT, detail TEXT, generation_id TEXT, cost_usd REAL, cost_source TEXT,
  identity TEXT NOT NULL DEFAULT '', bound_usd REAL,
  PRIMARY KEY (key, n));
CREATE TABLE leases (key TEXT PRIMARY KEY, owner TEXT NOT NULL, expires REAL NOT NULL);
"""
_FROM_1 = """
ALTER TABLE responses ADD COLUMN sample INTEGER NOT NULL DEFAULT 0;
ALTER TABLE responses ADD COLUMN model TEXT;
ALTER TABLE responses ADD COLUMN prompt_tokens INTEGER;
ALTER TABLE responses ADD COLUMN completion_tokens INTEGER;
ALTER TABLE attempts ADD COLUMN identity TEXT NOT NULL DEFAULT '';
ALTER TABLE attempts ADD COLUMN bound_usd REAL;
UPDATE attempts SET identity = responses.identity FROM responses WHERE responses.key = attempts.key;
"""


def connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    # FULL: a committed answer survives a power cut too; batches make the sync cheap.
    db.execute("PRAGMA synchronous = FULL")
    return db


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file, migrate older ones, refuse newer ones."""
    _enter_wal(db)
    if db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION:
        return
    db.execute("BEGIN IMMEDIATE")  # two processes may meet at a new file
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise GenerationError(
                f"{path}: the store has schema {version}, this program knows {SCHEMA_VERSION}: update it, "
                "or name another file in $EXACTOK_STORE"
            )
        if version == 0:
            _run(db, _SCHEMA)
        if version == 1:
            _run(db, _FROM_1)
            _count_tokens(db)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        db.execute("ROLLBACK")
        db.close()
        raise
    db.execute("COMMIT")


def _run(db: sqlite3.Connection, script: str) -> None:
    """Not `executescript`, which would commit the transaction that this runs in."""
    for statement in script.split(";"):
        db.execute(statement)


def _count_tokens(db: sqlite3.Connection) -> None:
    """Model and counts of every answer of schema 1, read from its body.

    A damaged row goes without: it must not keep the others from being read, and `store verify` names it.
    """
    from pipeline.core.answer import model_and_counts  # the store's process, which needs neither, starts
    from pipeline.core.classify import classify  # in half the time without them

    unpack = zstandard.ZstdDecompressor().decompress
    rows = db.execute("SELECT key, status, headers, request, body FROM responses")
    for key, status, headers, request, body in rows:
        try:
            verdict = classify(status, json.loads(headers), unpack(body), json.loads(unpack(request)))
        except (zstandard.ZstdError, ValueError):
            continue
        db.execute(
            "UPDATE responses SET model = ?, prompt_tokens = ?, completion_tokens = ? WHERE key = ?",
            (*model_and_counts(verdict.body), key),
        )


def _enter_wal(db: sqlite3.Connection) -> None:
    """The switch needs the file alone and SQLite does not wait for that, so it is tried for a while."""
    for _ in range(200):
        try:
            if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
                return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
        time.sleep(0.05)
    raise sqlite3.OperationalError("WAL is not available here; is it a network file system?")
