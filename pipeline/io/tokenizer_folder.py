"""Tokenizer source -> a folder that AutoTokenizer loads without remote code, and the checks of it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from pipeline.config import PromptEncoding, TokenizerSettings
from pipeline.core import corpus
from pipeline.core.contract import Check, differing_ids, require, special_table
from pipeline.core.encoding import Encoder, HfEncoder
from pipeline.io.tokenizer_sources import RANKS, TOKENIZER, Source

_PARSED = PromptEncoding(parse_special=True)


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """A folder to fill; it becomes `out` when the block ends well, and vanishes when it does not."""
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    work.chmod(0o755)  # mkdtemp keeps others out
    try:
        yield work
        if out.exists():
            old = work.with_name(f"{work.name}-old")
            out.rename(old)
            work.rename(out)
            shutil.rmtree(old)
        else:
            work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write_folder(
    folder: Path, settings: TokenizerSettings, source: Source, chat_template: str | None
) -> None:
    """The source's files, `tokenizer.json` and what AutoTokenizer must know. The same bytes every time."""
    for name, data in source.files.items():
        (folder / name).write_bytes(data)
    if TOKENIZER not in source.files:
        (folder / TOKENIZER).write_text(_convert(folder / RANKS, settings, source.label), encoding="utf-8")
    roles = {"bos_token": settings.bos_token, "eos_token": settings.eos_token}
    roles |= {"pad_token": settings.pad_token, "unk_token": settings.unk_token}
    config = {
        # The generic class: it takes tokenizer.json as it is. A model's own class may rebuild the
        # split pattern from what it believes of the model (transformers 5).
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{role: token for role, token in roles.items() if token is not None},
    }
    text = json.dumps(config, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")


def _convert(ranks: Path, settings: TokenizerSettings, label: str) -> str:
    """An exact `tokenizer.json`: no difference from tiktoken on 14 million strings (every scalar value
    in 13 contexts), as long as the pattern is given and every special slot is added, in the order of ids."""
    _quiet_transformers()
    from transformers.convert_slow_tokenizer import TikTokenConverter

    converter = TikTokenConverter(vocab_file=str(ranks), pattern=settings.split_pattern)  # type: ignore[no-untyped-call]
    tokenizer = converter.converted()
    checks = []
    for name, token_id in special_table(settings).items():
        special = name not in settings.ordinary_flag
        tokenizer.add_tokens([AddedToken(name, normalized=False, special=special)])
        found = tokenizer.token_to_id(name)
        checks.append(Check(f"id of `{name}` in {TOKENIZER}", found == token_id, str(token_id), str(found)))
    require(checks, label)  # ids are given out one after another: a hole in the table shifts the rest
    text: str = tokenizer.to_str(pretty=False)
    return text


def check_folder(folder: Path, settings: TokenizerSettings, encoder: Encoder) -> list[Check]:
    """Does the folder, as AutoTokenizer loads it, do what the encoder does?"""
    tokenizer = _auto_tokenizer(folder)
    checks = [
        Check(
            "AutoTokenizer: length",
            len(tokenizer) == encoder.vocab_size,
            str(encoder.vocab_size),
            str(len(tokenizer)),
        )
    ]
    for role in ("bos_token", "eos_token", "pad_token", "unk_token"):
        name = getattr(settings, role)
        expected, found = encoder.special.get(name), getattr(tokenizer, f"{role}_id")
        checks.append(Check(f"AutoTokenizer: id of {role}", expected == found, str(expected), str(found)))
    texts = corpus.texts()
    prompts = [encoder.encode_prompt(text) for text in texts]
    checks.append(_same("AutoTokenizer: corpus as prompts", texts, prompts, _encoded(tokenizer, texts)))
    ordinary = HfEncoder(tokenizer.backend_tokenizer, _PARSED).encode_batch(texts)
    checks.append(
        _same(f"{TOKENIZER}: corpus as ordinary text", texts, encoder.encode_batch(texts), ordinary)
    )
    decoded = [encoder.decode_bytes(ids).decode("utf-8", "replace") for ids in prompts]
    wrong = [a for a, b in zip(decoded, tokenizer.batch_decode(prompts), strict=True) if a != b]
    shown = f"{len(wrong)} differ, the first is {wrong[0]!r}" if wrong else "0 differ"
    checks.append(Check("AutoTokenizer: corpus decoded", not wrong, "0 differ", shown))
    kept = [name for name, token_id in encoder.special.items() if _survives(tokenizer, token_id)]
    expected_kept, found_kept = sorted(settings.ordinary_flag), sorted(kept)
    checks.append(
        Check(
            "AutoTokenizer: special tokens that skip_special_tokens keeps",
            expected_kept == found_kept,
            ", ".join(expected_kept) or "none",
            ", ".join(found_kept) or "none",
        )
    )
    return checks


def check_vendor(folder: Path, encoder: Encoder) -> list[Check]:
    """Does the vendor's own class agree? It runs code of the source: only where the target trusts it."""
    tokenizer = _auto_tokenizer(folder, trust_remote_code=True)
    texts = corpus.texts()
    expected = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    return [
        _same("the vendor's own class: corpus as prompts", texts, expected, map(encoder.encode_prompt, texts))
    ]


def _survives(tokenizer: Any, token_id: int) -> bool:
    return bool(tokenizer.decode([token_id], skip_special_tokens=True))


def _encoded(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return ids


def _same(
    name: str,
    texts: Sequence[str],
    expected: Sequence[list[int]],
    found: Iterator[list[int]] | list[list[int]],
) -> Check:
    wrong = [row for row in zip(texts, expected, found, strict=True) if row[1] != row[2]]
    if not wrong:
        return Check(name, True, "0 differ", "0 differ")
    text, first_expected, first_found = wrong[0]
    wanted, came = differing_ids(first_expected, first_found)
    return Check(name, False, f"{wanted} for {text[:80]!r}", f"{came}; {len(wrong)} of {len(texts)} differ")


def _auto_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    _quiet_transformers()
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        str(folder), local_files_only=True, trust_remote_code=trust_remote_code
    )


def _quiet_transformers() -> None:
    """It advises, on import, to install a deep-learning framework; only its tokenizers are used here."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
