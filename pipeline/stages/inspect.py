"""A pasted provider answer -> its exact tokens, and why; the same judgement that the build uses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.config import Target
from pipeline.core.classify import classify
from pipeline.core.encoding import Encoder
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.judge import Exchange, Judgement, judge_batch
from pipeline.core.render import UnrenderableRequest, render_ids
from pipeline.errors import SourceError
from pipeline.io.conf import load_target
from pipeline.io.tokenizers import ensure
from pipeline.records import Action, Span

_STYLES = {
    "prompt": "dim",
    "reasoning": "cyan",
    "content": "green",
    "call_id": "yellow",
    "call_arguments": "yellow",
    "marker": "bold magenta",
    "end": "bold red",
}
_VISIBLE = str.maketrans({" ": "·", "\n": "↵", "\t": "→", "\r": "␍"})


def inspect(data: bytes, name: str, target_name: str, root: Path) -> Iterator[dict[str, Any]]:
    """One JSON-ready result for each value in `data` (one JSON value, an array, or JSON Lines)."""
    target, encoder, grammar = _target(target_name, root)
    for value in _values(data, name):
        result, _ = _judge(value, target, encoder, grammar)
        yield result


def show(data: bytes, name: str, target_name: str, root: Path, console: Console) -> None:
    """The same results for a person: tokens in colour, prompt and completion apart."""
    target, encoder, grammar = _target(target_name, root)
    for value in _values(data, name):
        result, judged = _judge(value, target, encoder, grammar)
        _print(console, result, judged, encoder)


def _target(name: str, root: Path) -> tuple[Target, Encoder, CompiledGrammar]:
    target = load_target(name, root)
    encoder = ensure(target.tokenizer, target.render.encoding, root)
    return target, encoder, CompiledGrammar(target.grammar, encoder.special, thinking=target.render.thinking)


def _values(data: bytes, name: str) -> list[Mapping[str, Any]]:
    """One JSON value, a JSON array of values, or JSON Lines."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as broken:
        raise SourceError(f"{name}: no UTF-8 text ({broken.reason} at byte {broken.start})") from None
    try:
        whole = json.loads(text)
        values = whole if isinstance(whole, list) else [whole]
    except (ValueError, RecursionError):
        values = [
            _line(line, number, name) for number, line in enumerate(text.split("\n"), 1) if line.strip()
        ]
    if not values:
        raise SourceError(f"{name}: no value in it")
    for number, value in enumerate(values, 1):
        _check_value(value, f"{name}: value {number}")
    return values


