"""Settings now + what each stage was last built with -> the keys that changed, and the stages they make run.

A key counts as changed for a stage exactly when DVC will say so: both compare what dvc.lock recorded
with the value that compose would write.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from pipeline.core.estimate import Cost, Requests


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of dvc.yaml with what dvc.lock recorded of it. Names are DVC's: `generate@b2_code`.

    `after`: stages whose outputs it reads. `keys`: its parts of build/config.yaml. `recorded`: their
    values when it last ran. `inputs`, `outputs`: which of its files differ from then, in words.
    `restorable`: DVC's cache holds all outputs, so it does not run for their sake.
    """

    name: str
    after: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    built: bool = True
    recorded: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    restorable: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that is not what it was. None: not set. `files`: edited files that it can come from."""

    key: str
    old: Any
    new: Any
    stages: tuple[str, ...]
    files: tuple[str, ...] = ()


class Fate(StrEnum):
    """What `dvc repro` will do with a stage."""

    RUNS = "runs"
    SAME_OUTPUT = "runs, its output stays"
    MAY_RUN = "runs if its input changes"
    RESTORED = "restored from the cache"
    STAYS = "stays"


RUNNING = (Fate.RUNS, Fate.MAY_RUN)
"""What may give stages after it another input."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """A stage, or several of one kind that have fate and causes in common."""

    stages: tuple[str, ...]
    fate: Fate
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edits:
    """Files that are not as in commit `base`, and why that one. `base` None: there is no git here."""

    base: str | None
    since: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is shown, and what `--json` prints."""

    edits: Edits
    built: bool
    """dvc.lock holds an earlier build."""
    changes: list[Change]
    stages: list[Outlook]
    requests: list[Requests]
    """Of the datasets whose generate stage runs or may run; the others ask nothing."""
    cost: Cost | None
    notes: list[str]


def changed_keys(stages: Iterable[Stage], settings: Mapping[str, Any]) -> list[Change]:
    """Every changed leaf of the settings, each once, with the stages that depend on it."""
    found: dict[str, tuple[Any, Any, list[str]]] = {}
    for stage in stages:
        for key in stage.keys if stage.built else ():
            for leaf, old, new in differences(key, stage.recorded.get(key), _value(settings, key)):
                found.setdefault(leaf, (old, new, []))[2].append(stage.name)
    return [Change(key, old, new, tuple(names)) for key, (old, new, names) in found.items()]


def _value(settings: Any, key: str) -> Any:
    for part in key.split("."):
        settings = settings.get(part) if isinstance(settings, Mapping) else None
    return settings


