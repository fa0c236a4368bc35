"""A folder of texts, one JSON Lines file a kind -> what answers are built from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.simulator.chance import Chance

DEFAULT_FOLDER = Path(__file__).with_name("corpus")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts by kind (the file's name); objects and strings to put into the arguments of calls."""

    texts: dict[str, tuple[str, ...]]
    objects: tuple[dict[str, Any], ...]
    strings: tuple[str, ...]

    def has(self, kind: str) -> bool:
        """Whether there are texts of this kind."""
        return kind in self.texts

    def pick(self, kinds: Sequence[str], chance: Chance) -> str:
        """A text of the first kind that there is; of any kind if there is none of them."""
        kind = next((kind for kind in kinds if kind in self.texts), None)
        if kind is None:
            kind = chance.pick(sorted(self.texts))
        return chance.pick(self.texts[kind])


@lru_cache(maxsize=4)
def load_corpus(folder: Path = DEFAULT_FOLDER) -> Corpus:
    """All files of the folder. A line holds a `text`, or a `value`: any JSON, for arguments."""
    texts: dict[str, tuple[str, ...]] = {}
    values: list[Any] = []
    for file in sorted(folder.glob("*.jsonl")):
        found: list[str] = []
        for number, line in enumerate(file.read_text("utf-8").split("\n"), 1):
            record = _record(line, f"{file.name} line {number}")
            if "value" in record:
                values.append(record["value"])
            elif record:
                found.append(record["text"])
        if found:
            texts[file.stem] = tuple(found)
    if not texts:
        raise ConfigError(f"{folder}: no texts to answer with; put <kind>.jsonl files there")
    return Corpus(
        texts,
        objects=tuple(value for value in values if isinstance(value, dict)),
        strings=tuple(value for value in values if isinstance(value, str)),
    )


def _record(line: str, place: str) -> dict[str, Any]:
    if not line:
        return {}
    try:
        record = json.loads(line)
    except ValueError as broken:
        raise ConfigError(f"simulator corpus: {place}: {broken}") from None
    if not isinstance(record, dict) or not ("value" in record or isinstance(record.get("text"), str)):
        raise ConfigError(f"simulator corpus: {place}: a line is an object with a `text` or a `value`")
    return record
