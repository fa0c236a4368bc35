"""The code that each stage runs, found by following imports from its shell -> one hash a stage.

compose writes the hashes into build/config.yaml and a stage depends on its own: an edit rebuilds the
stages that run the edited module and no other. Listing some thirty files as deps of each of fifty
stages says the same, but DVC rewrites its lock file after every stage: 2.5 s a stage so, 0.5 s this way.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from pipeline.errors import ConfigError

STAGES = ("tokenizer", "prompts", "generate", "profiles", "reconstruct", "validate", "export", "report")
# Packages whose modules are looked up by name: the whole folder belongs to whoever imports it.
_BY_NAME = ("pipeline.core.tool_declarations", "pipeline.io.vocabularies", "pipeline.simulator")
# Formats are looked up by name too, but an export stage runs just its own.
_FORMATS = "pipeline.exports"
# The simulator that answered stands in the settings by its own hash (api.simulator.code), so that stages
# that ask real endpoints don't depend on it.
_NOT_FOLLOWED = {"generate": "pipeline.simulator"}
# The command line checks these for every stage; it is no dependency itself.
_ALWAYS = ("pipeline.io.libraries",)


def code_hashes(root: Path) -> dict[str, str]:
    """Stage -> hash over the names and bytes of the files that it runs."""
    return {stage: _hash(root, files_of(stage, root)) for stage in STAGES}


def hash_of_stage(stage: str) -> str:
    """The same for one stage of the code that is running."""
    root = Path(__file__).resolve().parent.parent.parent
    return _hash(root, files_of(stage, root))


def format_hashes(root: Path, formats: Iterable[str]) -> dict[str, str]:
    """Export format -> hash of its module. Raises ConfigError for a format without one."""
    folder = root / _FORMATS.replace(".", "/")
    for name in formats:
        if not (folder / f"{name}.py").is_file():
            there_are = ", ".join(sorted(path.stem for path in folder.glob("[a-z]*.py")))
            raise ConfigError(
                f"conf/export/{name}.yaml: no module pipeline/exports/{name}.py; there are: {there_are}"
            )
    return {name: _hash(root, [folder / f"{name}.py"]) for name in formats}


def hash_folder(folder: Path) -> str:
    """Names and bytes of all files below, without what Python leaves there."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return _hash(folder, sorted(files))


def files_of(stage: str, root: Path) -> list[Path]:
    """Every file that the stage's shell imports, directly or not, inside functions too."""
    found: set[Path] = set()
    todo, seen = [f"pipeline.stages.{stage}", *_ALWAYS], set[str]()
    while todo:
        module = todo.pop()
        if module in seen or module.startswith(_NOT_FOLLOWED.get(stage, "\0")):
            continue
        seen.add(module)
        package = next((name for name in _BY_NAME if module == name or module.startswith(f"{name}.")), None)
        if package is not None:
            new = [path for path in _below(root / package.replace(".", "/")) if path not in found]
        else:
            new = [path for path in [_file(module, root)] if path is not None]
        found.update(new)
        todo += [name for path in new if path.suffix == ".py" for name in _imports(path)]
    return sorted(found)


def _below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def _file(module: str, root: Path) -> Path | None:
    base = root / module.replace(".", "/")
    if module.startswith(f"{_FORMATS}."):
        return None
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _imports(path: Path) -> list[str]:
    return _imports_of(path.read_bytes())


@cache
def _imports_of(source: bytes) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.split(".")[0] == "pipeline"]


def _hash(root: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
