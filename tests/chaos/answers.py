"""One request body -> the good answer that this server always gives to it, plain or streamed, and its cost.

Everything follows from the request alone, so an answer that was bought twice is the same twice, and any
row can be compared with what the server would have said.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

Body = dict[str, Any]

PRICE = {"prompt": 0.6, "completion": 2.5}
"""US dollars per million tokens; what the provider file of the project copies says too."""
_HOW_SENT = ("stream", "stream_options", "provider")
"""Fields that make no other request of it: how the answer comes, and a reroute past one provider."""
_PROMPT = re.compile(r"What is (\w+) number (\d+)$")


def text_of(body: Body) -> str:
    """What the last message says."""
    return str(body["messages"][-1]["content"])


def prompt_of(dataset: str, number: int) -> str:
    """Prompts say which they are, so that the server knows without being told."""
    return f"What is {dataset} number {number}"


def dataset_of(body: Body) -> str:
    """The dataset that the prompt is of."""
    return str(_found(body)[1])


def number_of(body: Body) -> int:
    """The prompt's number in it."""
    return int(_found(body)[2])


def _found(body: Body) -> re.Match[str]:
    found = _PROMPT.match(text_of(body))
    if found is None:
        raise ValueError(f"no prompt of this test: {text_of(body)!r}")
    return found


def key_of(body: Body) -> str:
    """Names the logical request; shares no code with the pipeline's own keys."""
    logical = {name: value for name, value in sorted(body.items()) if name not in _HOW_SENT}
    return hashlib.sha256(json.dumps(logical).encode()).hexdigest()[:16]


def chance(*parts: object) -> float:
    """A number in [0, 1) that follows from the parts."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6]) / 2**48


def good_answer(body: Body) -> Body:
    """A whole `chat.completion`; `completion_tokens` is anything up to what was allowed."""
    key, text = key_of(body), text_of(body)
    prompt_tokens = 5 + len(text) // 4
    completion_tokens = 1 + int(chance(key, "tokens") * (body["max_tokens"] - 1))
    cost = (prompt_tokens * PRICE["prompt"] + completion_tokens * PRICE["completion"]) / 1_000_000
    message = {
        "role": "assistant",
        "reasoning": f"Someone asks {text!r}; 请回答。\n",
        "content": f"{key}: an answer to {text}, naïve and 漢字 🙂, {'and so on, ' * 12}the end.",
    }
    return {
        "id": f"gen-{key}",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": body["model"],
        "provider": "AlphaInfer",
        "choices": [
            {"index": 0, "finish_reason": "stop", "native_finish_reason": "stop", "message": message}
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "cost": cost,
        },
    }


def as_events(answer: Body, pieces: int = 5) -> list[str]:
    """The same answer as the events of a stream: reasoning first, then content, finish, usage, end mark."""
    head = {name: answer[name] for name in ("id", "created", "model", "provider")}
    head["object"] = "chat.completion.chunk"
    message, choice = answer["choices"][0]["message"], answer["choices"][0]
    deltas: list[Body] = [{"role": "assistant", "content": ""}]
    for field in ("reasoning", "content"):
        text = message[field]
        step = max(1, -(-len(text) // pieces))
        deltas += [{field: text[start : start + step]} for start in range(0, len(text), step)]
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    ended = {"finish_reason": choice["finish_reason"], "native_finish_reason": choice["native_finish_reason"]}
    chunks.append({**head, "choices": [{"index": 0, "delta": {"content": ""}, **ended}]})
    chunks.append({**head, "choices": [], "usage": answer["usage"]})
    return [*(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chunks), "data: [DONE]\n\n"]
