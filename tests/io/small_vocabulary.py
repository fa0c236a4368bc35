"""A vocabulary of 270 tokens and eight special slots, so that a folder is built in a moment."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from pathlib import Path

import tiktoken

from pipeline.config import Contract, FilePin, PathSource, Probe, ReservedSlots, TokenizerSettings
from pipeline.core import corpus

WORDS = (b"th", b"he", b"the", b" t", b" the", b"on", b"don", b"'t", b"in", b"ing", b"  ", b"    ", b"\n\n")
RANKS = {bytes([value]): value for value in range(256)} | {word: 256 + n for n, word in enumerate(WORDS)}
FIRST = len(RANKS)
PATTERN = r"'(?:t|s)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
NAMED = {"[BOS]": FIRST, "<|im_end|>": FIRST + 2, "<think>": FIRST + 5, "</think>": FIRST + 6}
MODEL = b"".join(b"%b %d\n" % (b64encode(token), rank) for token, rank in RANKS.items())


def bare_encoding() -> tiktoken.Encoding:
    """What the built tokenizer must do."""
    names = {token_id: name for name, token_id in NAMED.items()}
    special = {names.get(n, f"<|r{n}|>"): n for n in range(FIRST, FIRST + 8)}
    return tiktoken.Encoding("small", pat_str=PATTERN, mergeable_ranks=RANKS, special_tokens=special)


def small_settings(path: str, data: bytes = MODEL) -> TokenizerSettings:
    """Settings that such a tokenizer keeps, over the corpus as it is now."""
    bare, texts = bare_encoding(), corpus.texts()
    return TokenizerSettings(
        source=PathSource(kind="path", path=path),
        files={"tiktoken.model": pin(data)},
        pattern=(PATTERN,),
        reserved=ReservedSlots(first=FIRST, last=FIRST + 7, unnamed="<|r{id}|>"),
        ordinary_flag=("<think>", "</think>"),
        bos_token="[BOS]",
        eos_token="<|im_end|>",
        contract=Contract(
            vocab_size=FIRST + 8,
            special_tokens=NAMED,
            probes=(
                Probe(text=" the don't", ids=(RANKS[b" the"], 32, RANKS[b"don"], RANKS[b"'t"])),
                Probe(text="<think>", ids=(FIRST + 5,), special=True),
            ),
            corpus_sha256=corpus.ids_sha256(
                map(bare.encode_ordinary, texts),
                (bare.encode(text, allowed_special="all") for text in texts),
            ),
        ),
    )


def pin(data: bytes) -> FilePin:
    return FilePin(sha256=hashlib.sha256(data).hexdigest(), size=len(data))


def write_source(root: Path, data: bytes = MODEL) -> TokenizerSettings:
    """A folder `source` under `root` with that file, and settings that pin it."""
    (root / "source").mkdir()
    (root / "source" / "tiktoken.model").write_bytes(data)
    return small_settings("source", data)
