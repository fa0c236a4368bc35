"""Encoder + its target's contract -> checks: what was expected and what came; broken ones stop the build.

Special tokens prove nothing about the split pattern and probes prove nothing about a shifted special
table (transformers 5.4 to 5.24 broke Kimi in both ways), so every check is made, and made separately.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.config import FilePin, TokenizerSettings
from pipeline.core import corpus
from pipeline.core.encoding import Encoder
from pipeline.errors import ContractError

_SHOWN_FAULTS = 3
_SHOWN_IDS = 12
_MEND = "Mend conf/target: its tokenizer.source or what it claims"

EDGES = (
    *("", " ", "  ", "\n", "\n\n", " \n", "\r\n", "\t", "\u3000", "\xa0"),
    *("a", "don", "'s", "I'", "it's ", "Zürich", "e\u0301", "\u0301", "\ufe0f"),
    *("你好", "世界，", "。", "ー", "한글", "தமிழ்", "سلام"),
    *("```", "```python\n", "\n```", "}\n", "{", '"', ".", ".\n\n", "//", "==="),
    *("<", ">", "<|", "|>", "</", "[", "]", "|"),
    *("🙂", "❤️", "👩‍💻", "7", "123", "1234", "٣"),
)
"""What may stand beside a special token: wherever a pattern could look or merge across it."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check and its result; `expected` and `found` are made to be read."""

    name: str
    passed: bool
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a file is, byte for byte."""

    sha256: str
    size: int


def special_table(settings: TokenizerSettings) -> dict[str, int]:
    """Every special token the settings speak of: the named ones and the slots that no name claims."""
    table = dict(settings.contract.special_tokens)
    if settings.reserved is not None:
        claimed = set(table.values())
        for token_id in range(settings.reserved.first, settings.reserved.last + 1):
            if token_id not in claimed:
                table[settings.reserved.unnamed.replace("{id}", str(token_id))] = token_id
    return dict(sorted(table.items(), key=lambda item: item[1]))


def check_files(pins: Mapping[str, FilePin], found: Mapping[str, FileFacts]) -> list[Check]:
    """The source's files against their pins."""
    checks = []
    for name, pin in sorted(pins.items()):
        facts = found.get(name)
        size = "no such file" if facts is None else f"{facts.size} bytes"
        sha256 = "no such file" if facts is None else facts.sha256
        checks.append(Check(f"size of {name}", size == f"{pin.size} bytes", f"{pin.size} bytes", size))
        checks.append(Check(f"sha256 of {name}", sha256 == pin.sha256, pin.sha256, sha256))
    return checks


def check_table(
    settings: TokenizerSettings, ordinary: Mapping[int, bytes], vendor: Mapping[str, int] | None
) -> list[Check]:
    """The special table before an encoder is made of it.

    `ordinary` are the tokens of the ranks by id. `vendor` is the special table that came with the
    source: it may lack a name, but it may not contradict one.
    """
    names_of: dict[int, list[str]] = {}
    for name, token_id in settings.contract.special_tokens.items():
        names_of.setdefault(token_id, []).append(name)
    vendor_names = {token_id: name for name, token_id in (vendor or {}).items()}
    checks = []
    for name, token_id in settings.contract.special_tokens.items():
        claim = f"{token_id}{_decoded(token_id, ordinary)}"
        expected, found = "a special id of its own", "one"
        if vendor is not None and vendor.get(name, token_id) != token_id:
            expected, found = claim, f"{vendor[name]} in the source's own table"
        elif vendor_names.get(token_id, name) != name:
            expected, found = claim, f"`{vendor_names[token_id]}` behind that id in the source's own table"
        elif token_id in ordinary:
            found = claim
        elif settings.reserved and not settings.reserved.first <= token_id <= settings.reserved.last:
            expected, found = f"an id in {settings.reserved.first}..{settings.reserved.last}", str(token_id)
        elif len(names_of[token_id]) > 1:
            found = f"{token_id}, shared by {' and '.join(names_of[token_id])}"
        checks.append(Check(f"special id of `{name}`", found == "one", expected, found))
    return checks


def check_encoder(settings: TokenizerSettings, encoder: Encoder) -> list[Check]:
    """Everything the encoder does that the contract speaks of. It must parse special strings in prompts."""
    return [
        *check_quickly(settings, encoder),
        *_check_boundaries(settings, encoder),
        check_corpus(settings, encoder),
    ]


def check_quickly(settings: TokenizerSettings, encoder: Encoder) -> list[Check]:
    """Vocabulary size, special table and probes: the part that is checked again at every load."""
    contract = settings.contract
    size = encoder.vocab_size
    checks = [Check("vocabulary size", size == contract.vocab_size, str(contract.vocab_size), str(size))]
    checks += _check_specials(settings, encoder)
    for probe in contract.probes:
        ids = encoder.encode_prompt(probe.text) if probe.special else encoder.encode(probe.text)
        name = f"probe {probe.text!r}" + (" with special tokens" if probe.special else "")
        checks.append(_same_ids(name, probe.ids, ids))
    return checks


