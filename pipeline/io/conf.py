"""conf/ and params.yaml -> checked settings: Hydra finds and merges the files, pydantic says what is wrong.

Precedence, low to high: conf/config.yaml, provider, target, dataset, `overrides`, `overrides.dataset.<d>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from pipeline.config import (
    Api,
    Dataset,
    ExportSettings,
    Grammar,
    Overrides,
    Params,
    PromptSettings,
    Provider,
    RenderSettings,
    Rules,
    Runtime,
    Sampling,
    Settings,
    Target,
    TokenizerSettings,
    Transport,
)
from pipeline.errors import ConfigError

Tree = dict[str, Any]
Model = TypeVar("Model", bound=Settings)

_ENVIRONMENT = re.compile(r"\$\{\s*(oc\.)?env\b")  # OmegaConf allows blanks after the brace


@dataclass(frozen=True)
class DatasetSettings:
    """One dataset with everything merged."""

    name: str
    provider: Provider
    api: Api
    sampling: Sampling
    prompts: PromptSettings
    rules: Rules
    exports: dict[str, ExportSettings]


@dataclass(frozen=True)
class Composed:
    """The whole build, checked."""

    target: Target
    datasets: dict[str, DatasetSettings]
    exports: tuple[str, ...]


def names_of(group: str, root: Path) -> list[str]:
    """What exists in a group of conf/."""
    return sorted(path.stem for path in (root / "conf" / group).glob("*.yaml"))


def load_params(root: Path) -> Params:
    """params.yaml. Raises ConfigError naming the key."""
    return _check(Params, _read(root / "params.yaml"), "params.yaml")


def load_target(name: str, root: Path) -> Target:
    """One target by itself, without overrides."""
    return _check(Target, _read(_file("target", name, root, "target")), f"conf/target/{name}.yaml")


def load_provider(name: str, root: Path) -> Provider:
    """One provider by itself, without overrides."""
    return _check(Provider, _read(_file("provider", name, root, "provider")), f"conf/provider/{name}.yaml")


def load_transport(provider: str, root: Path) -> Transport:
    """How a provider is reached: read straight from conf/, so that no stage depends on it."""
    return load_provider(provider, root).transport


def load_runtime(root: Path) -> Runtime:
    """conf/runtime/default.yaml."""
    return _check(Runtime, _read(root / "conf/runtime/default.yaml"), "conf/runtime/default.yaml")


def compose_all(root: Path) -> Composed:
    """Everything that params.yaml asks for. Raises ConfigError with one line: file, key, what exists."""
    params = load_params(root)
    _require_distinct(params)
    tree = _hydra(params, root)
    overrides = _check(Overrides, params.overrides, "params.yaml: overrides")
    _require_known(overrides, root)
    target = _target(tree, params, overrides)
    exports = {name: tree["exports"][name] for name in params.exports}
    datasets = {
        name: _dataset(name, tree, params, overrides, exports, target, root) for name in params.datasets
    }
    return Composed(target, datasets, params.exports)


def _require_distinct(params: Params) -> None:
    for key, names in (("datasets", params.datasets), ("exports", params.exports)):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"params.yaml: {key}: {twice[0]} stands there twice")


def _require_known(overrides: Overrides, root: Path) -> None:
    """Names that nothing answers to would change nothing, without a word. (Not listed today is fine.)"""
    for name in overrides.dataset:
        _file("dataset", name, root, "overrides.dataset")
    places = {"overrides.exports": overrides.exports}
    places |= {f"overrides.dataset.{name}.exports": own.exports for name, own in overrides.dataset.items()}
    for key, formats in places.items():
        for name in formats:
            _file("export", name, root, key)


def _hydra(params: Params, root: Path) -> Tree:
    """The merged tree of all chosen files, resolved."""
    chosen = [("target", params.target), ("provider", params.provider)]
    chosen += [("dataset", name) for name in params.datasets] + [("export", name) for name in params.exports]
    for group, name in chosen:
        path = _file(group, name, root, f"{group}s" if group in ("dataset", "export") else group)
        _read(path)  # names a syntax error or a secret by file before Hydra meets it
    _read(root / "conf/config.yaml")
    asked = [f"target={params.target}", f"provider={params.provider}"]
    asked += [f"+dataset@datasets.{name}={name}" for name in params.datasets]
    asked += [f"+export@exports.{name}={name}" for name in params.exports]
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str((root / "conf").resolve()), version_base="1.3"):
            merged = compose("config", overrides=asked)
        tree = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as broken:
        raise ConfigError(f"conf/: {' '.join(str(broken).split())}") from None
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _target(tree: Tree, params: Params, overrides: Overrides) -> Target:
    where = f"conf/target/{params.target}.yaml"
    target = _check(Target, tree["target"], where)
    if target.name != params.target:
        raise ConfigError(f"{where}: name: {target.name!r} is not the file's name")
    changes = {
        "tokenizer": _over(TokenizerSettings, tree["target"]["tokenizer"], overrides.tokenizer, "tokenizer"),
        "render": _over(RenderSettings, tree["target"]["render"], overrides.render, "render"),
        "grammar": _over(Grammar, tree["target"]["grammar"], overrides.grammar, "grammar"),
    }
    return target.model_copy(update=changes)


def _over(model: type[Model], below: Tree, change: Mapping[str, Any], key: str) -> Model:
    return _check(model, _merge(below, change), f"params.yaml: overrides.{key}")


def _dataset(
    name: str,
    tree: Tree,
    params: Params,
    overrides: Overrides,
    exports: Mapping[str, Tree],
    target: Target,
    root: Path,
) -> DatasetSettings:
    where = f"conf/dataset/{name}.yaml"
    dataset = _check(Dataset, tree["datasets"][name], where)
    if dataset.name != name:
        raise ConfigError(f"{where}: name: {dataset.name!r} is not the file's name")
    for format_name in dataset.exports:
        _file("export", format_name, root, f"{where}: exports")
    chosen = dataset.provider or params.provider
    provider_tree = _read(_file("provider", chosen, root, f"{where}: provider"))
    provider = _check(Provider, provider_tree, f"conf/provider/{chosen}.yaml")
    own = overrides.dataset.get(name)
    changes = [overrides.model_dump(), own.model_dump() if own else {}]

    def layered(model: type[Model], key: str, *layers: tuple[str, Mapping[str, Any]]) -> Model:
        """Each layer is checked as it goes on top, so that the error names the file that brought it."""
        merged: Tree = {}
        result: Model | None = None
        places = ["params.yaml: overrides", f"params.yaml: overrides.dataset.{name}"]
        over = [
            (f"{place}.{key}", change.get(key) or {}) for place, change in zip(places, changes, strict=True)
        ]
        for place, layer in (*layers, *over):
            merged = _merge(merged, layer)
            result = _check(model, merged, place)
        assert result is not None
        return result

    sampling = layered(
        Sampling,
        "sampling",
        ("conf/config.yaml: sampling", tree["sampling"]),
        (f"conf/provider/{chosen}.yaml: sampling", provider.sampling),
        (f"conf/target/{target.name}.yaml: sampling", target.sampling),
        (f"{where}: sampling", dataset.sampling),
    )
    formats: dict[str, ExportSettings] = {}
    for format_name, settings in exports.items():
        merged = _merge(settings, dataset.exports.get(format_name, {}))
        _check(ExportSettings, merged, f"conf/export/{format_name}.yaml")
        for change in changes:
            merged = _merge(merged, (change.get("exports") or {}).get(format_name, {}))
        formats[format_name] = _check(ExportSettings, merged, f"params.yaml: overrides.exports.{format_name}")
    return DatasetSettings(
        name=name,
        provider=provider,
        api=layered(Api, "api", (f"conf/provider/{chosen}.yaml: api", provider_tree["api"])),
        sampling=sampling,
        prompts=layered(PromptSettings, "prompts", (f"{where}: prompts", tree["datasets"][name]["prompts"])),
        rules=layered(
            Rules, "rules", ("conf/config.yaml: rules", tree["rules"]), (f"{where}: rules", dataset.rules)
        ),
        exports=formats,
    )


def _file(group: str, name: str, root: Path, key: str) -> Path:
    known = names_of(group, root)
    if name not in known:
        place = key if ":" in key else f"params.yaml: {key}"
        raise ConfigError(f"{place}: no {group} {name!r} in conf/{group}/; there are: {', '.join(known)}")
    return root / "conf" / group / f"{name}.yaml"


def _read(path: Path) -> Tree:
    """A YAML file as a mapping. Raises ConfigError for what no file of ours may hold."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = yaml.safe_load(text)
    except FileNotFoundError:
        raise ConfigError(f"{_shown(path)}: missing") from None
    except (yaml.YAMLError, UnicodeDecodeError) as broken:
        raise ConfigError(f"{_shown(path)}: no YAML: {' '.join(str(broken).split())}") from None
    if not isinstance(tree, dict):
        what = "the file is empty" if tree is None else f"a mapping is expected, not {type(tree).__name__}"
        raise ConfigError(f"{_shown(path)}: {what}")
    if _ENVIRONMENT.search(text):
        raise ConfigError(
            f"{_shown(path)}: ${{oc.env:...}} would write a secret into build/config.yaml; name the variable "
            "in the provider's transport.key_env instead"
        )
    return tree


