"""A store file -> what it holds: answers, attempts, cost, tokens, leases, size; as one JSON-able dict."""

from __future__ import annotations

import sqlite3
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.io.lease_owner import may_live
from pipeline.io.store_check import IMPORTED, opened

# Money is spent by attempts; an answer that was imported has none here and brings its own cost.
_COST = f"""
WITH spent AS (
  SELECT a.identity AS identity, coalesce(r.model, '') AS model,
         coalesce(a.cost_source, 'unknown') AS source, a.cost_usd AS usd, a.bound_usd AS bound
  FROM attempts a LEFT JOIN responses r ON r.key = a.key
  UNION ALL
  SELECT identity, coalesce(model, ''), cost_source, cost_usd, NULL FROM responses
  WHERE attempt = {IMPORTED})
SELECT identity, model, source, count(*), coalesce(sum(usd), 0.0), count(*) - count(usd),
       sum(CASE WHEN source = 'unknown' THEN bound END),
       sum(source = 'unknown' AND bound IS NULL)
FROM spent GROUP BY identity, model, source ORDER BY identity, model, source
"""


def stats(path: Path) -> dict[str, Any]:
    """Raises StageError when there is no store. Costs in US dollars, sizes in bytes, times in UTC."""
    with opened(path) as db:
        db.execute("BEGIN")  # one view of the store, whoever writes meanwhile
        found = {
            "path": str(path),
            "bytes": size_of(path),
            **_answers(db),
            "attempts": _attempts(db),
            "by_endpoint": _by_endpoint(db),
            "leases": leases(db),
        }
        db.execute("COMMIT")
    return found


def size_of(path: Path) -> int:
    """Bytes on disk, with what SQLite has not yet written back into the file itself."""
    files = (path, path.with_name(f"{path.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def leases(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """One entry an owner. `alive`: its requests may still be out (pipeline.io.lease_owner)."""
    now = time.time()
    rows = db.execute("SELECT owner, count(*), max(expires) FROM leases GROUP BY owner ORDER BY owner")
    return [
        {"owner": owner, "count": count, "alive": expires > now and may_live(owner)}
        for owner, count, expires in rows
    ]


def _answers(db: sqlite3.Connection) -> dict[str, Any]:
    answers, oldest, newest = _one(db, "SELECT count(*), min(created), max(created) FROM responses")
    unanswered = "SELECT count(DISTINCT key) FROM attempts WHERE key NOT IN (SELECT key FROM responses)"
    imported = f"SELECT count(*) FROM responses WHERE attempt = {IMPORTED}"
    return {
        "answers": answers,
        "imported": _one(db, imported)[0],
        "unanswered": _one(db, unanswered)[0],
        "oldest": _moment(oldest),
        "newest": _moment(newest),
    }


def _attempts(db: sqlite3.Connection) -> dict[str, int]:
    """By outcome. `unknown`: sent, and nothing more is recorded (in flight, or its run was killed)."""
    outcome = "coalesce(outcome, CASE WHEN ended IS NULL THEN 'unknown' ELSE 'received' END)"
    rows = db.execute(f"SELECT {outcome}, count(*) FROM attempts GROUP BY 1 ORDER BY 2 DESC, 1")
    return dict(rows.fetchall())


def _by_endpoint(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Answers, tokens and cost of each identity and model."""
    found: dict[tuple[str, str], dict[str, Any]] = {}

    def entry(identity: str, model: str) -> dict[str, Any]:
        empty = {"answers": 0, "prompt_tokens": 0, "completion_tokens": 0, "cost": {}}
        return found.setdefault((identity, model), {"identity": identity, "model": model, **empty})

    tokens = (
        "SELECT identity, coalesce(model, ''), count(*), coalesce(sum(prompt_tokens), 0), "
        "coalesce(sum(completion_tokens), 0) FROM responses GROUP BY 1, 2 ORDER BY 1, 2"
    )
    for identity, model, answers, prompt, completion in db.execute(tokens):
        counts = {"answers": answers, "prompt_tokens": prompt, "completion_tokens": completion}
        entry(identity, model).update(counts)
    for identity, model, source, count, usd, unpriced, bound, unbounded in db.execute(_COST):
        cost = {"count": count, "usd": usd, "unpriced": unpriced}
        if source == "unknown":
            cost |= {"bound_usd": bound or 0.0, "without_bound": unbounded}
        entry(identity, model)["cost"][source] = cost
    return list(found.values())


def _one(db: sqlite3.Connection, statement: str) -> tuple[Any, ...]:
    row: tuple[Any, ...] = db.execute(statement).fetchone()
    return row


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
