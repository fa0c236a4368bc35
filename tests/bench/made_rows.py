"""Responses as the generate stage writes them, made without HTTP: any number of rows, of any length."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.config import RenderSettings
from pipeline.core.encoding import Encoder
from pipeline.core.render import render_ids
from pipeline.schemas import RESPONSES

ROOT = Path(__file__).resolve().parent.parent.parent
_HEADERS = '{"content-type":"application/json","x-generation-id":"gen-1"}'


def _corpus(name: str) -> list[str]:
    lines = (ROOT / f"pipeline/simulator/corpus/{name}.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line)["text"] for line in lines if line]


class Rows:
    """Row `n` of a set with about `length` tokens a row (a third each: prompt, reasoning, content).

    A row follows from its number and `salt` alone, so that a change can be made at any place.
    """

    def __init__(self, encoder: Encoder, render: RenderSettings, length: int) -> None:
        self._encoder, self._render = encoder, render
        self._words = [text.split(" ") for text in _corpus("reasoning")]
        self._length = length

    def _text(self, draw: random.Random) -> str:
        """About a third of the row: 1.35 tokens a word in this corpus."""
        want, words = int(self._length / 3 / 1.35), list[str]()
        while len(words) < want:
            text = draw.choice(self._words)
            start = draw.randrange(max(1, len(text) - want))
            words += text[start : start + want - len(words)]
        return " ".join(words)

    def row(self, number: int, salt: str = "") -> dict[str, Any]:
        """One good answer, whose counts fit."""
        draw = random.Random(f"{number}{salt}")
        messages = [{"role": "user", "content": f"{number}{salt}: {self._text(draw)}"}]
        request = {"max_tokens": 8192, "messages": messages, "model": "m", "temperature": 1.0}
        reasoning, content = self._text(draw), self._text(draw)
        prompt_tokens = len(render_ids(request, self._render, self._encoder).ids)
        count = len(self._encoder.encode(reasoning)) + len(self._encoder.encode(content)) + 2
        message = {"role": "assistant", "reasoning": reasoning, "content": content}
        body = {
            "id": f"gen-{number}",
            "provider": "Verbatim",
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": count, "cost": 0.001},
        }
        prompt_id = hashlib.sha256(json.dumps(messages).encode()).hexdigest()
        return {
            "row_id": hashlib.sha256(f"{prompt_id}:0".encode()).hexdigest(),
            "prompt_id": prompt_id,
            "turn": 0,
            "request": json.dumps(request, ensure_ascii=False, separators=(",", ":")),
            "request_key": hashlib.sha256(prompt_id.encode()).hexdigest(),
            "status": 200,
            "headers": _HEADERS,
            "body": json.dumps(body, ensure_ascii=False),
            "served_provider": "Verbatim",
            "served_model": "m",
            "generation_id": f"gen-{number}",
            "finish_reason": "stop",
            "cost_usd": 0.001,
            "cost_source": "usage",
            "failure": None,
            "failure_detail": None,
        }

    def tables(self, count: int, at_once: int = 500) -> Iterator[pa.Table]:
        """Parts of a responses file."""
        for start in range(0, count, at_once):
            rows = [self.row(number) for number in range(start, min(start + at_once, count))]
            yield pa.Table.from_pylist(rows, schema=RESPONSES)
