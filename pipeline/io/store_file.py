"""Path -> an open store file with its tables made, or a clear refusal."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from pipeline.errors import GenerationError

SCHEMA_VERSION = 1
_BUSY_S = 60.0
_SCHEMA = """
CREATE TABLE responses (
  key TEXT PRIMARY KEY, identity TEXT NOT NULL, path TEXT NOT NULL, request BLOB NOT NULL,
  attempt INTEGER NOT NULL, status INTEGER, headers TEXT NOT NULL, body BLOB NOT NULL,
  generation_id TEXT, cost_usd REAL, cost_source TEXT NOT NULL, created REAL NOT NULL);
CREATE TABLE attempts (
  key TEXT NOT NULL, n INTEGER NOT NULL, started REAL NOT NULL, ended REAL, avoided TEXT,
  status INTEGER, headers TEXT, body BLOB, problem TEXT,
  outcome TEXT, detail TEXT, generation_id TEXT, cost_usd REAL, cost_source TEXT,
  PRIMARY KEY (key, n));
CREATE TABLE leases (key TEXT PRIMARY KEY, owner TEXT NOT NULL, expires REAL NOT NULL);
"""


def connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    # FULL: a committed answer survives a power cut too; batches make the sync cheap.
    db.execute("PRAGMA synchronous = FULL")
    return db


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file, or check that this program understands those it finds."""
    _enter_wal(db)
    db.execute("BEGIN IMMEDIATE")  # two processes may meet at a new file
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise GenerationError(
                f"{path}: the store has schema {version}, this program knows {SCHEMA_VERSION}: update it, "
                "or name another file in $EXACTOK_STORE"
            )
        if version == 0:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        db.execute("ROLLBACK")
        db.close()
        raise
    db.execute("COMMIT")


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
