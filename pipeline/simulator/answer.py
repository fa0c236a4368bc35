"""A generation -> the whole JSON body that a client receives, with its counts and its cost."""

from __future__ import annotations

from typing import Any

from pipeline.simulator.chance import Chance
from pipeline.simulator.fields import message_of, show
from pipeline.simulator.native import Generation
from pipeline.simulator.profile import Price, Profile
from pipeline.simulator.vocabulary import END

_CREATED = 1_760_000_000
_OFF_BY = (-7, -3, -2, 2, 3, 11)


def answer_body(generation: Generation, profile: Profile) -> dict[str, Any]:
    """The same for the same generation; keys in OpenRouter's order."""
    habits = generation.served.habits
    asked, native = generation.asked, generation.native
    shown = show(generation, habits)
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": shown.finish_reason,
        "native_finish_reason": shown.native_finish_reason,
        "logprobs": None,
        "message": message_of(shown, habits, hides_reasoning=asked.hides_reasoning),
    }
    body: dict[str, Any] = {
        "id": generation.id,
        "object": "chat.completion",
        "created": _CREATED,
        "model": asked.body.get("model"),
        "provider": generation.served.name,
        "system_fingerprint": None,
        "choices": [choice],
    }
    # vLLM gives no ids where reasoning is hidden.
    if asked.body.get("return_token_ids") is True and not asked.hides_reasoning:
        if habits.native_ids == "vllm":
            choice["token_ids"] = list(native.ids)
            body["prompt_token_ids"] = list(generation.prompt)
        elif habits.native_ids == "sglang":
            choice["prompt_token_ids"] = list(generation.prompt)
            choice["response_token_ids"] = list(native.ids)
    if habits.usage == "null":
        body["usage"] = None
    elif habits.usage != "missing":
        body["usage"] = _usage(generation, shown.reasoning_tokens, profile.price)
    return body


def counts_of(generation: Generation) -> tuple[int, int]:
    """Tokens of prompt and completion as the provider counts them, shown or not."""
    habits, native = generation.served.habits, generation.native
    prompt, completion = len(generation.prompt), len(native.ids)
    if native.ids[-1] == END and not habits.counts_end:
        completion -= 1
    if habits.usage == "wrong":
        completion = max(1, completion + Chance(generation.key, "usage").pick(_OFF_BY))
    return prompt, completion


def cost_of(generation: Generation, price: Price) -> float:
    """US dollars; what `usage.cost` says, shown or not."""
    prompt, completion = counts_of(generation)
    return round(prompt * price.prompt / 1e6 + completion * price.completion / 1e6, 12)


def _usage(generation: Generation, reasoning_tokens: int, price: Price) -> dict[str, Any]:
    habits = generation.served.habits
    prompt, completion = counts_of(generation)
    prompt_cost = prompt * price.prompt / 1e6
    completion_cost = completion * price.completion / 1e6
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "cost": cost_of(generation, price),
        "is_byok": False,
        "prompt_tokens_details": {"cached_tokens": 0},
        "cost_details": {
            "upstream_inference_cost": None,
            "upstream_inference_prompt_cost": round(prompt_cost, 12),
            "upstream_inference_completions_cost": round(completion_cost, 12),
        },
    }
    if habits.reasoning_tokens != "absent":
        counted = reasoning_tokens if habits.reasoning_tokens == "right" else 0
        usage["completion_tokens_details"] = {"reasoning_tokens": counted}
    return usage
