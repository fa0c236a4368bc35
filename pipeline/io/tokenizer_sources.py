"""Tokenizer settings -> the source's files, byte for byte, and the special table that came with them."""

from __future__ import annotations

import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import BundledSource, HubSource, PathSource, TokenizerSettings
from pipeline.core.contract import FileFacts
from pipeline.errors import ConfigError, ContractError
from pipeline.io import vocabularies

RANKS = "tiktoken.model"
TOKENIZER = "tokenizer.json"
_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True)
class Source:
    """What lies at a source."""

    label: str
    """Names the source in messages."""
    files: Mapping[str, bytes]
    """The pinned files."""
    special: Mapping[str, int] | None
    """The source's own special table, if it has one: a witness that the settings must not contradict."""
    vendor_folder: Path | None = None
    """A snapshot with the vendor's own code, which may be run."""

    @property
    def facts(self) -> dict[str, FileFacts]:
        """Hash and size of every file."""
        return {name: facts_of(data) for name, data in self.files.items()}


def facts_of(data: bytes) -> FileFacts:
    """Hash and size."""
    return FileFacts(hashlib.sha256(data).hexdigest(), len(data))


def read_source(settings: TokenizerSettings, root: Path) -> Source:
    """Raises ConfigError when the source is not there; what is there is not checked yet."""
    kinds = {RANKS, TOKENIZER} & settings.files.keys()
    if len(kinds) != 1:
        raise ConfigError(
            f"tokenizer.files must pin one of {RANKS} and {TOKENIZER}, not {sorted(kinds) or 'none'}"
        )
    if (RANKS in kinds) != (settings.pattern is not None):
        raise ConfigError(f"tokenizer.pattern belongs to a {RANKS} and to nothing else")
    match settings.source:
        case BundledSource(package=package, vocabulary=name):
            if kinds != {RANKS}:
                raise ConfigError(f"tokenizer.files: a bundled source gives a {RANKS}, pin that")
            found = vocabularies.read(package, name)
            return Source(f"{package}/{name}", {RANKS: found.tiktoken_model}, found.special)
        case PathSource(path=path):
            folder = root / path
            if not folder.is_dir():
                raise ConfigError(f"tokenizer.source.path: there is no folder {path}")
            return _read_folder(folder, settings, path)
        case HubSource() as hub:
            return _read_hub(hub, settings)


def parse_ranks(data: bytes) -> dict[bytes, int]:
    """Ranks of a tiktoken file: `base64(bytes) rank` lines."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        token, _, rank = line.partition(b" ")
        try:
            ranks[binascii.a2b_base64(token, strict_mode=True)] = int(rank)
        except ValueError as broken:
            raise ContractError(f"{RANKS} line {number} is no `base64 rank`: {broken}") from None
    return ranks


def _read_folder(folder: Path, settings: TokenizerSettings, label: str) -> Source:
    files = {}
    for name in settings.files:
        if not (folder / name).is_file():
            raise ConfigError(f"tokenizer.files: {label} has no {name}")
        files[name] = (folder / name).read_bytes()
    return Source(label, files, _declared_specials(folder / _CONFIG))


def _declared_specials(path: Path) -> dict[str, int] | None:
    """`added_tokens_decoder` of the vendor's own settings; it names some tokens, not always all."""
    if not path.is_file():
        return None
    declared = json.loads(path.read_text(encoding="utf-8")).get("added_tokens_decoder")
    return {token["content"]: int(token_id) for token_id, token in declared.items()} if declared else None


def _read_hub(hub: HubSource, settings: TokenizerSettings) -> Source:
    """The pinned files at the pinned revision; the vendor's code only where the target trusts it."""
    from huggingface_hub import snapshot_download  # slow to import, and most builds are offline

    wanted = [*settings.files, _CONFIG]
    if hub.trust_remote_code:
        wanted += ["*.py", "config.json", "special_tokens_map.json"]
    label = f"{hub.repo}@{hub.revision[:8]}"
    try:
        folder = Path(snapshot_download(hub.repo, revision=hub.revision, allow_patterns=wanted))
    except (OSError, ValueError) as failed:
        first_line = str(failed).partition("\n")[0]
        raise ConfigError(
            f"tokenizer.source: {label} can't be fetched ({type(failed).__name__}: {first_line}); "
            "check repo and revision, or use a bundled or path source offline"
        ) from failed
    source = _read_folder(folder, settings, label)
    return Source(label, source.files, source.special, folder if hub.trust_remote_code else None)
