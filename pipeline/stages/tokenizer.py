"""A target's tokenizer settings -> build/tokenizer/: its files, checked, and `contract.json`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from pipeline.config import TokenizerSettings
from pipeline.core import contract, corpus
from pipeline.io.files import write_json
from pipeline.io.tokenizer_folder import atomic_folder
from pipeline.io.tokenizers import RECORD, build


def run(settings: TokenizerSettings, root: Path, out: Path, target: str | None = None) -> str:
    """Build the tokenizer; nothing is left in `out` unless it keeps its contract.

    `contract.json` changes only with the settings, the files or the checks; later stages depend on
    its `fingerprint` alone, which changes only with what the tokenizer does.
    """
    with atomic_folder(out) as work:
        built = build(settings, work, root)
        fingerprint = contract.fingerprint(built.encoder)
        record = {
            "target": target,
            "fingerprint": fingerprint,
            "counts": {
                "checks": len(built.checks),
                "passed": sum(check.passed for check in built.checks),
                "corpus_strings": corpus.SIZE,
                "special_tokens": len(built.encoder.special),
                "vocabulary": built.encoder.vocab_size,
            },
            "files": {name: asdict(facts) for name, facts in sorted(built.files.items())},
            "settings": settings.model_dump(mode="json"),
            "checks": [asdict(check) for check in built.checks],
        }
        write_json(work / RECORD, record)
    return (
        f"tokenizer {built.source}: {len(built.checks)} checks pass, "
        f"{built.encoder.vocab_size} ids, fingerprint {fingerprint[:16]}"
    )
