"""Our prompts against the independent package `renderers`: equal, but for differences with a known reason.

The reasons were read in the vendor's chat template and tool encoder; for each, the vendor does what we do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from renderers.configs import KimiK25RendererConfig
from renderers.kimi_k25 import KimiK25Renderer

from pipeline.core.encoding import Encoder
from pipeline.core.render import render_ids
from tests.core.chats import make_request
from tests.core.test_render import KIMI, KIMI_OFF

Request = dict[str, Any]


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from schemas(one)


def in_tools(test: Callable[[dict[str, Any]], bool]) -> Callable[[Request, bool], bool]:
    return lambda request, thinking: any(test(one) for one in schemas(request["tools"]))


def in_messages(test: Callable[[dict[str, Any]], bool]) -> Callable[[Request, bool], bool]:
    return lambda request, thinking: any(test(one) for one in request["messages"])


def content(message: dict[str, Any]) -> str:
    given = message["content"] or ""
    return given if isinstance(given, str) else "".join(part["text"] for part in given)


def open_loop_has_reasoning(request: Request, thinking: bool) -> bool:
    plain = [
        at
        for at, one in enumerate(request["messages"])
        if one["role"] == "assistant" and "tool_calls" not in one
    ]
    after = request["messages"][max(plain, default=-1) + 1 :]
    return not thinking and any(one.get("reasoning_content") for one in after)


def unsorted(value: Any) -> bool:
    return any(list(one) != sorted(one) for one in schemas(value))


DIFFERENCES: dict[str, Callable[[Request, bool], bool]] = {
    "a boolean default is written as Python does, `False`": in_tools(
        lambda one: isinstance(one.get("default"), bool)
    ),
    "keys of a default object are sorted": in_tools(lambda one: unsorted(one.get("default"))),
    "$defs are sorted": in_tools(lambda one: list(one.get("$defs", {})) != sorted(one.get("$defs", {}))),
    "null and booleans of an enum are written as Python does, `None`": in_tools(
        lambda one: any(value is None or isinstance(value, bool) for value in one.get("enum", []))
    ),
    "an enum value against its type: the tools are printed as JSON": in_tools(
        lambda one: (
            one.get("type") == "string" and any(isinstance(value, int) for value in one.get("enum", []))
        )
    ),
    "oneOf: the tools are printed as JSON": in_tools(lambda one: "oneOf" in one),
    "properties of a schema that refers to itself are sorted": in_tools(lambda one: one.get("$ref") == "#"),
    "a tool not wrapped in `function` is left out (none left: JSON)": lambda request, thinking: any(
        "function" not in tool for tool in request["tools"] or []
    ),
    "thinking off: the reasoning of an open tool loop is dropped": open_loop_has_reasoning,
    "`</think>` in an old answer's content is left where it is": in_messages(
        lambda one: (
            one["role"] == "assistant"
            and isinstance(one["content"], str)
            and "</think>" in one["content"]
            and "reasoning_content" not in one
        )
    ),
    "the line end before a tool result and those that start it are one token": in_messages(
        lambda one: one["role"] == "tool" and bool(re.match(r"\s*[\r\n]", content(one)))
    ),
    "text parts are encoded together": in_messages(
        lambda one: isinstance(one["content"], list) and len(one["content"]) > 1
    ),
}


def theirs(tokenizer: Any, request: Request, thinking: bool) -> tuple[int, ...] | None:
    renderer = KimiK25Renderer(tokenizer, KimiK25RendererConfig(thinking=thinking))
    try:
        return tuple(
            renderer.render_ids(request["messages"], tools=request["tools"], add_generation_prompt=True)
        )
    except ValueError:
        return None


def test_equal_to_renderers_but_for_the_known_differences(kimi: Encoder, kimi_hf: Any) -> None:
    unexplained = []
    alone: dict[str, int] = dict.fromkeys(DIFFERENCES, 0)
    equal = 0
    for seed in range(200):
        request, thinking = make_request(seed)
        ours = render_ids(request, KIMI if thinking else KIMI_OFF, kimi).ids
        reasons = [name for name, applies in DIFFERENCES.items() if applies(request, thinking)]
        if theirs(kimi_hf, request, thinking) == ours:
            equal += 1
        elif not reasons:
            unexplained.append(seed)
        elif len(reasons) == 1:
            alone[reasons[0]] += 1
    assert unexplained == []
    assert equal > 130


@pytest.mark.parametrize("reason", DIFFERENCES)
def test_each_known_difference_is_one(reason: str, kimi: Encoder, kimi_hf: Any) -> None:
    """A reason without a conversation that differs for it alone would only hide mistakes."""
    for seed in range(3000):
        request, thinking = make_request(seed)
        if [name for name, applies in DIFFERENCES.items() if applies(request, thinking)] == [reason]:
            ours = render_ids(request, KIMI if thinking else KIMI_OFF, kimi).ids
            if theirs(kimi_hf, request, thinking) != ours:
                return
    pytest.fail("no such conversation")