def differences(key: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """(key of the leaf, old, new) where two values differ; lists of other lengths are leaves."""
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in {**new, **old}:
            yield from differences(f"{key}.{name}", old.get(name), new.get(name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from differences(f"{key}[{number}]", before, after)
    else:
        yield key, old, new


def outlooks(
    stages: Sequence[Stage], changes: Iterable[Change], same_outputs: Collection[str] = ()
) -> dict[str, Outlook]:
    """Stage -> what will become of it. `same_outputs`: stages known to write what they wrote before."""
    own: dict[str, list[str]] = {stage.name: [] for stage in stages}
    for change in changes:
        for name in change.stages:
            own[name].append(change.key)
    by_name, known = {stage.name: stage for stage in stages}, dict[str, Outlook]()

    def look(name: str) -> Outlook:
        if name not in known:
            stage = by_name[name]
            fate, causes = _fate(stage, own[name], [look(upstream) for upstream in stage.after])
            fate = Fate.SAME_OUTPUT if fate in RUNNING and name in same_outputs else fate
            known[name] = Outlook((name,), fate, causes)
        return known[name]

    return {stage.name: look(stage.name) for stage in stages}


def _fate(stage: Stage, keys: Sequence[str], earlier: Sequence[Outlook]) -> tuple[Fate, tuple[str, ...]]:
    if not stage.built:
        return Fate.RUNS, ("never built",)
    # Inputs that are on disk tell nothing while a stage before this one will put others there.
    settled = all(outlook.fate in (Fate.STAYS, Fate.SAME_OUTPUT) for outlook in earlier)
    inputs = stage.inputs if settled else ()
    lost = () if stage.restorable else stage.outputs
    if keys or inputs or lost:
        return Fate.RUNS, (*keys, *inputs, *lost)
    running = [name for outlook in earlier if outlook.fate in RUNNING for name in outlook.stages]
    if running:
        return Fate.MAY_RUN, tuple(f"after {name}" for name in running)
    return (Fate.RESTORED, stage.outputs) if stage.outputs else (Fate.STAYS, ())


# --- where an edit came from -------------------------------------------------------------------------


def with_files(
    changes: Iterable[Change],
    edited: Collection[str],
    code: Mapping[str, Collection[str]],
    sources: Mapping[str, str],
) -> list[Change]:
    """Name the edited files that each change can come from; what can't be told apart is all named.

    `code`: stage -> files that it runs. `sources`: dataset -> its prompt file. Paths from the root.
    """
    return [replace(change, files=tuple(_files(change.key, edited, code, sources))) for change in changes]


def _files(
    key: str, edited: Collection[str], code: Mapping[str, Collection[str]], sources: Mapping[str, str]
) -> Iterator[str]:
    first, _, rest = key.partition(".")
    if first == "code":
        stage, _, format_name = rest.partition(".")
        runs = code.get(stage, ()) if not format_name else (f"pipeline/exports/{format_name}.py",)
        yield from (file for file in edited if file in runs)
    elif first == "libraries":
        yield "requirements.lock"
    elif key.endswith(".simulator.code") or (first == "report" and key.endswith(".code")):
        yield from (file for file in edited if file.startswith("pipeline/simulator/"))
    elif rest.startswith("prompts.source.sha256") and first in sources:
        yield sources[first]
    else:
        others = {f"conf/dataset/{name}.yaml" for name in sources if name != first}
        only = "conf/target/" if first in ("tokenizer", "reading") else "conf/"
        for file in edited:
            told = file.startswith(only) and not file.startswith(("conf/prompts/", "conf/runtime/"))
            if file == "params.yaml" or (told and (first not in sources or file not in others)):
                yield file


# --- for a screen ------------------------------------------------------------------------------------


def dataset_of(stage: str) -> str:
    """`export@b2_code-specforge` -> `b2_code`; "" for a stage that is one of all datasets."""
    return stage.partition("@")[2].partition("-")[0]


def group_outlooks(found: Iterable[Outlook]) -> list[Outlook]:
    """Stages of one kind with one fate and, but for the dataset, one cause become one line."""
    groups: dict[tuple[str, Fate, tuple[str, ...]], list[Outlook]] = {}
    for outlook in found:
        (name,) = outlook.stages
        causes = tuple(starred(cause, dataset_of(name)) for cause in outlook.causes)
        groups.setdefault((name.partition("@")[0], outlook.fate, causes), []).append(outlook)
    return [
        members[0]
        if len(members) == 1
        else Outlook(tuple(one.stages[0] for one in members), fate, tuple(dict.fromkeys(causes)))
        for (_, fate, causes), members in groups.items()
    ]


def group_changes(changes: Iterable[Change], datasets: Collection[str]) -> list[Change]:
    """The same change in several datasets becomes one, with * for their names; so do hashes of code."""
    groups: dict[tuple[Any, ...], list[Change]] = {}
    for change in changes:
        first = change.key.partition(".")[0]
        if first == "code":
            same: tuple[Any, ...] = (first, change.files)
        else:
            name = next((name for name in datasets if starred(change.key, name) != change.key), "")
            same = (starred(change.key, name), repr(change.old), repr(change.new), change.files)
        groups.setdefault(same, []).append(change)
    return [_joined(members, key[0]) for key, members in groups.items()]


def _joined(members: Sequence[Change], key: str) -> Change:
    first = members[0]
    if len(members) == 1:
        return first
    if key == "code":
        key = ", ".join(change.key for change in members)
    stages = dict.fromkeys(name for change in members for name in change.stages)
    return replace(first, key=key, stages=tuple(stages))


def collapsed(causes: Iterable[str], datasets: Collection[str]) -> list[str]:
    """Causes that differ by the dataset's name alone, once, with * for it."""
    groups: dict[str, list[str]] = {}
    for cause in causes:
        name = next((name for name in datasets if starred(cause, name) != cause), "")
        groups.setdefault(starred(cause, name), []).append(cause)
    return [star if len(members) > 1 else members[0] for star, members in groups.items()]


def starred(text: str, dataset: str) -> str:
    """The text with * for the dataset's name, where it stands as a whole word."""
    return re.sub(rf"(?<![a-z0-9_]){dataset}(?![a-z0-9_])", "*", text) if dataset else text


def group_names(names: Iterable[str], totals: Mapping[str, int], most: int = 4) -> str:
    """`generate@b1_tools, b2_code`; `generate (all 8)`; `generate@b1_tools, ... and 3 more`."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kind, _, item = name.partition("@")
        kinds.setdefault(kind, []).append(item)
    return "; ".join(_names(kind, items, totals.get(kind, 0), most) for kind, items in kinds.items())


def _names(kind: str, items: Sequence[str], total: int, most: int) -> str:
    if items == [""]:
        return kind
    if 1 < len(items) == total:
        return f"{kind} (all {total})"
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{kind}@{', '.join(items[:most])}{more}"
