"""What the probes found -> a table for a person with the YAML to paste, or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import yaml
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.config import Profile, Provider
from pipeline.core.probe_findings import Findings
from pipeline.core.probes import Evidence

WHOLE = "default"
"""Key of the profile where answers name no provider, as in conf/provider/."""
_NOT_SEEN = "–"


@dataclass(slots=True)
class Heard:
    """What came from one served provider. `odd`: why probes gave nothing to read, and which."""

    evidence: list[Evidence] = field(default_factory=list)
    routes: dict[str, None] = field(default_factory=dict)
    odd: dict[str, list[str]] = field(default_factory=dict)


def show(
    console: Console,
    endpoint: Provider,
    found: Mapping[str, Findings],
    heard: Mapping[str, Heard],
    asked: int,
) -> None:
    """A line of counts, the table, the YAML."""
    cost = sum(e.cost_usd for one in heard.values() for e in one.evidence)
    answers = sum(len(one.evidence) for one in heard.values())
    served = sum(bool(one.evidence) for one in heard.values())
    counts = f"{asked} requests, {answers} answers read, {served} served providers, ${cost:.4f}"
    console.print(f"probe {endpoint.name}: {counts}", highlight=False)
    console.print(_table({name: _row(name, f, heard[name]) for name, f in found.items()}, console.width))
    for name, one in heard.items():
        for why, probes in one.odd.items():
            console.print(Text(f"{name}: {', '.join(probes)}: {why}"))
    for line in yaml_lines(endpoint, found):
        console.print(Text(line, style="dim" if line.lstrip().startswith("#") else ""), soft_wrap=True)


def show_json(console: Console, found: Mapping[str, Findings], heard: Mapping[str, Heard]) -> None:
    """One object, served provider -> findings."""
    console.print_json(data={name: _plain(f, heard[name]) for name, f in found.items()})


def _table(rows: Mapping[str, Mapping[str, str]], width: int) -> Table:
    """Words stay whole where the screen is wide enough for the longest of each column."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    names = list(next(iter(rows.values())))
    longest = {n: max(len(word) for row in rows.values() for word in f"{n} {row[n]}".split()) for n in names}
    fits = sum(longest.values()) + 2 * len(names) <= width
    for name in names:
        table.add_column(name, overflow="fold", min_width=longest[name] if fits else None)
    for row in rows.values():
        table.add_row(*(Text(cell or _NOT_SEEN) for cell in row.values()))
    return table


def _row(name: str, f: Findings, heard: Heard) -> dict[str, str]:
    """Short words; what is as it should be is not said."""
    routes = [route for route in heard.routes if route not in ("", name)]
    unanswered = sum(map(len, heard.odd.values()))
    fit = f"{f.fits} of {f.counts} fit" if f.counts else ""
    return {
        "provider": f"{name} ({', '.join(routes)})" if routes else name,
        "n": str(f.answers),
        "reasoning in": f.reasoning_in,
        "calls": _joined(
            f.calls, f.call_ids and f"ids {f.call_ids}", f.raw_finish and f"end as {f.raw_finish}"
        ),
        "whitespace": f.whitespace,
        "counts": _joined(fit if f.usage == "right" else f.usage, f.counts_end and f"end {f.counts_end}"),
        "prompt": f.prompt,
        "notes": _joined(
            f"gives {f.token_ids}" if f.token_ids not in ("", "none") else "",
            "gives logprobs" if f.logprobs == "given" else "",
            f"reasoning_tokens {f.reasoning_tokens}" if f.reasoning_tokens not in ("", "right") else "",
            f.split_by and f"reasoning split by {f.split_by}",
            *f.leaks,
            f"{unanswered} unanswered" if unanswered else "",
        ),
    }


def _joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))


def yaml_lines(endpoint: Provider, found: Mapping[str, Findings]) -> list[str]:
    """`profiles:` to paste; what is not to be pinned, not known or pinned otherwise stands as a comment."""
    lines = [f"# for conf/provider/{endpoint.name}.yaml", "profiles:"]
    whys: dict[str, list[str]] = {}
    for name, f in found.items():
        if f.profile is None:
            lines.append(f"  # {name}: nothing to pin: {f.why_not}")
            continue
        notes = [f"undecided: {', '.join(f.undecided)}"] if f.undecided else []
        pinned = endpoint.profiles.get(name, endpoint.profiles.get(WHOLE))
        if pinned is not None and pinned != f.profile:
            notes.append(f"pinned now: {_flow(_settings(pinned))}")
        line = f"  {_flow(name)}: {_flow(_settings(f.profile))}"
        lines.append(f"{line}  # {'; '.join(notes)}" if notes else line)
        for setting, why in f.undecided.items():
            whys.setdefault(f"{setting}: {why}", []).append(name)
    return lines + [f"# {why} ({', '.join(names)})" for why, names in whys.items()]


def _settings(profile: Profile) -> dict[str, Any]:
    """What differs from a verbatim provider."""
    return profile.model_dump(mode="json", exclude_defaults=True)


def _flow(value: Any) -> str:
    """On one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("...\n").strip()


def _plain(findings: Findings, heard: Heard) -> dict[str, Any]:
    settings = None if findings.profile is None else _settings(findings.profile)
    routes = [route for route in heard.routes if route]
    return {**asdict(findings), "profile": settings, "routes": routes, "odd": heard.odd}
