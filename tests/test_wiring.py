from pathlib import Path

import pytest
import yaml
from wiring import ROOT, dependencies

_STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]


@pytest.mark.parametrize("stage", _STAGES)
def test_each_stage_lists_exactly_the_code_that_it_runs(stage):
    listed = _STAGES[stage]["deps"]
    assert listed == dependencies(stage, listed), "run `make wiring`"


def test_the_command_line_is_no_dependency_and_starts_every_stage():
    for stage, body in _STAGES.items():
        assert body["cmd"].startswith(f"python -m pipeline {stage}")
        assert "pipeline/__main__.py" not in body["deps"]


def test_each_stage_reads_only_its_own_settings():
    for stage, body in _STAGES.items():
        for params in body.get("params", []):
            for key in params.get("build/config.yaml", []):
                own = key.removeprefix("${item.dataset}.").removeprefix("libraries.").split(".")[0]
                assert own in (stage, "reading"), (stage, key)


def test_reading_what_no_stage_declares_is_seen():
    # The closure follows imports inside functions too: a lazy import is a dependency like any other.
    assert "pipeline/simulator" in dependencies("report", [])
    assert "pipeline/io/store.py" in dependencies("generate", [])
    assert not any(name.startswith("pipeline/simulator") for name in dependencies("generate", []))


def test_python_caches_do_not_make_a_folder_dirty():
    ignored = Path(ROOT / ".dvcignore").read_text(encoding="utf-8").split()
    assert {"__pycache__/", "*.pyc"} <= set(ignored)
