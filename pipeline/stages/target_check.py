"""Targets -> a table of their contract and golden cases: what was checked, and what fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.config import Target
from pipeline.core import contract
from pipeline.core.encoding import Encoder
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.judge import Exchange, judge_batch
from pipeline.core.render import render_ids
from pipeline.errors import ContractError, ExactokError
from pipeline.io.conf import load_target, names_of
from pipeline.io.tokenizers import ensure

GOLDEN = "tests/golden"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: a group of checks of one target, and the first that fails."""

    target: str
    what: str
    passed: int
    total: int
    first_failure: str = ""


def run(name: str, root: Path, console: Console) -> None:
    """Check one target, or `all`. Raises ContractError when anything fails, after the whole table."""
    targets = names_of("target", root) if name == "all" else [name]
    lines = [line for target in targets for line in check_target(target, root)]
    table = Table("target", "check", "passed", "first failure")
    for line in lines:
        style = "" if line.passed == line.total else "bold red"
        passed = f"{line.passed} / {line.total}"
        table.add_row(line.target, line.what, passed, line.first_failure, style=style)
    console.print(table)
    failed = [line for line in lines if line.passed != line.total]
    if failed:
        raise ContractError(f"{len(failed)} of {len(lines)} groups of checks fail: {failed[0].first_failure}")


def check_target(name: str, root: Path) -> Iterator[Line]:
    """Contract first; golden cases only with a tokenizer that keeps it."""
    try:
        target = load_target(name, root)
        encoder = ensure(target.tokenizer, target.render.encoding, root)
    except ExactokError as broken:
        yield Line(name, "tokenizer", 0, 1, str(broken))
        return
    checks = contract.check_encoder(target.tokenizer, encoder)
    wrong = [check for check in checks if not check.passed]
    first = f"{wrong[0].name}: expected {wrong[0].expected}, found {wrong[0].found}" if wrong else ""
    yield Line(name, "contract", len(checks) - len(wrong), len(checks), first)
    cases = [
        json.loads(line)
        for path in sorted((root / GOLDEN / name).glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    grammar = CompiledGrammar(target.grammar, encoder.special, thinking=target.render.thinking)
    yield _golden(name, "golden prompts", cases, lambda case: _prompt(case, target, encoder))
    yield _golden(name, "golden completions", cases, lambda case: _completion(case, target, encoder, grammar))


def _golden(
    name: str, what: str, cases: Sequence[dict[str, Any]], check: Callable[[dict[str, Any]], str]
) -> Line:
    failures = [text for case in cases if (text := check(case))]
    return Line(name, what, len(cases) - len(failures), len(cases), failures[0] if failures else "")


def _prompt(case: dict[str, Any], target: Target, encoder: Encoder) -> str:
    found = render_ids({"messages": case["messages"], "tools": case["tools"]}, target.render, encoder)
    return _difference(case, "prompt_ids", found.ids)


def _completion(case: dict[str, Any], target: Target, encoder: Encoder, grammar: CompiledGrammar) -> str:
    request = {"messages": case["messages"], "tools": case["tools"]}
    response = case["response"]
    message = {key: response[key] for key in ("reasoning", "content", "tool_calls")}
    choice = {"message": message, "finish_reason": response["finish_reason"]}
    body = {"choices": [choice], "usage": response["usage"]}
    rendered = render_ids(request, target.render, encoder)
    judged = judge_batch([Exchange(body, request, rendered)], encoder, grammar)[0]
    return _difference(case, "completion_ids", judged.completion_ids or ())


def _difference(case: dict[str, Any], field: str, found: Sequence[int]) -> str:
    expected = case["expect"][field]
    if list(found) == expected:
        return ""
    wanted, got = contract.differing_ids(expected, list(found))
    return f"{case['id']} {field}: expected {wanted}, found {got}"
