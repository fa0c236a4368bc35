"""Seed -> a made-up request: system, tools, tool loops, several turns, names, text parts, old reasoning."""

from __future__ import annotations

import random
from typing import Any

TEXTS = (
    "How many moons has Mars?",
    "Sort these: 3, 1, 2.",
    "请用两句话介绍长江。",
    "It's late; don't wait.",
    "def f(x):\n    return x ** 2\n",
    "naïve café — 5 € 🙂🏽",
    "  indented, with a tail  ",
    "",
    "a\n\n\nb\t\tc",
    "Explain the marker <|im_end|> to me.",
    "What do <think> and </think> do, and [EOS]?",
    '{"city": "Zürich", "days": 3}',
    "第一行\n第二行\r\n",
)
RARE_TEXT = "\n\nIt starts with empty lines."
NAMES = ("search", "add_note", "查询", "list_files")


def _function(name: str, parameters: Any, description: str | None = None) -> dict[str, Any]:
    function = {"name": name, "parameters": parameters}
    if description is not None:
        function["description"] = description
    return {"type": "function", "function": function}


def _schemas() -> list[dict[str, Any]]:
    text, number = {"type": "string"}, {"type": "integer"}
    return [
        {},
        {"type": "object", "properties": {}},
        {
            "type": "object",
            "properties": {"q": {**text, "description": "Words\n\nto look for"}},
            "required": ["q"],
        },
        {
            "type": "object",
            "properties": {
                "unit": {**text, "enum": ["c", "f"], "description": "Scale"},
                "city": {**text, "minLength": 1, "pattern": "^[A-Z]"},
                "days": {**number, "minimum": 1, "maximum": 14, "default": 3},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {
                "paths": {"type": "array", "items": {**text, "description": "A path"}, "minItems": 1},
                "depth": {"type": ["integer", "null"]},
                "grid": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
            },
        },
        {
            "type": "object",
            "properties": {
                "where": {"type": "object", "properties": {"x": number, "b": text}, "required": ["x"]},
                "what": {"anyOf": [text, {"type": "array", "items": text}, {"type": "null"}]},
                "extra": {"type": "object", "additionalProperties": text},
            },
            "required": ["where"],
        },
        {
            "type": "object",
            "$defs": {"Item": {"type": "object", "description": "One item", "properties": {"id": number}}},
            "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/Item"}}},
        },
    ]


def _odd_schemas() -> list[dict[str, Any]]:
    """Schemas that the second opinion is known to declare in another way (see test_render)."""
    text = {"type": "string"}
    reference = {"type": "array", "items": {"$ref": "#"}}
    return [
        {"type": "object", "properties": {"dry_run": {"type": "boolean", "default": False}}},
        {"type": "object", "properties": {"page": {"type": "object", "default": {"size": 9, "at": 0}}}},
        {
            "type": "object",
            "$defs": {"Zebra": {"type": "object"}, "Ant": {"type": "object"}},
            "properties": {"z": {"$ref": "#/$defs/Zebra"}, "a": {"$ref": "#/$defs/Ant"}},
        },
        {"type": "object", "properties": {"mode": {"enum": ["auto", None, True]}}},
        {"type": "object", "properties": {"level": {"type": "string", "enum": ["1", 2]}}},
        {"type": "object", "properties": {"value": {"oneOf": [text, {"type": "number"}]}}},
        {"type": "object", "properties": {"label": text, "children": reference}},
    ]


def make_request(seed: int) -> tuple[dict[str, Any], bool]:
    """A request and whether thinking is on. Its last message is the user's or a tool's."""
    rng = random.Random(seed)
    tools: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        for number in range(rng.randint(1, 3)):
            pool = _odd_schemas() if rng.random() < 0.08 else _schemas()
            about = rng.choice([None, "Does one thing.", "两行\n说明", ""])
            tools.append(_function(f"{rng.choice(NAMES)}_{number}", rng.choice(pool), about))
        if rng.random() < 0.05:
            tools[0] = tools[0]["function"]
        elif rng.random() < 0.05:
            tools = [{"type": "_plugin", "name": "browser"}]
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.4:
        messages.append({"role": rng.choice(["system", "developer"]), "content": rng.choice(TEXTS)})
    calls = 0
    for turn in range(turns := rng.randint(1, 4)):
        messages.append(_said(rng, "user"))
        for _ in range(rng.randint(0, 2) if tools or rng.random() < 0.2 else 0):
            number = rng.randint(1, 3)
            messages += _tool_round(rng, range(calls, calls + number))
            calls += number
        if turn < turns - 1:
            messages.append(_answered(rng))
    return {"messages": messages, "tools": tools or None}, rng.random() < 0.8


def _said(rng: random.Random, role: str) -> dict[str, Any]:
    text = RARE_TEXT if rng.random() < 0.03 else rng.choice(TEXTS)
    message: dict[str, Any] = {"role": role, "content": text}
    if rng.random() < 0.06:
        parts = [rng.choice(TEXTS) for _ in range(rng.randint(1, 2))]
        message["content"] = [{"type": "text", "text": part} for part in parts]
    if rng.random() < 0.1:
        message["name"] = rng.choice(["Ada", "小明"])
    return message


def _answered(rng: random.Random) -> dict[str, Any]:
    message = _said(rng, "assistant")
    if rng.random() < 0.8:
        message["reasoning_content"] = rng.choice(TEXTS)
    return message


def _tool_round(rng: random.Random, indexes: range) -> list[dict[str, Any]]:
    asked = _answered(rng)
    if rng.random() < 0.4:
        asked["content"] = None
    asked["tool_calls"] = []
    results = []
    for index in indexes:
        name = rng.choice(NAMES)
        call_id = rng.choice([f"functions.{name}:{index}", f"call_{index:x}f"])
        arguments = rng.choice(
            ['{"q":"x"}', '{"q": "长江", "n": [1, 2]}', "", {"q": "é", "deep": {"b": 1, "a": None}}]
        )
        function = {"name": name, "arguments": arguments}
        asked["tool_calls"].append({"id": call_id, "type": "function", "function": function})
        result = _said(rng, "tool")
        if rng.random() < 0.95:
            result["tool_call_id"] = call_id
        results.append(result)
    return [asked, *results]
