"""A dataset's prompt file -> its sha256 in conf/dataset/<d>.yaml, comments and order kept."""

from __future__ import annotations

from pathlib import Path

from ruamel.yaml import YAML

from pipeline.errors import SourceError
from pipeline.io.conf import names_of
from pipeline.io.pins import is_shipped, sha256_of


def run(dataset: str, root: Path) -> str:
    """Write the pin that compose asks for. Raises SourceError if there is no such file to pin."""
    if dataset not in names_of("dataset", root):
        raise SourceError(
            f"conf/dataset/: no dataset {dataset!r}; there are: {', '.join(names_of('dataset', root))}"
        )
    path = root / "conf/dataset" / f"{dataset}.yaml"
    editor = YAML()
    editor.preserve_quotes = True
    editor.width = 4096
    tree = editor.load(path.read_text(encoding="utf-8"))
    source = tree.get("prompts", {}).get("source", {})
    if source.get("kind") != "path":
        raise SourceError(f"{path.name}: prompts.source is no file; a hub source is pinned by its revision")
    file = root / str(source.get("path"))
    if not file.is_file():
        raise SourceError(
            f"conf/dataset/{dataset}.yaml: prompts.source.path: {source.get('path')} does not exist"
        )
    if is_shipped(file, root):
        return f"pin {dataset}: not needed, compose reads the hash of every file of conf/prompts/ itself"
    found = sha256_of(file)
    before = source.get("sha256")
    source["sha256"] = found
    with path.open("w", encoding="utf-8") as out:
        editor.dump(tree, out)
    return f"pin {dataset}: {source['path']} is {found}" + (
        "" if before in (None, found) else f" (was {before})"
    )
