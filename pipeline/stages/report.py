"""All reports, responses and samples -> build/report/: the numbers of the whole build, and a table.

Where the simulator answered, its truth is computed again from the requests, so that the table can
say how many rows came out exact; nothing that the build uses comes from there.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.config import ReportSettings, SimulatorSettings
from pipeline.io.files import atomic, read_json, read_parquet, write_json
from pipeline.io.tables import read_samples
from pipeline.records import Fidelity
from pipeline.simulator.native import truth
from pipeline.stages.shell import parse_settings

Row = dict[str, Any]


def run(subtree: dict[str, Any], root: Path) -> str:
    """Write summary.json and summary.txt; returns the table as text."""
    settings = parse_settings(ReportSettings, subtree, "report")
    datasets = {name: _dataset(name, simulator, root) for name, simulator in settings.simulators.items()}
    summary = {"datasets": datasets, "total": _total(list(datasets.values()))}
    write_json(root / "build/report/summary.json", summary)
    text = render(summary)
    with atomic(root / "build/report/summary.txt") as part:
        part.write_text(text, encoding="utf-8")
    return text


def _dataset(name: str, simulator: SimulatorSettings | None, root: Path) -> Row:
    """The numbers of one dataset."""
    report = read_json(root / f"build/reports/{name}.json")
    responses = read_parquet(root / f"build/responses/{name}.parquet")
    costs = [cost for cost in responses.column("cost_usd").to_pylist() if cost is not None]
    numbers: Row = {
        "prompts": read_parquet(root / f"build/prompts/{name}.parquet").num_rows,
        **{key: report[key] for key in ("responses", "rows", "rejects", "fidelity", "endings")},
        **{key: report[key] for key in ("prompt_tokens", "completion_tokens")},
        "cost_usd": round(sum(costs), 6),
    }
    if simulator is not None:
        numbers["truth"] = _compare(
            name, simulator, responses.select(["row_id", "request"]).to_pylist(), root
        )
    return numbers


def _compare(name: str, simulator: SimulatorSettings, responses: list[Row], root: Path) -> dict[str, int]:
    """Samples against the truth. `wrong_claimed`: not exact although native, logprobs or counted."""
    requests = {row["row_id"]: row["request"] for row in responses}
    counts = Counter(compared=0, exact=0, wrong_claimed=0, wrong_unverified=0)
    for shard in read_samples(root / f"build/samples/{name}"):
        columns = ["row_id", "input_ids", "prompt_length", "fidelity"]
        for row in shard.table.select(columns).to_pylist():
            known = truth(json.loads(requests[row["row_id"]]), simulator.profile, simulator.seed)
            prompt, completion = (
                row["input_ids"][: row["prompt_length"]],
                row["input_ids"][row["prompt_length"] :],
            )
            exact = (prompt, completion) == (known.prompt_ids, known.completion_ids)
            claimed = row["fidelity"] != Fidelity.UNVERIFIED
            counts["compared"] += 1
            counts["exact" if exact else "wrong_claimed" if claimed else "wrong_unverified"] += 1
    return dict(counts)


def _total(datasets: list[Row]) -> Row:
    """Sums over all datasets."""
    total: Row = {}
    for key in ("prompts", "responses", "rows", "prompt_tokens", "completion_tokens", "cost_usd"):
        total[key] = sum(numbers[key] for numbers in datasets)
    total["cost_usd"] = round(total["cost_usd"], 6)
    for key in ("rejects", "fidelity", "endings", "truth"):
        counted: Counter[str] = Counter()
        for numbers in datasets:
            counted.update(numbers.get(key, {}))
        total[key] = dict(sorted(counted.items()))
    return total


def render(summary: Row) -> str:
    """The table that `make repro` ends with."""
    counts = ("prompts", "responses", "rows", "rejects", "completion tokens")
    table = Table("dataset", *counts, "fidelity", "exact", "cost $")
    for name, numbers in [*summary["datasets"].items(), ("all", summary["total"])]:
        if name == "all":
            table.add_section()
        truth_counts = numbers.get("truth") or {}
        exact = f"{truth_counts['exact']} / {truth_counts['compared']}" if truth_counts else "unknown"
        cells = (
            name,
            str(numbers["prompts"]),
            str(numbers["responses"]),
            str(numbers["rows"]),
            _listed(numbers["rejects"]) or "0",
            f"{numbers['completion_tokens']:,}",
            _listed(numbers["fidelity"]),
            exact,
            f"{numbers['cost_usd']:.4f}",
        )
        table.add_row(*cells, style="bold" if name == "all" else "")
    text = io.StringIO()
    Console(width=150, file=text, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
