"""The code that a stage runs, found by following imports: what dvc.yaml must list as its deps."""

from __future__ import annotations

import ast
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent

# Packages whose modules are looked up by name: the whole folder is the dependency.
BY_NAME = {"pipeline.core.tool_declarations", "pipeline.io.vocabularies", "pipeline.simulator"}
# Reached only by name too, but exactly one module a stage: dvc.yaml names it by ${item.format}.
EXPORTS = "pipeline.exports"
# generate starts the simulator; its code's hash stands in the settings (api.simulator.code), so that
# stages that ask real endpoints don't depend on it.
BY_HASH = {"generate": {"pipeline.simulator"}, "compose": {"pipeline.simulator"}}


def closure(stage: str) -> list[str]:
    """Files and folders below pipeline/, relative to the root, that the stage's shell imports."""
    found: set[str] = set()
    todo = [f"pipeline.stages.{stage}"]
    if stage not in ("compose",):
        todo.append("pipeline.io.libraries")  # the command line checks versions for every stage
    seen: set[str] = set()
    while todo:
        module = todo.pop()
        if module in seen or any(module.startswith(skip) for skip in BY_HASH.get(stage, ())):
            continue
        seen.add(module)
        package = next((name for name in BY_NAME if module == name or module.startswith(f"{name}.")), None)
        if package is not None:
            found.add(package.replace(".", "/"))
            todo += [name for path in _folder(package) for name in _imports(path)]
            continue
        path = _file(module)
        if path is None:
            continue
        if path.stat().st_size:
            found.add(path.relative_to(ROOT).as_posix())
        todo += _imports(path)
    if stage == "export":
        found = {name for name in found if not name.startswith("pipeline/exports/")} | {
            "pipeline/exports/__init__.py"
        }
        found.add("pipeline/exports/${item.format}.py")
    return sorted(found)


def _imports(path: Path) -> list[str]:
    """Modules of the project that a file imports, wherever in it the import stands."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.split(".")[0] == "pipeline"]


def _folder(package: str) -> list[Path]:
    return sorted((ROOT / package.replace(".", "/")).glob("**/*.py"))


def _file(module: str) -> Path | None:
    base = ROOT / module.replace(".", "/")
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def dependencies(stage: str, listed: list[str]) -> list[str]:
    """The deps of a stage: what it reads of the build and of conf/, as listed, then its code."""
    own = [
        name for name in listed if not name.startswith("pipeline/") or (stage == "compose" and name in _DATA)
    ]
    return own + [name for name in closure(stage) if name not in own]


# Not run by compose but hashed into the settings that it writes.
_DATA = {"pipeline/simulator"}


def write() -> None:
    """Bring the code that every stage lists in dvc.yaml up to date, comments kept."""
    editor = YAML()
    editor.width = 4096
    path = ROOT / "dvc.yaml"
    tree = editor.load(path.read_text(encoding="utf-8"))
    for stage, body in tree["stages"].items():
        body["deps"] = dependencies(stage, list(body["deps"]))
    with path.open("w", encoding="utf-8") as out:
        editor.dump(tree, out)


if __name__ == "__main__":
    write()