def _line(line: str, number: int, name: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as broken:
        raise SourceError(f"{name}: line {number} is no JSON that can be read ({broken})") from None


def _check_value(value: Any, where: str) -> None:
    if not isinstance(value, dict) or not isinstance(value.get("request"), dict):
        raise SourceError(f'{where}: expected an object with "request" and "http" or "response"')
    if not isinstance(value.get("http", value.get("response")), dict):
        raise SourceError(f'{where}: "http" or "response" is missing or no object')
    http = value.get("http") or {}
    if not isinstance(http.get("headers") or {}, dict) or not isinstance(http.get("body") or "", str):
        raise SourceError(f"{where}: http.headers is an object and http.body a text")
    if not isinstance(http.get("status", 200), int | None):
        raise SourceError(f"{where}: http.status is a number or null")


def _judge(
    value: Mapping[str, Any], target: Target, encoder: Encoder, grammar: CompiledGrammar
) -> tuple[dict[str, Any], Judgement | None]:
    request = value["request"]
    headers: dict[str, str] = {}
    if "http" in value:
        http = value["http"]
        headers = {name.lower(): str(content) for name, content in (http.get("headers") or {}).items()}
        verdict = classify(http.get("status", 200), headers, http.get("body") or "", request)
    else:
        verdict = classify(200, {}, json.dumps(_as_body(value["response"])), request)
    try:
        rendered = render_ids(request, target.render, encoder)
    except UnrenderableRequest as broken:
        if verdict.action.usable:
            why = (Action.FATAL_ROW, f"the request can't be rendered: {broken}")
            return _result(value, why, verdict.flags, None, None, encoder), None
        rendered = None  # the exchange gives no row anyway; its own decision says why
    if verdict.body is None or not verdict.action.usable or rendered is None:
        ids = None if rendered is None else rendered.ids
        return _result(value, (verdict.action, verdict.reason), verdict.flags, ids, None, encoder), None
    exchange = Exchange(verdict.body, request, rendered, verdict)
    judged = judge_batch([exchange], encoder, grammar)[0]
    decision = (judged.action, judged.reason)
    return _result(value, decision, judged.flags, judged.prompt.ids, judged, encoder), judged


def _as_body(response: Mapping[str, Any]) -> dict[str, Any]:
    """Parsed fields as the answer body that they would stand in; a whole body is taken as it is."""
    if "choices" in response:
        return dict(response)
    outer = ("usage", "provider", "model", "id", "prompt_token_ids")
    inner = ("finish_reason", "native_finish_reason", "token_ids", "response_token_ids", "logprobs")
    message = {key: item for key, item in response.items() if key not in (*outer, *inner)}
    choice = {"message": message, **{key: response[key] for key in inner if key in response}}
    return {"choices": [choice], **{key: response[key] for key in outer if key in response}}


def _result(
    value: Mapping[str, Any],
    decision: tuple[Action, str],
    flags: Iterable[str],
    prompt_ids: Sequence[int] | None,
    judged: Judgement | None,
    encoder: Encoder,
) -> dict[str, Any]:
    """The JSON-ready result; everything about the completion is null unless its ids are known."""
    ids = judged.completion_ids if judged else None
    known = judged.result if judged is not None and ids is not None else None
    runs = None if ids is None or prompt_ids is None else [[0, len(prompt_ids)], [1, len(ids)]]
    candidates = judged.result.candidates if judged else ()
    return {
        **({"id": value["id"]} if "id" in value else {}),
        "action": decision[0].value,
        "reason": decision[1],
        "prompt_ids": None if prompt_ids is None else list(prompt_ids),
        "completion_ids": None if ids is None else list(ids),
        "loss_mask_runs": runs,
        "ending": known.ending.value if known and known.ending else None,
        "fidelity": known.fidelity.value if known and known.fidelity else None,
        "flags": list(flags),
        "candidates": [{"reading": name, "ids": list(found)} for name, found in candidates],
        "decoded": None if ids is None else encoder.decode_bytes(ids).decode("utf-8", "replace"),
    }


def _print(console: Console, result: dict[str, Any], judged: Judgement | None, encoder: Encoder) -> None:
    title = Text.assemble(
        (str(result.get("id", "")), "bold"), " ", (result["action"], "bold reverse"), " ", result["reason"]
    )
    console.print(title)
    if result["flags"]:
        console.print(Text(f"flags: {', '.join(result['flags'])}", style="dim"))
    if result["prompt_ids"] is not None:
        console.rule("prompt (loss mask 0)", style="dim")
        spans = [Span("prompt", 0, len(result["prompt_ids"]))]
        console.print(_tokens(result["prompt_ids"], spans, encoder))
    if judged is not None and result["completion_ids"] is not None:
        console.rule(f"completion (loss mask 1), {result['ending']}, {result['fidelity']}", style="dim")
        console.print(_tokens(result["completion_ids"], judged.result.spans, encoder))
    for candidate in result["candidates"]:
        console.rule(f"candidate: {candidate['reading']}, {len(candidate['ids'])} ids", style="dim")
        console.print(_tokens(candidate["ids"], [Span("content", 0, len(candidate["ids"]))], encoder))
    console.print()


def _tokens(ids: list[int], spans: Iterable[Span], encoder: Encoder) -> Text:
    """Every token with its id; blanks made visible, kinds told apart by colour and by brackets."""
    text = Text()
    for span in spans:
        for token_id in ids[span.start : span.end]:
            shown = encoder.decode_bytes([token_id]).decode("utf-8", "backslashreplace").translate(_VISIBLE)
            style = _STYLES.get(span.kind, "")
            special = span.kind in ("marker", "end")
            text.append(f"⟦{shown}⟧" if special else shown, style=style)
            text.append(f"{token_id} ", style="dim")
    return text
