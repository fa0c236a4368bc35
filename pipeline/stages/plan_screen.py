"""A plan -> one screen: what changed, what runs because of it, what is sent; plain lines off a terminal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.core.estimate import Cost, Requests, Tokens, total_tokens
from pipeline.core.plan import (
    RUNNING,
    Fate,
    Plan,
    collapsed,
    dataset_of,
    group_changes,
    group_names,
    group_outlooks,
)

MOST_LINES = 12
"""Of one table; `--json` has all."""
_LONGEST = 36


def show(plan: Plan, console: Console) -> None:
    """Print it."""
    totals = Counter(one.stages[0].partition("@")[0] for one in plan.stages)
    datasets = {dataset_of(one.stages[0]) for one in plan.stages} - {""}
    stays = sum(one.fate is Fate.STAYS for one in plan.stages)
    _say(console, _headline(plan, stays))
    if plan.built and plan.changes:
        _print(console, _changes(plan, totals, datasets))
    if stays < len(plan.stages):
        _print(console, _stages(plan, totals, datasets))
    if plan.requests:
        _print(console, _requests(plan.requests, plan.cost))
    elif stays < len(plan.stages):
        _say(console, "Requests: none; every generate stage stays as it is.")
    if plan.built and any(one.fate in RUNNING for one in plan.stages):
        _say(console, "A stage that once ran with the same inputs is restored from DVC's cache instead.")
    for note in [*_footnotes(plan.requests), *plan.notes]:
        _say(console, note)


def _headline(plan: Plan, stays: int) -> str:
    if not plan.built:
        return "Nothing is built here yet (dvc.lock records no stage): everything is new."
    if stays == len(plan.stages):
        return f"Nothing to do: all {stays} stages are as they were built, nothing would be sent."
    edited = "file" if len(plan.edits.files) == 1 else "files"
    known = f"{len(plan.edits.files)} {edited} edited since {plan.edits.since}"
    touched = f"{len(plan.stages) - stays} of {len(plan.stages)} stages are touched"
    return f"{touched}; {known if plan.edits.base else plan.edits.since}."


def _changes(plan: Plan, totals: Counter[str], datasets: set[str]) -> Table:
    table = _table("edited", "setting", "was -> is", "makes run")
    groups = group_changes(plan.changes, datasets)
    for change in groups[:MOST_LINES]:
        hashed = change.key.startswith("code.") or change.key.endswith((".code", ".sha256"))
        values = "" if hashed else f"{shortened(change.old)} -> {shortened(change.new)}"
        files = _some(change.files) or "not known"
        _row(table, [files, change.key, values, group_names(change.stages, totals)])
    _more(table, groups)
    return table


def _stages(plan: Plan, totals: Counter[str], datasets: set[str]) -> Table:
    table = _table("stage", "what happens", "because of")
    groups = [one for one in group_outlooks(plan.stages) if one.fate is not Fate.STAYS]
    for one in groups[:MOST_LINES]:
        names = [cause.removeprefix("after ") for cause in one.causes if cause.startswith("after ")]
        causes = collapsed([cause for cause in one.causes if not cause.startswith("after ")], datasets)
        if names:
            causes.append(f"the output of {group_names(names, totals)}")
        style = "bold" if one.fate is Fate.RUNS else "dim"
        _row(table, [group_names(one.stages, totals), one.fate.value, _some(causes)], style)
    _more(table, groups)
    return table


def _requests(lines: list[Requests], cost: Cost | None) -> Table:
    table = _table("dataset", "provider")
    for name in ("to send", "later turns", "paid for", "prompt tokens", "answer tokens", "cost, US$"):
        table.add_column(name, justify="right", no_wrap=True)

    def row(name: str, members: Sequence[Requests], tokens: Tokens, cost: Cost | None, style: str) -> None:
        later = sum(line.later for line in members)
        table.add_row(
            name,
            ", ".join(dict.fromkeys(line.provider for line in members)),
            f"{sum(line.to_send for line in members):,}",
            f"<= {later:,}" if later else "0",
            f"{sum(line.paid for line in members):,}",
            f"{'>= ' if later else ''}{'~' if tokens.sampled else ''}{tokens.prompt:,}",
            _range(tokens.completion, tokens.completion_most, "{:,}"),
            "no price" if cost is None else _range(cost.low, cost.high, "{:,.4f}"),
            style=style,
        )

    for line in lines[:MOST_LINES]:
        row(line.dataset, [line], line.tokens, line.cost, "")
    _more(table, lines)
    if len(lines) > 1:
        row(f"all {len(lines)}", lines, total_tokens(lines), cost, "bold")
    return table


def _range(low: float | None, high: float, form: str) -> str:
    if low == high:
        return form.format(high)
    return f"{'?' if low is None else form.format(low)} - {form.format(high)}"


def _footnotes(lines: list[Requests]) -> list[str]:
    """What the figures mean, as far as there are any to explain."""
    if not any(line.to_send or line.later for line in lines):
        return []
    notes = [
        "Ranges: answers as long as those already there, to every answer as long as max_tokens; no retries."
    ]
    if any(line.tokens.completion is None for line in lines):
        notes.append("?: no answer of this endpoint is known yet, so that their usual length is not either.")
    if any(line.later for line in lines):
        notes.append("Later turns: sent when the turn before is answered; >= leaves those answers out.")
    if any(line.tokens.sampled for line in lines):
        notes.append("~: worked out from an even part of the requests.")
    if any(line.simulated for line in lines):
        notes.append("The simulator is a loopback server: whatever it charges, nobody pays.")
    shared, refused = sum(line.shared for line in lines), sum(line.refused for line in lines)
    if shared:
        notes.append(f"{shared} requests are equal to others and count once.")
    if refused:
        notes.append(f"{refused} turns can't be asked; they become rejects.")
    return notes


def shortened(value: Any) -> str:
    """A value in few characters; of a long one the beginning and its size."""
    if value is None:
        return "not set"
    text = " ".join(value.split()) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 12]}... ({len(text)} characters)"


def _some(texts: Sequence[str], most: int = 3) -> str:
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _row(table: Table, cells: Sequence[str], style: str = "") -> None:
    """As text: a bracket in a setting is no markup."""
    table.add_row(*map(Text, cells), style=style)


def _more(table: Table, rows: Sequence[Any]) -> None:
    if len(rows) > MOST_LINES:
        _row(table, [f"... and {len(rows) - MOST_LINES} more: --json has all"])


def _print(console: Console, table: Table) -> None:
    if console.is_terminal:
        console.print(table)
        return
    table.box = None
    console.print(table, highlight=False)
    console.print()


def _say(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=not console.is_terminal, highlight=False)