def _shown(path: Path) -> str:
    """As a user would type it: from conf/ on."""
    parts = path.parts
    return "/".join(parts[parts.index("conf") :]) if "conf" in parts else path.name


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    """Mappings merge, everything else is replaced."""
    merged = OmegaConf.to_container(
        OmegaConf.merge(OmegaConf.create(dict(below)), OmegaConf.create(dict(above)))
    )
    assert isinstance(merged, dict)
    return {str(key): value for key, value in merged.items()}


def _check(model: type[Model], tree: Any, where: str) -> Model:
    """The tree as a model. JSON mode: strict types, yet a list may fill a tuple."""
    try:
        return model.model_validate_json(json.dumps(tree))
    except ValidationError as broken:
        errors = broken.errors()
        # A misspelt key also makes the right one missing: the misspelt one is what to say.
        first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
        loc = [str(part) for part in first["loc"] if not str(part).endswith("Source")]
        key = ".".join(loc)
        joint = "." if ":" in where else ": "
        raise ConfigError(
            f"{where}{joint if key else ': '}{key}{': ' if key else ''}{_reason(model, first)}"
        ) from None
    except TypeError as odd:  # a date or another YAML type that no setting has
        raise ConfigError(f"{where}: {odd}") from None


def _reason(model: type[Settings], error: Any) -> str:
    """What pydantic says, in our words where a list of what exists helps."""
    if error["type"] == "extra_forbidden":
        known = _keys_at(model, error["loc"][:-1])
        return f"unknown key; there are: {', '.join(known)}" if known else "unknown key"
    if error["type"] == "missing":
        return "missing"
    text = str(error["msg"]).removeprefix("Value error, ")
    return text if "is not a name" in text else f"{text}, not {error['input']!r}"


def _keys_at(model: Any, loc: tuple[Any, ...]) -> list[str]:
    """Known keys of the model that a location leads to; empty where it can't be told."""
    for part in loc:
        field = getattr(model, "model_fields", {}).get(part)
        model = field.annotation if field is not None else None
    return list(getattr(model, "model_fields", {}))
