"""conf/, params.yaml, requirements.lock -> build/config.yaml: for each stage its settings, and nothing else.

Only what changes data stands in it; how requests are sent (transport, runtime) stays in conf/. The file
is tracked by git, so that `dvc params diff` and `exp diff` name the key that changed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from pipeline.config import SHARD_ROWS, FileSource, GenerateSettings, PromptSettings, SimulatorSettings
from pipeline.errors import ConfigError
from pipeline.io.code import code_hashes, format_hashes, hash_folder
from pipeline.io.conf import Composed, DatasetSettings, compose_all
from pipeline.io.files import atomic
from pipeline.io.libraries import BY_STAGE, locked
from pipeline.io.pins import is_shipped, sha256_of

Tree = dict[str, Any]

_PER_DATASET = (
    "prompts/{}.parquet",
    "prompts/{}.rejects.parquet",
    "responses/{}.parquet",
    "samples/{}",
    "rejects/{}.parquet",
    "verdicts/{}.parquet",
    "reports/{}.json",
    "exports/{}",
)
NOT_A_DATASET = ("profiles",)
"""Reports that are of the whole build."""

HEADER = "# Written by `python -m pipeline compose` from conf/ and params.yaml: don't edit, but do commit.\n"


def run(root: Path) -> str:
    """Compose, check, write, and clean up after datasets and exports that are no longer listed."""
    composed = compose_all(root)
    tree = settings_tree(composed, root)
    with atomic(root / "build/config.yaml") as part:
        part.write_text(HEADER + dump(tree), encoding="utf-8")
    gone = clean(root, list(composed.datasets), list(composed.exports))
    removed = f"; removed what was built of {', '.join(gone)}" if gone else ""
    counts = f"{len(composed.datasets)} datasets, {len(composed.exports)} exports"
    return f"compose: {composed.target.name}, {counts}{removed}"


def settings_tree(composed: Composed, root: Path) -> Tree:
    """What build/config.yaml holds."""
    target = composed.target
    datasets = composed.datasets
    code = hash_folder(root / "pipeline/simulator")
    simulators = {name: _simulator(dataset, code) for name, dataset in datasets.items()}
    tree: Tree = {
        "libraries": {stage: locked(stage, root) for stage in BY_STAGE},
        "code": {**code_hashes(root), "formats": format_hashes(root, composed.exports)},
        "tokenizer": {"target": target.name, **_plain(target.tokenizer)},
        "reading": {"render": _plain(target.render), "grammar": _plain(target.grammar)},
        "profiles": {"pinned": {name: _profiles(dataset) for name, dataset in datasets.items()}},
        "report": {"simulators": {name: s and _plain(s) for name, s in simulators.items()}},
    }
    for name, dataset in datasets.items():
        tree[name] = {
            "prompts": _plain(_pinned(dataset, root)),
            "generate": _plain(_generate(composed, dataset, simulators[name])),
            "reconstruct": {"shard_rows": SHARD_ROWS},
            "validate": {"rules": _plain(dataset.rules)},
            "export": {format_: _plain(settings) for format_, settings in dataset.exports.items()},
        }
    return tree


def _generate(
    composed: Composed, dataset: DatasetSettings, simulator: SimulatorSettings | None
) -> GenerateSettings:
    models = composed.target.models
    provider = dataset.provider.name
    if provider not in models and "default" not in models:
        where = f"conf/target/{composed.target.name}.yaml: models"
        raise ConfigError(f"{where}: no name for provider {provider} and no default")
    return GenerateSettings(
        provider=provider,
        model=models.get(provider, models.get("default", "")),
        api=dataset.api.model_copy(update={"simulator": simulator}),
        sampling=dataset.sampling,
        thinking=composed.target.render.thinking,
    )


def _simulator(dataset: DatasetSettings, code: str) -> SimulatorSettings | None:
    """With the hash of its code: answers of a changed simulator are other answers."""
    settings = dataset.api.simulator
    return None if settings is None else settings.model_copy(update={"code": code})


def _profiles(dataset: DatasetSettings) -> Tree:
    pinned = dataset.provider.profiles
    return {name: profile.model_dump(mode="json", exclude_defaults=True) for name, profile in pinned.items()}


def _pinned(dataset: DatasetSettings, root: Path) -> PromptSettings:
    """The prompt settings with the content's hash, so that an edit of the file is an edit of the settings."""
    source = dataset.prompts.source
    if not isinstance(source, FileSource):
        return dataset.prompts
    path = root / source.path
    where = f"conf/dataset/{dataset.name}.yaml: prompts.source"
    shipped = is_shipped(path, root)
    if source.sha256 is None and not shipped:
        raise ConfigError(
            f"{where}.sha256: missing; a file outside conf/prompts/ is pinned by its hash: "
            f"run `python -m pipeline pin {dataset.name}`"
        )
    if not path.is_file():
        raise ConfigError(f"{where}.path: {source.path} does not exist")
    found = sha256_of(path)
    if not shipped and found != source.sha256:
        raise ConfigError(
            f"{where}.sha256: {source.path} has changed, it is {found}: to use it as it is now, "
            f"run `python -m pipeline pin {dataset.name}`"
        )
    return dataset.prompts.model_copy(update={"source": source.model_copy(update={"sha256": found})})


def _plain(model: BaseModel) -> Tree:
    """What is set. DVC reads the whole file once for every stage that has params, so that size is time."""
    return model.model_dump(mode="json", exclude_none=True)


def clean(root: Path, datasets: list[str], exports: list[str]) -> list[str]:
    """Remove outputs of what is no longer listed (DVC leaves them); returns what was removed."""
    gone: dict[str, None] = {}
    for pattern in _PER_DATASET:
        folder, _, file = pattern.partition("/")
        for path in sorted((root / "build" / folder).glob(file.format("*"))):
            name = path.name.split(".")[0]
            if name not in datasets and not (folder == "reports" and name in NOT_A_DATASET):
                _remove(path)
                gone[name] = None
    for path in sorted((root / "build/exports").glob("*/*")):
        if path.name not in exports:
            _remove(path)
            gone[path.name] = None
    return list(gone)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


class _Dumper(yaml.SafeDumper):
    """Long texts as blocks, so that a person can read a template and git can diff it; no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump(tree: Mapping[str, Any]) -> str:
    """The tree as YAML, in its own order."""
    text: str = yaml.dump(dict(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text
