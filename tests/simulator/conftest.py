"""Running servers, requests to ask them, and special tokens written down once more."""

from __future__ import annotations

import json

import httpx
import pytest

from pipeline.simulator.server import serve

MARKS = {
    163586: "<|im_end|>",
    163595: "<|tool_calls_section_begin|>",
    163596: "<|tool_calls_section_end|>",
    163597: "<|tool_call_begin|>",
    163598: "<|tool_call_argument_begin|>",
    163599: "<|tool_call_end|>",
    163607: "</think>",
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "parameters": {
                "type": "object",
                "properties": {"q": {"type": "string"}, "deep": {"type": "boolean"}},
                "required": ["q"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]


def question(number, **extra):
    """A request body; every third offers tools unless told otherwise."""
    body = {
        "model": "moonshotai/kimi-k2.5",
        "messages": [{"role": "user", "content": f"Tell me about the number {number}, please."}],
        "max_tokens": 8192,
    }
    if number % 3 == 0:
        body["tools"] = TOOLS
    return {**body, **extra}


def spelled(ids, reference):
    """The text of ids with special tokens spelled out."""
    return reference.decode_bytes(ids).decode(errors="replace")


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory):
    """A folder with few texts and few kinds, as somebody might write for a test."""
    folder = tmp_path_factory.mktemp("corpus")
    for kind, lines in {
        "chat": [{"text": "It's fine."}, {"text": "naïve café 🙂"}],
        "reasoning": [{"text": "Let me think."}],
        "arguments": [{"value": {"a": 1}}, {"value": "text"}, {"value": 3}],
    }.items():
        written = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{kind}.jsonl").write_text(written, "utf-8")
    return folder


def _client(running):
    return httpx.Client(base_url=running.base_url, trust_env=False, timeout=30)


@pytest.fixture(scope="session")
def default_server():
    """A client of a server with profile default."""
    with serve("default", 7) as running, _client(running) as client:
        yield client


@pytest.fixture(scope="session")
def hostile_server():
    """A client of a server with profile hostile."""
    with serve("hostile", 7) as running, _client(running) as client:
        yield client


@pytest.fixture(scope="session")
def faulty_server():
    """A client of a server with profile mixed_faults."""
    with serve("mixed_faults", 7) as running, _client(running) as client:
        yield client


@pytest.fixture(scope="session")
def stormy_server():
    """A client of a server with profile stormy."""
    with serve("stormy", 7) as running, _client(running) as client:
        yield client