def require(checks: Iterable[Check], source: str, mend: str = _MEND) -> None:
    """Raise ContractError when a check is broken: all counted, the first few listed."""
    every = list(checks)
    broken = [check for check in every if not check.passed]
    if not broken:
        return
    shown = "; ".join(
        f"{check.name}: expected {check.expected}, found {check.found}" for check in broken[:_SHOWN_FAULTS]
    )
    more = f"; and {len(broken) - _SHOWN_FAULTS} more" if len(broken) > _SHOWN_FAULTS else ""
    raise ContractError(
        f"tokenizer {source} breaks {len(broken)} of {len(every)} checks: {shown}{more}. {mend}"
    )


def fingerprint(encoder: Encoder) -> str:
    """Hash over what the encoder does: its special table and the ids of the corpus.

    No file bytes, no versions and nothing that the contract merely says: only a change of behaviour
    may rebuild what was made with the tokenizer. The corpus begins with hand-written probes.
    """
    behaviour = {
        "vocab_size": encoder.vocab_size,
        "special": sorted((token_id, name) for name, token_id in encoder.special.items()),
        "corpus": corpus_sha256(encoder),
    }
    return hashlib.sha256(json.dumps(behaviour, sort_keys=True).encode()).hexdigest()


def corpus_sha256(encoder: Encoder) -> str:
    """Hash over the ids of the corpus, as ordinary text and as prompts."""
    texts = corpus.texts()
    return corpus.ids_sha256(encoder.encode_batch(texts), map(encoder.encode_prompt, texts))


def _check_specials(settings: TokenizerSettings, encoder: Encoder) -> list[Check]:
    table, special_ids = special_table(settings), set(encoder.special.values())
    checks = []
    for name, token_id in table.items():
        found = encoder.special.get(name)
        checks.append(
            Check(
                f"id of `{name}`",
                found == token_id,
                f"{token_id}{_decoded_by(encoder, token_id, name)}",
                "no such special token" if found is None else str(found),
            )
        )
        spelled = _decode(encoder, token_id)
        ids = encoder.encode_prompt(spelled) if spelled else []
        checks.append(_same_ids(f"id {token_id} through text and back", [token_id], ids))
        special = [item for item in encoder.encode(name) if item in special_ids]
        checks.append(
            Check(f"`{name}` in ordinary text", not special, "no special id", str(special or "none"))
        )
    unknown = sorted((item, name) for name, item in encoder.special.items() if name not in table)
    first = f", the first is `{unknown[0][1]}` {unknown[0][0]}" if unknown else ""
    checks.append(Check("special tokens nobody named", not unknown, "0", f"{len(unknown)}{first}"))
    return checks


def _check_boundaries(settings: TokenizerSettings, encoder: Encoder) -> list[Check]:
    """`before + token + after` is the ids of each part: nothing merges or looks across a special token."""
    alone = dict(zip(EDGES, encoder.encode_batch(EDGES), strict=True))
    checks = []
    for name, token_id in settings.contract.special_tokens.items():
        check = Check(f"boundaries of `{name}`", True, f"{len(EDGES) ** 2} pairs", f"{len(EDGES) ** 2} pairs")
        for before in EDGES:
            for after in EDGES:
                expected = [*alone[before], token_id, *alone[after]]
                found = encoder.encode_prompt(before + name + after)
                if check.passed and found != expected:
                    check = _same_ids(f"boundary {before!r} + `{name}` + {after!r}", expected, found)
        checks.append(check)
    return checks


def check_corpus(settings: TokenizerSettings, encoder: Encoder) -> Check:
    expected, found = settings.contract.corpus_sha256, corpus_sha256(encoder)
    return Check(f"ids of the corpus ({corpus.SIZE} strings)", found == expected, expected, found)


def _same_ids(name: str, expected: Sequence[int], found: Sequence[int]) -> Check:
    return Check(name, list(expected) == list(found), *differing_ids(expected, found))


def differing_ids(expected: Sequence[int], found: Sequence[int]) -> tuple[str, str]:
    """Both lists as text, from a little before the place where they part."""
    both = min(len(expected), len(found))
    parted = next((n for n in range(both) if expected[n] != found[n]), both)
    start = max(0, parted - 2) if parted + 2 > _SHOWN_IDS else 0
    return _shown(expected, start), _shown(found, start)


def _shown(ids: Sequence[int], start: int) -> str:
    text = ", ".join(map(str, ids[start : start + _SHOWN_IDS]))
    before = "..., " if start else ""
    after = f", ... ({len(ids)} ids)" if len(ids) > start + _SHOWN_IDS else ""
    return f"[{before}{text}{after}]"


def _decode(encoder: Encoder, token_id: int) -> str | None:
    """None for an id that no token has."""
    try:
        return encoder.decode_bytes([token_id]).decode("utf-8", "replace")
    except ValueError:
        return None


def _decoded_by(encoder: Encoder, token_id: int, name: str) -> str:
    """What stands behind a claimed id, if it is something else than the claim."""
    text = _decode(encoder, token_id)
    if text is None:
        return " (no token has that id)"
    return "" if text == name else f" (that id decodes to {_quoted(text)})"


def _decoded(token_id: int, ordinary: Mapping[int, bytes]) -> str:
    if token_id not in ordinary:
        return ""
    return f" (that id decodes to {_quoted(ordinary[token_id].decode('utf-8', 'replace'))})"


def _quoted(text: str) -> str:
    return f"`{text}`" if text.isprintable() else repr(text)
