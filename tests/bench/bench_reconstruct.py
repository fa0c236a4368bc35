"""Reading answers against bare tokenizing of the same texts: paired runs, one thread, medians.

Writes build/bench/reconstruct.json. `vs_tiktoken`: our tokens a second over those of a bare
`encode_ordinary` loop; 1.0 would mean that reading costs nothing beside encoding.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from pathlib import Path

from rich.console import Console

from pipeline.core.answer import read_answer
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.reconstruct import Case, reconstruct_batch
from pipeline.io.conf import load_target
from pipeline.io.files import write_json
from pipeline.io.tokenizers import ensure

ROOT = Path(__file__).resolve().parent.parent.parent
ROUNDS = 7
ROWS = {200: 2000, 4000: 100}


def _texts(encoder, length):
    """Reasoning and content of about `length` tokens, out of the simulator's corpus."""
    lines = (ROOT / "pipeline/simulator/corpus/reasoning.jsonl").read_text(encoding="utf-8").split("\n")
    pieces = [json.loads(line)["text"] for line in lines if line]
    draw = random.Random(length)
    for _ in range(ROWS[length]):
        text = draw.choice(pieces)
        while len(encoder.encode(text)) < length // 2:
            text += "\n\n" + draw.choice(pieces)
        yield text, draw.choice(pieces) + text[::2]


def _pair(texts, cases, encoder, grammar):
    """Seconds of bare encoding and of reading, one after the other."""
    start = time.perf_counter()
    for text in texts:
        encoder.encode(text)
    between = time.perf_counter()
    reconstruct_batch(cases, encoder, grammar)
    return between - start, time.perf_counter() - between


def main() -> None:
    target = load_target("kimi_k2_5", ROOT)
    encoder = ensure(target.tokenizer, target.render.encoding, ROOT)
    grammar = CompiledGrammar(target.grammar, encoder.special)
    result = {}
    for length in ROWS:
        rows = list(_texts(encoder, length))
        cases = []
        for reasoning, content in rows:
            count = len(encoder.encode(reasoning)) + len(encoder.encode(content)) + 2
            message = {"reasoning": reasoning, "content": content}
            choice = {"message": message, "finish_reason": "stop"}
            cases.append(Case(read_answer({"choices": [choice], "usage": {"completion_tokens": count}}), {}))
        tokens = sum(case.answer.usage.completion_tokens for case in cases)
        texts = [text for row in rows for text in row]
        pairs = [_pair(texts, cases, encoder, grammar) for _ in range(ROUNDS)]
        ratios = [bare / ours for bare, ours in pairs]
        rates = [tokens / ours for _, ours in pairs]
        result[f"rows_of_{tokens // len(rows)}_tokens"] = {
            "rows": len(rows),
            "tokens_per_s": round(statistics.median(rates)),
            "vs_tiktoken": round(statistics.median(ratios), 3),
            "vs_tiktoken_all": [round(ratio, 3) for ratio in ratios],
        }
    write_json(ROOT / "build/bench/reconstruct.json", result)
    Console().print_json(json.dumps(result))


if __name__ == "__main__":
    main()
