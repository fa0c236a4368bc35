"""Tokenizer settings -> a checked tokenizer: built as a folder, loaded from it, or made in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastokens
from pydantic import ValidationError
from tokenizers import Tokenizer

from pipeline.config import FilePin, PromptEncoding, TokenizerSettings
from pipeline.core import contract
from pipeline.core.contract import Check, FileFacts
from pipeline.core.encoding import Encoder, HfEncoder, TiktokenEncoder
from pipeline.core.fast_encoding import FastEncoder
from pipeline.errors import ConfigError, StageError
from pipeline.io.files import read_json
from pipeline.io.tokenizer_folder import atomic_folder, check_folder, check_vendor, write_folder
from pipeline.io.tokenizer_sources import RANKS, TOKENIZER, Source, facts_of, parse_ranks, read_source

RECORD = "contract.json"
"""The tokenizer stage writes it beside the files: what they must be, and every check with its result."""

_REBUILD = "Run `dvc repro -f tokenizer`"
_PARSED = PromptEncoding(parse_special=True)


@dataclass(frozen=True)
class Built:
    """A tokenizer that keeps its contract."""

    encoder: Encoder
    """Parses special strings in prompts and cuts no text."""
    source: str
    files: Mapping[str, FileFacts]
    """Every file of the folder."""
    checks: tuple[Check, ...]
    """All of them, passed."""


def build(settings: TokenizerSettings, out: Path, root: Path, chat_template: str | None = None) -> Built:
    """Write the tokenizer's folder, whole or not at all. Raises ContractError naming expected and found."""
    source = read_source(settings, root)
    checks, encoder = _checked_encoder(settings, source)
    behaviour = contract.check_encoder(settings, encoder)
    if source.vendor_folder is not None:
        behaviour += check_vendor(source.vendor_folder, encoder)
    contract.require(behaviour, source.label)
    with atomic_folder(out) as work:
        write_folder(work, settings, source, chat_template)
        written = check_folder(work, settings, encoder)
        contract.require(written, source.label)
        files = {path.name: facts_of(path.read_bytes()) for path in sorted(work.iterdir())}
    return Built(encoder, source.label, files, (*checks, *behaviour, *written))


def load(folder: Path, prompt: PromptEncoding, settings: TokenizerSettings | None = None) -> Encoder:
    """Read a built folder (0.5 s for Kimi) and check it cheaply: its files, special table and probes.

    Without `settings` those hold that it was built with. Raises ContractError when something changed.
    """
    record = read_json(folder / RECORD)
    settings = settings or _recorded_settings(record, folder)
    label = f"in {folder}"
    data = {name: (folder / name).read_bytes() for name in record["files"] if (folder / name).is_file()}
    written = {name: FilePin(**facts) for name, facts in record["files"].items()}
    pins = {**written, **settings.files}
    found = {name: facts_of(item) for name, item in data.items()}
    contract.require(contract.check_files(pins, found), label, _REBUILD)
    encoder = _encoder(settings, data)
    contract.require(contract.check_quickly(settings, encoder), label, _REBUILD)
    return encoder.with_prompt(prompt)


def load_fast(folder: Path, prompt: PromptEncoding) -> Encoder:
    """`load`, and over it an encoder that is ten times as fast, compared with it over the whole corpus.

    One second longer to load: worth it from some 15,000 rows on. Raises ContractError where the two differ.
    """
    settings = _recorded_settings(read_json(folder / RECORD), folder)
    reference = load(folder, prompt, settings)
    pattern = settings.split_pattern
    if pattern is not None:
        special = contract.special_table(settings)
        fast = fastokens.Tokenizer.from_tiktoken(str(folder / RANKS), pattern=pattern, special_tokens=special)
    else:
        fast = fastokens.Tokenizer.from_file(str(folder / TOKENIZER))
    encoder = FastEncoder(reference, fast, _PARSED)
    mend = "Set runtime.fast_encoder: false in conf/runtime/default.yaml"
    contract.require(
        [*contract.check_quickly(settings, encoder), contract.check_corpus(settings, encoder)],
        f"fastokens, from {folder}",
        mend,
    )
    return encoder.with_prompt(prompt)


def ensure(settings: TokenizerSettings, prompt: PromptEncoding, root: Path) -> Encoder:
    """The built tokenizer if it is of these settings; else one made in memory from the source."""
    folder = root / "build" / "tokenizer"
    built = read_json(folder / RECORD) if (folder / RECORD).is_file() else {}
    if built.get("settings") == settings.model_dump(mode="json"):
        return load(folder, prompt, settings)
    source = read_source(settings, root)
    _, encoder = _checked_encoder(settings, source)
    contract.require(contract.check_quickly(settings, encoder), source.label)
    return encoder.with_prompt(prompt)


def _recorded_settings(record: dict[str, Any], folder: Path) -> TokenizerSettings:
    try:
        return TokenizerSettings.model_validate_json(json.dumps(record.get("settings")))
    except ValidationError as broken:
        first = broken.errors()[0]
        key = ".".join(map(str, ("settings", *first["loc"])))
        raise StageError(f"{folder / RECORD}: {key}: {first['msg']}; {_REBUILD}") from None


def _checked_encoder(
    settings: TokenizerSettings, source: Source
) -> tuple[list[Check], TiktokenEncoder | HfEncoder]:
    """Files first, then the special table: with either broken no encoder can be made that means anything."""
    checks = contract.check_files(settings.files, source.facts)
    contract.require(checks, source.label)
    ranks = parse_ranks(source.files[RANKS]) if RANKS in source.files else {}
    table = contract.check_table(settings, {rank: token for token, rank in ranks.items()}, source.special)
    contract.require(table, source.label)
    return [*checks, *table], _encoder(settings, source.files, ranks)


def _encoder(
    settings: TokenizerSettings, files: Mapping[str, bytes], ranks: Mapping[bytes, int] | None = None
) -> TiktokenEncoder | HfEncoder:
    if settings.split_pattern is not None:
        special = contract.special_table(settings)
        return TiktokenEncoder(ranks or parse_ranks(files[RANKS]), settings.split_pattern, special, _PARSED)
    try:
        return HfEncoder(Tokenizer.from_str(files[TOKENIZER].decode()), _PARSED)
    except Exception as broken:  # tokenizers raises bare Exception for a file it can't read
        raise ConfigError(f"tokenizer.source: {TOKENIZER} can't be used: {broken}") from broken
