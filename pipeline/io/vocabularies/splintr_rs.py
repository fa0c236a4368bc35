"""Vocabulary name -> rank file and special tokens, out of the PyPI package splintr-rs (works offline).

The package adds tokens of its own ("agent tokens" such as <|im_start|>, 54 for Kimi) above every id of
the model. They are not the model's and must not leak: ids from `base_vocab_size` on are dropped.
"""

from __future__ import annotations

from base64 import b64encode
from itertools import takewhile

import splintr

from pipeline.errors import ConfigError
from pipeline.io.vocabularies import Vocabulary


def read(vocabulary: str) -> Vocabulary:
    """Ordinary ids run from 0 to the first special one; the package gives no bytes for a special id."""
    try:
        tokenizer = splintr.Tokenizer.from_pretrained(vocabulary)
        size = splintr.base_vocab_size(vocabulary)
    except ValueError as unknown:
        raise ConfigError(f"tokenizer.source.vocabulary {vocabulary!r}: {unknown}") from None
    if not hasattr(tokenizer, "special_tokens") or tokenizer.family != "BPE":
        raise ConfigError(f"tokenizer.source.vocabulary {vocabulary!r} is no byte-level BPE and has no ranks")
    tokens = takewhile(bool, map(tokenizer.decode_token_bytes, range(size)))
    return Vocabulary(
        b"".join(b"%b %d\n" % (b64encode(token), rank) for rank, token in enumerate(tokens)),
        {name: token_id for name, token_id in tokenizer.special_tokens().items() if token_id < size},
    )
