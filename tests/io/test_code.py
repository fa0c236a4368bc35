import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.io.code import STAGES, code_hashes, files_of, format_hashes, hash_folder


@pytest.fixture
def project(tmp_path):
    shutil.copytree("pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def _changed(project, file):
    before = code_hashes(project)
    with (project / file).open("a") as out:
        out.write("\n# edited\n")
    after = code_hashes(project)
    return {stage for stage in STAGES if before[stage] != after[stage]}


_READERS = {"profiles", "reconstruct", "validate"}  # stages that load the tokenizer


@pytest.mark.parametrize(
    ("file", "stages"),
    [
        ("pipeline/core/readings.py", {"profiles", "reconstruct"}),
        ("pipeline/core/corpus.py", _READERS | {"tokenizer"}),
        ("pipeline/core/requests.py", {"generate"}),
        ("pipeline/core/shapes.py", {"prompts"}),
        ("pipeline/core/selection.py", {"export"}),
        ("pipeline/core/learning.py", {"profiles"}),
        ("pipeline/core/tool_declarations/typescript.py", {"reconstruct"}),
        ("pipeline/io/vocabularies/splintr_rs.py", _READERS | {"tokenizer"}),
        ("pipeline/io/store.py", {"generate"}),
        ("pipeline/stages/export.py", {"export"}),
        ("pipeline/simulator/native.py", {"report"}),
        ("pipeline/__main__.py", set()),
        ("pipeline/stages/inspect.py", set()),
        ("pipeline/exports/specforge.py", set()),
        ("pipeline/errors.py", set(STAGES)),
    ],
)
def test_an_edit_changes_the_stages_that_run_it(project, file, stages):
    assert _changed(project, file) == stages


def test_a_format_depends_on_its_own_module(project):
    before = format_hashes(project, ["specforge", "parquet"])
    (project / "pipeline/exports/parquet.py").write_text("# edited\n")
    after = format_hashes(project, ["specforge", "parquet"])
    assert [name for name in after if after[name] != before[name]] == ["parquet"]


def test_the_hash_of_a_folder_sees_names_and_bytes_but_no_caches(tmp_path):
    (tmp_path / "a").write_text("1")
    first = hash_folder(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/a.pyc").write_text("x")
    assert hash_folder(tmp_path) == first
    (tmp_path / "a").rename(tmp_path / "b")
    assert hash_folder(tmp_path) != first


_LOADED = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps([m.__file__ for n, m in sys.modules.items() if n.startswith("pipeline") and m.__file__]))
"""


@pytest.mark.parametrize("stage", STAGES)
def test_what_python_loads_for_a_stage_is_found(stage):
    command = [sys.executable, "-c", _LOADED, f"pipeline.stages.{stage}"]
    loaded = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    found = {str(path.resolve()) for path in files_of(stage, Path())}
    assert {name for name in loaded if Path(name).stat().st_size} <= found
