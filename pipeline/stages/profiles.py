"""All responses -> build/profiles.yaml: for each dataset, what its served providers do to text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from pipeline.config import ProfilesSettings
from pipeline.core.classify import classify
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.learning import Learned, learn
from pipeline.core.reconstruct import Case
from pipeline.io.files import read_parquet, write_json
from pipeline.io.tokenizers import load
from pipeline.stages.shell import parse_settings

MAX_ROWS = 2000
"""Rows of one served provider that are looked at; the first ones over all datasets."""


def run(subtree: dict[str, Any], root: Path) -> str:
    """Pinned profiles are taken as they are; the others are learned over all datasets together."""
    settings = parse_settings(ProfilesSettings, subtree, "profiles")
    encoder = load(root / "build/tokenizer", settings.render.encoding)
    grammar = CompiledGrammar(settings.grammar, encoder.special, thinking=settings.render.thinking)
    cases: dict[str, list[Case]] = {}
    served: dict[str, list[str]] = {}
    for dataset, pinned in settings.pinned.items():
        table = read_parquet(root / f"build/responses/{dataset}.parquet")
        names = sorted({name or "" for name in table.column("served_provider").to_pylist()})
        served[dataset] = names
        if any(name not in pinned and "default" not in pinned for name in names):
            _collect(table.to_pylist(), cases)
    learned = {name: learn(rows, encoder, grammar) for name, rows in cases.items()}
    profiles: dict[str, dict[str, Any]] = {}
    for dataset, pinned in settings.pinned.items():
        known = {name: pinned.get(name, pinned.get("default")) for name in served[dataset]}
        for name, profile in known.items():
            if profile is None and name in learned:
                known[name] = learned[name].profile
        profiles[dataset] = {n: p.model_dump(mode="json") for n, p in known.items() if p is not None}
    path = root / "build/profiles.yaml"
    path.write_text(yaml.safe_dump(profiles, sort_keys=True, allow_unicode=True), encoding="utf-8")
    write_json(
        root / "build/reports/profiles.json", {n: _evidence(item) for n, item in sorted(learned.items())}
    )
    return f"profiles: {sum(map(len, profiles.values()))} pinned or learned for {len(profiles)} datasets"


def _collect(rows: list[dict[str, Any]], cases: dict[str, list[Case]]) -> None:
    for row in rows:
        of_provider = cases.setdefault(row["served_provider"] or "", [])
        if row["failure"] is not None or len(of_provider) >= MAX_ROWS:
            continue
        request = json.loads(row["request"])
        verdict = classify(row["status"], json.loads(row["headers"]), row["body"], request)
        if verdict.answer is not None and verdict.action.usable:
            of_provider.append(Case(verdict.answer, request))


def _evidence(item: Learned) -> dict[str, Any]:
    return {
        "profile": None if item.profile is None else item.profile.model_dump(mode="json"),
        "rows": item.rows,
        "matched": item.matched,
        "runner_up": item.runner_up,
        "undecided": list(item.undecided),
    }
