from pathlib import Path

import pytest
import yaml

from pipeline.io.code import STAGES
from pipeline.io.libraries import BY_STAGE

ROOT = Path(__file__).resolve().parent.parent
_STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]


def _settings(stage):
    return [key for params in _STAGES[stage].get("params", []) for key in params.get("build/config.yaml", [])]


def test_the_stages_are_those_whose_code_is_hashed():
    assert list(_STAGES) == ["compose", *STAGES]


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_depends_on_its_code_and_its_libraries(stage):
    assert f"code.{stage}" in _settings(stage)
    assert (f"libraries.{stage}" in _settings(stage)) == (stage in BY_STAGE)


def test_compose_depends_on_all_that_it_reads():
    assert _STAGES["compose"]["deps"] == ["conf", "params.yaml", "requirements.lock", "pipeline"]


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_reads_only_its_own_settings(stage):
    for key in _settings(stage):
        own = key.removeprefix("${item.dataset}.").removeprefix("libraries.").removeprefix("code.")
        assert own.split(".")[0] in (stage, "reading", "formats"), key


def test_every_stage_is_started_as_a_module():
    # A console script would run the workspace's code in queued experiments (dvc#10419).
    for stage, body in _STAGES.items():
        assert body["cmd"].startswith(f"python -m pipeline {stage}")


def test_python_caches_do_not_make_a_folder_dirty():
    ignored = (ROOT / ".dvcignore").read_text(encoding="utf-8").split()
    assert {"__pycache__/", "*.pyc"} <= set(ignored)
