"""Target kimi_k2_5 as the tests use it: settings, tokenizer, and a reference that shares no code."""

from __future__ import annotations

import hashlib
import json
import os
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import splintr
import tiktoken
import yaml

from pipeline.config import Target, TokenizerSettings
from pipeline.core.encoding import Encoder
from pipeline.io.tokenizers import ensure
from pipeline.stages import tokenizer as tokenizer_stage

ROOT = Path(__file__).resolve().parent.parent

# Written down once more, so that a wrong conf/target can't make itself right.
KIMI_PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
KIMI_NAMED = {
    "[BOS]": 163584,
    "[EOS]": 163585,
    "<|im_end|>": 163586,
    "<|im_user|>": 163587,
    "<|im_assistant|>": 163588,
    "<|start_header_id|>": 163590,
    "<|end_header_id|>": 163591,
    "[EOT]": 163593,
    "<|im_system|>": 163594,
    "<|tool_calls_section_begin|>": 163595,
    "<|tool_calls_section_end|>": 163596,
    "<|tool_call_begin|>": 163597,
    "<|tool_call_argument_begin|>": 163598,
    "<|tool_call_end|>": 163599,
    "<|im_middle|>": 163601,
    "<|media_begin|>": 163602,
    "<|media_content|>": 163603,
    "<|media_end|>": 163604,
    "<|media_pad|>": 163605,
    "<think>": 163606,
    "</think>": 163607,
    "[UNK]": 163838,
    "[PAD]": 163839,
}
KIMI_MODEL_SHA256 = "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103"


@pytest.fixture(scope="session")
def kimi_target() -> Target:
    """conf/target/kimi_k2_5.yaml."""
    written = yaml.safe_load((ROOT / "conf/target/kimi_k2_5.yaml").read_text(encoding="utf-8"))
    return Target.model_validate_json(json.dumps(written))


@pytest.fixture(scope="session")
def kimi_settings() -> TokenizerSettings:
    """Its tokenizer part alone."""
    written = yaml.safe_load((ROOT / "conf/target/kimi_k2_5.yaml").read_text(encoding="utf-8"))
    return TokenizerSettings.model_validate_json(json.dumps(written["tokenizer"]))


@pytest.fixture(scope="session")
def kimi(kimi_target: Target, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """The target's encoder, made in memory from the bundled ranks (half a second)."""
    empty = tmp_path_factory.mktemp("nothing-built")
    return ensure(kimi_target.tokenizer, kimi_target.render.encoding, empty)


@pytest.fixture(scope="session")
def kimi_tokenizer_dir(kimi_settings: TokenizerSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """build/tokenizer as the stage writes it."""
    folder = tmp_path_factory.mktemp("build") / "tokenizer"
    tokenizer_stage.run(kimi_settings, ROOT, folder, "kimi_k2_5")
    return folder


@pytest.fixture(scope="session")
def kimi_hf(kimi_tokenizer_dir: Path) -> Any:
    """That folder as trainers load it."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(kimi_tokenizer_dir), local_files_only=True)


@pytest.fixture(scope="session")
def kimi_ranks() -> dict[bytes, int]:
    """The vendor's ranks, read here without the pipeline."""
    package = splintr.Tokenizer.from_pretrained("kimi_k2")
    ranks = {package.decode_token_bytes(rank): rank for rank in range(163584)}
    lines = b"".join(b"%b %d\n" % (b64encode(token), rank) for token, rank in ranks.items())
    assert hashlib.sha256(lines).hexdigest() == KIMI_MODEL_SHA256
    return ranks


@pytest.fixture(scope="session")
def reference(kimi_ranks: dict[bytes, int]) -> tiktoken.Encoding:
    """A bare tiktoken encoding of ranks, pattern and table above: what every id is compared with."""
    named = {token_id: name for name, token_id in KIMI_NAMED.items()}
    special = {named.get(i, f"<|reserved_token_{i}|>"): i for i in range(163584, 163840)}
    return tiktoken.Encoding(
        "reference", pat_str=KIMI_PATTERN, mergeable_ranks=kimi_ranks, special_tokens=special
    )
