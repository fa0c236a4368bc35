"""One HTTP exchange (or parsed response) -> prompt ids, completion ids and the decision, all in one result.

Puts the three judgements in order: what the exchange was (classify), whether the served prompt was
ours (prompt_check), which ids the model produced (reconstruct).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config import Profile
from pipeline.core.answer import UnreadableAnswer, read_answer
from pipeline.core.classify import Verdict
from pipeline.core.encoding import Encoder
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.prompt_check import PromptVerdict, check_prompt
from pipeline.core.reconstruct import Case, reconstruct_batch
from pipeline.core.render import RenderedPrompt
from pipeline.records import Action, Answer, Reconstruction


@dataclass(frozen=True, slots=True)
class Exchange:
    """An answer body that classify let pass, with the request it belongs to and its rendered prompt.

    `verdict` None: the fields were given already parsed.
    """

    body: Mapping[str, Any]
    request: Mapping[str, Any]
    rendered: RenderedPrompt
    verdict: Verdict | None = None
    profile: Profile | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The whole result on one exchange."""

    action: Action
    reason: str
    prompt: PromptVerdict
    result: Reconstruction
    flags: tuple[str, ...]
    answer: Answer | None = None
    label: str = ""
    """The flag that decided, for counting; the action's name where none did."""

    @property
    def completion_ids(self) -> tuple[int, ...] | None:
        """Known ids, only where the action lets them be used."""
        return self.result.completion_ids if self.action.usable else None


def judge_batch(exchanges: Sequence[Exchange], encoder: Encoder, grammar: CompiledGrammar) -> list[Judgement]:
    """One judgement an exchange, in order; texts are encoded in one batch."""
    answers: list[Answer | UnreadableAnswer] = []
    for exchange in exchanges:
        if exchange.verdict is not None and exchange.verdict.answer is not None:
            answers.append(exchange.verdict.answer)
            continue
        try:
            answers.append(read_answer(exchange.body))
        except UnreadableAnswer as odd:
            answers.append(odd)
    readable = [
        (answer, exchange)
        for answer, exchange in zip(answers, exchanges, strict=True)
        if isinstance(answer, Answer)
    ]
    cases = [Case(answer, exchange.request, exchange.profile) for answer, exchange in readable]
    results = iter(reconstruct_batch(cases, encoder, grammar))
    return [
        _combine(answer, exchange, next(results))
        if isinstance(answer, Answer)
        else _unreadable(exchange, str(answer))
        for answer, exchange in zip(answers, exchanges, strict=True)
    ]


def _combine(answer: Answer, exchange: Exchange, result: Reconstruction) -> Judgement:
    prompt = check_prompt(answer, exchange.rendered)
    flags = list(
        dict.fromkeys((*(exchange.verdict.flags if exchange.verdict else ()), *result.flags, *prompt.flags))
    )
    action, reason = result.action, result.reason
    label = result.flags[-1] if result.flags else action.value
    if prompt.action is not None and (action.usable or prompt.action is Action.REROUTE):
        action, reason, label = prompt.action, prompt.reason, prompt.flags[-1]
    elif action is Action.OK and exchange.verdict is not None and exchange.verdict.action is Action.REPAIR:
        action, reason = Action.REPAIR, f"foreign framing round the JSON; {reason}"
    return Judgement(action, reason, prompt, result, tuple(flags), answer, label)


def _unreadable(exchange: Exchange, why: str) -> Judgement:
    result = Reconstruction(Action.FATAL_ROW, why, flags=("not_text",))
    prompt = PromptVerdict(exchange.rendered.ids)
    return Judgement(result.action, why, prompt, result, result.flags, label="not_text")
