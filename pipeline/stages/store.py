"""The store, for people: what it holds, whether it is sound, ways in and out of it -> a few lines."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from pipeline.core.requests import endpoint_identity
from pipeline.errors import StageError
from pipeline.io import store_care, store_committed, store_exchange, store_stats
from pipeline.io.conf import load_runtime
from pipeline.io.store_exchange import Imported
from pipeline.io.store_location import store_path

_SHOWN = 20
"""Faults that are printed one by one; the rest is a count."""
_LINE_EVERY_S = 10.0


def _path(root: Path, simulator: bool) -> Path:
    return store_path(root, load_runtime(root).store, simulator=simulator)


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


# --- stats -------------------------------------------------------------------------------------


def stats(root: Path, console: Console, as_json: bool = False, *, simulator: bool = False) -> None:
    """One screen, or JSON. Raises StageError when there is no store."""
    found = store_stats.stats(_path(root, simulator))
    if as_json:
        _say(console, json.dumps(found, indent=1))
        return
    _say(console, f"store     {found['path']}, {_size(found['bytes'])}")
    since = f", {found['oldest']} to {found['newest']}" if found["answers"] else ""
    _say(console, f"answers   {found['answers']:,} ({found['imported']:,} imported){since}")
    _say(console, f"requests  {found['unanswered']:,} without an answer")
    outcomes = ", ".join(f"{count:,} {name}" for name, count in found["attempts"].items())
    _say(console, f"attempts  {outcomes or 'none'}")
    held = [f"{one['count']:,} of {_owner(one)}" for one in found["leases"]]
    _say(console, f"leases    {', '.join(held) or 'none'}")
    for entry in found["by_endpoint"]:
        usd = sum(cost["usd"] for cost in entry["cost"].values())
        tokens = f"{entry['prompt_tokens']:,} + {entry['completion_tokens']:,} tokens"
        model = entry["model"] or ("no model named" if entry["answers"] else "requests without an answer")
        _say(console, f"\n{entry['identity'] or 'unknown endpoint'}, {model}")
        _say(console, f"  {entry['answers']:,} answers, {tokens}, ${usd:.4f} ({_sources(entry['cost'])})")


def _owner(lease: Mapping[str, Any]) -> str:
    """Machine and process; the rest of the name only tells stores of one process apart."""
    alive = "alive" if lease["alive"] else "dead, `store gc` frees them"
    return f"{lease['owner'].rpartition('/')[0]} ({alive})"


def _sources(costs: Mapping[str, Mapping[str, Any]]) -> str:
    """How each part of a cost is known, and the most that an unknown one can be."""
    parts = [f"{cost['usd']:.4f} {source}" for source, cost in costs.items() if cost["usd"]]
    unpriced = sum(cost["unpriced"] for source, cost in costs.items() if source != "unknown")
    if unpriced:
        parts.append(f"{unpriced:,} without a price")
    unknown = costs.get("unknown")
    if unknown is not None:
        bounds = [f"at most {unknown['bound_usd']:.4f}"] if unknown["bound_usd"] else []
        bounds += [f"{unknown['without_bound']:,} without a bound"] if unknown["without_bound"] else []
        parts.append(f"{unknown['count']:,} unknown ({', '.join(bounds)})")
    return ", ".join(parts) or "free"


# --- verify ------------------------------------------------------------------------------------


def verify(root: Path, console: Console, *, simulator: bool = False) -> None:
    """One line a fault; how far it is, on stderr. Raises StageError when there is any fault, or no store."""
    path = _path(root, simulator)
    rows, faults = store_care.count_rows(path), 0
    for fault in store_care.verify(path, _progress(rows)):
        faults += 1
        if faults <= _SHOWN:
            _say(console, fault)
    if faults > _SHOWN:
        _say(console, f"... and {faults - _SHOWN:,} more")
    if faults:
        raise StageError(f"{path}: {faults:,} faults in {rows:,} rows")
    _say(console, f"{path}: sound, {rows:,} rows")


def _progress(rows: int) -> Callable[[], None]:
    """To be called after each row; a small store is done before there is anything to say."""
    stderr, done, next_line = Console(stderr=True), 0, time.monotonic() + _LINE_EVERY_S

    def step() -> None:
        nonlocal done, next_line
        done += 1
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + _LINE_EVERY_S
            _say(stderr, f"store verify: {done:,} of {rows:,} rows")

    return step


# --- export, import ----------------------------------------------------------------------------


def export(
    root: Path,
    file: Path,
    *,
    identity: str = "",
    since: datetime | None = None,
    attempts: bool = False,
    simulator: bool = False,
) -> str:
    """Answers into one file. `since`: a date, in UTC. Raises StageError if nothing matches or it exists."""
    seconds = None if since is None else since.replace(tzinfo=since.tzinfo or UTC).timestamp()
    answers, copied = store_exchange.export(
        _path(root, simulator), file, identity=identity, since=seconds, attempts=attempts
    )
    also = f" and {copied:,} attempts" if attempts else ""
    return f"{file}: {answers:,} answers{also}, {_size(file.stat().st_size)}"


def import_(root: Path, source: str, console: Console, *, simulator: bool = False) -> None:
    """From a file of `export`, or else from a git revision. Raises StageError if anything was damaged."""
    path = _path(root, simulator)
    parts: Iterable[tuple[str, Imported | str]]
    if Path(source).is_file():
        parts = [(source, store_exchange.import_file(path, Path(source), simulator=simulator))]
    else:
        parts = store_committed.import_revision(path, root, source, simulator=simulator)
    damaged, failed, new = 0, 0, 0
    for name, found in parts:
        if isinstance(found, str):
            failed += 1
            _say(console, f"{name}: {found}")
            continue
        new += found.new
        damaged += found.damaged.total()
        _say(console, f"{name}: {_came(found)}")
        for reason, count in found.damaged.most_common(_SHOWN):
            _say(console, f"  {count:,} left out: {reason}")
    if damaged or failed:
        lost = [f"{damaged:,} damaged answers"] * bool(damaged) + [f"{failed:,} datasets"] * bool(failed)
        raise StageError(f"{source}: {' and '.join(lost)} could not be taken; {new:,} new answers were")
    _say(console, f"{path}: {new:,} new answers")


def _came(found: Imported) -> str:
    had = found.seen - found.new - found.elsewhere - found.damaged.total()
    other = f", {found.elsewhere:,} of the other store (see --simulator)" if found.elsewhere else ""
    return f"{found.seen:,} answers, {found.new:,} new, {had:,} were there{other}"


# --- gc ----------------------------------------------------------------------------------------


def gc(
    root: Path,
    *,
    simulator: bool = False,
    identity: str | None = None,
    older_than_days: float | None = None,
    yes: bool = False,
) -> str:
    """Drop what no build needs; paid answers only where `identity` and `older_than_days` name them and `yes`.

    Raises StageError for one of the two alone, or when a run holds leases while answers are to go.
    """
    path, paid = _path(root, simulator), None
    if (identity is None) is not (older_than_days is None):
        raise StageError("store gc: --identity and --older-than go together: they name the answers to remove")
    if identity is not None and older_than_days is not None:
        paid = store_care.find_paid(path, identity, older_than_days)
        what = f"{len(paid.keys):,} answers that cost ${paid.usd:.4f}"
        if not yes:
            return f"{path}: would remove {what}; nothing was changed: add --yes"
    current = _current(root) if simulator else None
    swept = store_care.gc(path, current=current, paid=paid)
    gone = Counter(
        {
            "leases of the dead": swept.leases,
            "bodies of failed attempts": swept.bodies,
            "answers of other simulators": swept.stale,
            "answers": swept.removed,
        }
    )
    done = ", ".join(f"{count:,} {name}" for name, count in gone.items() if count) or "nothing to remove"
    kept = f"; not compacted, {swept.in_use:,} leases are held by a run" if swept.in_use else ""
    return f"{path}: {done}; {_size(swept.before)} -> {_size(swept.after)}{kept}"


def _current(root: Path) -> frozenset[str]:
    """Identities of all simulators in build/config.yaml: profile, seed and code as they were composed."""
    path = root / "build/config.yaml"
    if not path.is_file():
        raise StageError(
            f"{path}: missing; it names the simulators to keep: run `python -m pipeline compose`"
        )
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    return frozenset(map(endpoint_identity, store_committed.apis_of(config, str(path)).values()))


def _size(size: int) -> str:
    """Bytes as people read them; exact below a kilobyte."""
    value, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{size} B" if units[0] == "B" else f"{value:.1f} {units[0]}"
