"""A project, a server, a disturbance -> what was lost, paid twice and written; for tests and bench alike."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.answers import good_answer, key_of
from tests.chaos.faults import CASES, STREAM_FAULTS
from tests.chaos.project import Done, Project, leftovers
from tests.chaos.server import Stats
from tests.chaos.serving import Server, paid_again, times_asked

Row = dict[str, Any]


@dataclass
class Interrupted:
    """A run that a signal met, and the run that finished the work.

    `out_of_store`: begun and not ended in the store: waiting for a slot, on the wire, or answered and not on
    disk yet. `in_flight`: what the server had not answered yet.
    """

    first: Done
    second: Done
    arrived: int
    in_flight: int
    out_of_store: int
    kept: int
    paid_again: int
    kept_and_asked_again: int
    wrong_rows: int
    leftovers: list[str]
    digest: str
    stopped_after_s: float


def signal_and_finish(
    project: Project, server: Server, *, at: int, signals: tuple[tuple[float, int], ...], **plan: Any
) -> Interrupted:
    """Run, send signals when request `at` has arrived (or later), run again without any."""
    process = project.begin("generate", "one")
    server.plan(**plan, signal_at=at, signals=signals, pid=process.pid)
    first = project.wait(process)
    ended = time.monotonic()
    before = server.stats()
    kept, out = _ended(project.store), _not_ended(project.store)
    server.plan(keep_counts=True, delay_s=(0.0, 0.01))
    second = project.verb("generate", "one")
    assert second.code == 0, second.complaints[-3000:]
    after = server.stats()
    rows = project.rows()
    ours = {row["request_key"]: key_of(json.loads(row["request"])) for row in rows}
    times = times_asked(after)
    again = {ours[key] for key in kept if times[ours[key]] > 1}
    check_integrity(project.store)
    return Interrupted(
        first,
        second,
        arrived=len(before.asked),
        in_flight=len(before.at_signal),
        out_of_store=len(out),
        kept=len(kept),
        paid_again=paid_again(after),
        kept_and_asked_again=len(again),
        wrong_rows=sum(not is_good(row) for row in rows),
        leftovers=[name for name in leftovers(project) if name != "one.parquet"],
        digest=project.digest(),
        stopped_after_s=ended
        - (before.signalled or ended)
        - max((after_s for after_s, _ in signals), default=0.0),
    )


def kill_and_finish(project: Project, server: Server, *, at: int, after_s: float, **plan: Any) -> Interrupted:
    """SIGKILL `after_s` seconds after request `at` has arrived."""
    return signal_and_finish(project, server, at=at, signals=((after_s, signal.SIGKILL),), **plan)


def requests_sent(summary: str) -> int:
    """What the stage's own summary line says."""
    found = re.search(r"(\d[\d,]*) requests sent", summary)
    assert found is not None, summary
    return int(found[1].replace(",", ""))


def is_good(row: Row) -> bool:
    """The row holds the server's answer to its request, all of it."""
    return row["failure"] is None and json.loads(row["body"]) == good_answer(json.loads(row["request"]))


def _ended(store: Path) -> set[str]:
    return _keys(store, "SELECT DISTINCT key FROM attempts WHERE ended IS NOT NULL")


def _not_ended(store: Path) -> set[str]:
    return _keys(store, "SELECT DISTINCT key FROM attempts WHERE ended IS NULL")


def _keys(store: Path, statement: str) -> set[str]:
    if not store.exists():
        return set()
    with closing(sqlite3.connect(store)) as db:
        return {key for (key,) in db.execute(statement)}


def check_integrity(store: Path) -> None:
    """SQLite's own check of the whole file."""
    with closing(sqlite3.connect(store)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# --- faults mixed in ---------------------------------------------------------------------------------


@dataclass
class Mixed:
    """A build with faults: how many runs it took, how rows ended, and what is wrong (nothing, one hopes)."""

    runs: int
    rows: int
    good: int
    endings: Counter[str]
    wrong: list[str]
    stats: Stats


def build_with_faults(
    project: Project, server: Server, reference: list[Row], *, most_runs: int = 3, **plan: Any
) -> Mixed:
    """Run until the stage succeeds, then hold every row against what the server did to its request."""
    server.plan(**plan)
    runs = 0
    while True:
        runs += 1
        done = project.verb("generate", "one")
        if done.code == 0:
            break
        assert runs < most_runs, done.complaints[-3000:]
        assert "run again" in done.error, done.error
    stats = server.stats()
    rows = project.rows()
    hit = {entry.key: entry.served for entry in stats.asked if entry.attempt == 0}
    times = times_asked(stats)
    by_id = {row["row_id"]: row for row in reference}
    wrong, endings, good = [], Counter[str](), 0
    if [row["row_id"] for row in rows] != [row["row_id"] for row in reference]:
        wrong.append("not one row for each prompt")
    for row in rows:
        key = key_of(json.loads(row["request"]))
        fault = hit[key]
        if row == by_id[row["row_id"]]:
            good += 1
            endings["good"] += 1
            complaint = _complaint_of_good(fault, times[key])
        else:
            endings[row["failure"] or "kept"] += 1
            complaint = _complaint_of_other(row, fault, times[key])
        if complaint:
            wrong.append(f"{row['row_id']} ({fault}, asked {times[key]} times): {complaint}")
    return Mixed(runs, len(rows), good, endings, wrong, stats)


def _allowed(fault: str) -> set[str]:
    expect = CASES[fault]["expect"]
    return {expect["action"], *expect.get("also_ok", [])}


def _complaint_of_good(fault: str, times: int) -> str | None:
    """Such a row was asked once, or once more because of a fault after which asking again is right."""
    if fault == "good":
        return None if times == 1 else "a good answer was bought again"
    if fault in STREAM_FAULTS:
        return None if times <= 2 else "asked too often"
    status = CASES[fault]["http"]["status"]
    # A 402 of one row is given up by the run, and the next run asks again: credit may have come.
    again_is_right = _allowed(fault) & {"retry", "reroute"} or status == 402
    return None if again_is_right and times == 2 else "an answer that was final was bought again"


def _complaint_of_other(row: Row, fault: str, times: int) -> str | None:
    """Such a row holds what the fault was, unchanged, and nobody asked again."""
    if fault == "good" or fault in STREAM_FAULTS:
        return f"not the server's answer: {row['failure']} {row['failure_detail']}"
    body = CASES[fault]["http"].get("body")
    if body is None or "retry" in _allowed(fault):
        return "a passing fault became final"
    if not row["body"] or not _same(row["body"], body):
        return "the row holds another body than the one that was served"
    if row["failure"] is None and not _allowed(fault) & {"ok", "repair", "ambiguous", "reroute"}:
        return "a fault was taken for an answer"
    return None if times == 1 else "an answer that was final was bought again"


def _same(kept: str, sent: str) -> bool:
    """A stream may be kept assembled."""
    return kept == sent or (sent.startswith((":", "data:")) and kept.startswith("{"))


# --- a limit in dollars ------------------------------------------------------------------------------


@dataclass
class Spent:
    """A run with a limit: how it ended, and what the server charged."""

    done: Done
    bill_usd: float
    requests: int
    most_in_flight: int


def build_within(project: Project, server: Server, limit_usd: float, **plan: Any) -> Spent:
    """One run with `runtime.max_cost_usd`."""
    project.runtime(max_cost_usd=limit_usd)
    server.plan(**plan)
    done = project.verb("generate", "one")
    stats = server.stats()
    return Spent(done, stats.bill_usd, len(stats.asked), stats.most_in_flight)
