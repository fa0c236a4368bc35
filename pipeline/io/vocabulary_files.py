"""A draft vocabulary -> the files in which a trainer reads it."""

from __future__ import annotations

import io
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np

from pipeline.core.draft_vocabulary import DraftVocabulary
from pipeline.errors import ConfigError
from pipeline.io.files import write_bytes


def write_arrays(
    folder: Path,
    module: ModuleType,
    vocabulary: DraftVocabulary,
    form: Literal["npy", "pt"],
    format_name: str,
) -> None:
    """`npy`: d2t.npy, t2d.npy and token_freq.npy. `pt`: what the format's module calls for, through torch.

    Raises ConfigError where the trainer has no such files or torch is not installed.
    """
    if form == "npy":
        for name, array in (
            ("d2t", vocabulary.d2t),
            ("t2d", vocabulary.t2d),
            ("token_freq", vocabulary.counts),
        ):
            data = io.BytesIO()
            np.save(data, array)
            write_bytes(folder / f"{name}.npy", data.getvalue())
        return
    make = getattr(module, "vocabulary_files", None)
    if make is None:
        raise ConfigError(
            f"conf/export/{format_name}.yaml: vocabulary_as: pt: this format has no such files; set npy"
        )
    try:
        import torch
    except ImportError:
        raise ConfigError(
            f"conf/export/{format_name}.yaml: vocabulary_as: pt: torch is not installed: run "
            "`.venv/bin/pip install torch`, or set npy"
        ) from None
    for name, value in make(vocabulary).items():
        data = io.BytesIO()
        torch.save(_tensors(value, torch), data)
        write_bytes(folder / name, data.getvalue())


def _tensors(value: dict[Any, Any], torch: Any) -> dict[Any, Any]:
    return {
        key: torch.from_numpy(item) if isinstance(item, np.ndarray) else item for key, item in value.items()
    }
