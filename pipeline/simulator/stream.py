"""A whole answer -> the chunks in which a streamed request gets the same answer.

Form: OpenRouter (`chat.completion.chunk`; usage once, in a last chunk without choices), engine ids as
vLLM streams them: prompt ids on the first chunk, `token_ids` of a choice as deltas (vllm#22587).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.simulator.chance import Chance
from pipeline.simulator.native import Generation
from pipeline.simulator.request import BadRequest

_PIECE_SIZES = (3, 12, 60)
"""Mean code points of a piece, drawn once an answer: about a token, a word or two, a line."""
_FINISH_WITH_TEXT = 0.3
"""Share of answers whose last piece and finish reason share a chunk, as in vLLM."""

Chunk = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stream:
    """Chunks before the finish reason, and from there on."""

    deltas: tuple[Chunk, ...]
    ending: tuple[Chunk, ...]


def check_streamable(generation: Generation) -> None:
    """SGLang refuses streams with ids (its `return_token_ids`, 0.5.18). Raises BadRequest."""
    asked = generation.asked
    wants_ids = asked.streamed and asked.body.get("return_token_ids") is True
    if wants_ids and generation.served.habits.native_ids == "sglang":
        raise BadRequest("return_token_ids: not supported together with stream")


def stream_of(body: dict[str, Any], key: str) -> Stream:
    """Cut at places that depend on `key` only: between any two code points, whatever they are."""
    chance = Chance(key, "stream")
    choice, message = body["choices"][0], body["choices"][0]["message"]
    deltas = [_first(message), *_pieces_of(message, chance)]
    if len(deltas) == 1 or not chance.happens(_FINISH_WITH_TEXT):
        deltas.append({})
    frame = {name: value for name, value in body.items() if name not in ("choices", "usage")}
    prompt = {"prompt_token_ids": frame.pop("prompt_token_ids")} if "prompt_token_ids" in frame else {}
    frame["object"] = "chat.completion.chunk"
    silent = {"finish_reason": None, "native_finish_reason": None, "logprobs": None}
    parts: list[Chunk] = [{"index": 0, "delta": delta, **silent} for delta in deltas]
    if "token_ids" in choice:
        for part, ids in zip(parts, _shares(choice["token_ids"], len(parts)), strict=True):
            part["token_ids"] = ids
    parts[-1] |= {name: choice[name] for name in ("finish_reason", "native_finish_reason")}
    chunks = [{**frame, "choices": [part]} for part in parts]
    chunks[0] |= prompt
    ending = [chunks.pop()]
    if "usage" in body:
        ending.append({**frame, "choices": [], "usage": body["usage"]})
    return Stream(tuple(chunks), tuple(ending))


def _first(message: dict[str, Any]) -> Chunk:
    """Role, and all that says nothing more: the fields without text as the whole answer has them."""
    first = {name: value for name, value in message.items() if name == "role" or not value}
    return first if message["content"] is None else {**first, "content": ""}


def _pieces_of(message: dict[str, Any], chance: Chance) -> Iterator[Chunk]:
    mean = chance.pick(_PIECE_SIZES)
    fields = [name for name in ("reasoning", "reasoning_content") if message.get(name)]
    details = message.get("reasoning_details") or []
    # OpenRouter writes an empty content beside reasoning.
    beside = {} if message["content"] is None else {"content": ""}
    thought = message[fields[0]] if fields else "".join(part["text"] for part in details)
    for piece in _cut(thought, mean, chance):
        delta: Chunk = {**beside, **dict.fromkeys(fields, piece)}
        if details:
            delta["reasoning_details"] = [{**details[0], "text": piece}]
        yield delta
    for piece in _cut(message["content"] or "", mean, chance):
        yield {"content": piece}
    for call in message.get("tool_calls", ()):
        function = call["function"]
        yield {"tool_calls": [{**call, "function": {"name": function["name"], "arguments": ""}}]}
        for piece in _cut(function["arguments"], mean, chance):
            yield {"tool_calls": [{"index": call["index"], "function": {"arguments": piece}}]}


def _cut(text: str, mean: int, chance: Chance) -> Iterator[str]:
    start = 0
    while start < len(text):
        size = chance.between(1, 2 * mean - 1)
        yield text[start : start + size]
        start += size


def _shares(ids: list[int], count: int) -> Iterator[list[int]]:
    """Equal parts, for a reader may not count on ids and text of a chunk belonging together."""
    for number in range(count):
        yield ids[len(ids) * number // count : len(ids) * (number + 1) // count]
