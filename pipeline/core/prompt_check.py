"""Rendered prompt + what the provider says of it -> the prompt ids of the row, or why they are not ours."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.core.render import RenderedPrompt
from pipeline.records import Action, Answer

# The vendor's own conformance test lets a correct provider count up to three more
# (Kimi-Vendor-Verifier, tests/prompt_tokens).
TOLERATED_OVERCOUNT = 3


@dataclass(frozen=True, slots=True)
class PromptVerdict:
    """Prompt ids of the row. `action` is not None when the served prompt was another one than ours.

    `delta`: provider's prompt count minus ours (tokens); None without a count.
    """

    ids: tuple[int, ...]
    delta: int | None = None
    flags: tuple[str, ...] = ()
    action: Action | None = None
    reason: str = ""


def check_prompt(answer: Answer, rendered: RenderedPrompt) -> PromptVerdict:
    """Which rendering the server saw, told by the engine's own prompt ids or by the count.

    A server that keeps special strings in message text as ordinary text has `rendered.plain_ids`.
    """
    ours = rendered.ids
    if answer.native_prompt_ids is not None:
        theirs = answer.native_prompt_ids
        differ = () if theirs == ours else ("prompt_ids_differ",)
        return PromptVerdict(theirs, len(theirs) - len(ours), differ)
    counted = answer.usage.prompt_tokens
    if counted is None:
        return PromptVerdict(ours, flags=("prompt_uncounted",))
    options: list[tuple[tuple[int, ...], tuple[str, ...]]] = [(ours, ())]
    if rendered.plain_ids is not None:
        options.append((rendered.plain_ids, ("prompt_specials_plain",)))
    for tolerance in (0, TOLERATED_OVERCOUNT):
        for ids, flags in options:
            delta = counted - len(ids)
            if 0 <= delta <= tolerance:
                over = ("prompt_tokens_over",) if delta else ()
                return PromptVerdict(ids, delta, (*flags, *over))
    delta = counted - len(ours)
    if delta < 0:
        reason = (
            f"{counted} prompt tokens were counted, ours are {len(ours)}: part of the request was dropped"
        )
        return PromptVerdict(ours, delta, ("prompt_tokens_short",), Action.REROUTE, reason)
    reason = f"{counted} prompt tokens were counted, ours are {len(ours)}: something was added to the prompt"
    return PromptVerdict(ours, delta, ("prompt_tokens_long",), Action.AMBIGUOUS, reason)
