import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import StageError
from pipeline.io.build_state import read_edits, read_stages

# DVC's own use of pygtrie.
pytestmark = pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning")

_DVC = """
stages:
  compose:
    cmd: cp params.yaml build/config.yaml
    deps: [params.yaml]
    outs: [build/config.yaml: {cache: false}]
  make:
    matrix: {item: "${datasets}"}
    cmd: echo ${item.item} > build/${item.item}.txt
    params: [build/config.yaml: ["settings.${item.item}", code]]
    outs: ["build/${item.item}.txt"]
  sum:
    cmd: cat build/one.txt build/two.txt > build/sum.txt
    deps: [build/one.txt, build/two.txt]
    params: [build/config.yaml: [code]]
    outs: [build/sum.txt]
"""
_PARAMS = "datasets: [one, two]\ncode: aa\nsettings: {one: {x: 1.5}, two: {x: true}}\n"


def _run(root, *command):
    bin_ = Path(sys.executable).parent
    env = {"PATH": f"{bin_}:/usr/bin:/bin", "HOME": str(root), "DVC_NO_ANALYTICS": "1"}
    for who in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{who}_NAME": "t", f"GIT_{who}_EMAIL": "t@example.org"}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path):
    (tmp_path / "dvc.yaml").write_text(_DVC)
    (tmp_path / "params.yaml").write_text(_PARAMS)
    (tmp_path / "build").mkdir()
    (tmp_path / ".gitignore").write_text("/build\n")
    _run(tmp_path, "git", "init", "-q")
    _run(tmp_path, "dvc", "init", "-q")
    return tmp_path


@pytest.fixture
def built(project):
    _run(project, "dvc", "repro", "-q")
    return project


def _commit(project):
    _run(project, "git", "add", "-A")
    _run(project, "git", "commit", "-q", "-m", "x")


def _stages(project):
    return {stage.name: stage for stage in read_stages(project)}


def test_before_any_build_no_stage_is_built(project):
    found = read_stages(project)
    assert [stage.name for stage in found] == ["compose", "make@one", "make@two", "sum"]
    assert not any(stage.built for stage in found)


def test_what_was_recorded_and_what_reads_what(built):
    found = _stages(built)
    assert found["make@one"].recorded == {"settings.one": {"x": 1.5}, "code": "aa"}
    assert found["make@two"].keys == ("settings.two", "code")
    assert found["sum"].after == ("make@one", "make@two")
    assert found["make@one"].after == (), "settings are compared in memory, not by the file"
    assert not any(stage.inputs or stage.outputs for stage in found.values())


def test_an_edit_of_what_compose_reads_is_its_input_alone(built):
    (built / "params.yaml").write_text(_PARAMS.replace("1.5", "2.5"))
    (built / "build/config.yaml").write_text("not what was built")
    found = _stages(built)
    assert found["compose"].inputs == ("params.yaml differs from what was built",)
    assert found["compose"].outputs == ("build/config.yaml differs from what was built",)
    assert not any(found[name].inputs for name in ("make@one", "make@two", "sum"))


def test_a_lost_output_can_be_restored_only_while_the_cache_has_it(built):
    (built / "build/one.txt").unlink()
    found = _stages(built)
    assert found["make@one"].outputs == ("build/one.txt is missing",)
    assert found["make@one"].restorable
    assert found["sum"].inputs == (), "what an earlier stage lost is not its matter"
    for path in (built / ".dvc/cache/files").rglob("*"):
        if path.is_file():
            path.unlink()
    assert not _stages(built)["make@one"].restorable


def test_another_command_and_a_new_dataset_are_seen(built):
    (built / "dvc.yaml").write_text(_DVC.replace("cmd: cat build", "cmd: cat ./build"))
    (built / "params.yaml").write_text(_PARAMS.replace("[one, two]", "[one, two, three]"))
    found = _stages(built)
    assert found["sum"].inputs == ("its command differs",)
    assert not found["make@three"].built
    assert found["make@one"].built


def test_a_broken_dvc_yaml_is_one_line(project):
    (project / "dvc.yaml").write_text("stages:\n  x:\n    command: true\n")
    with pytest.raises(StageError, match=r"^dvc.yaml: \S[^\n]*$"):
        read_stages(project)


def test_edits_since_the_commit_that_last_changed_the_lock(built):
    _commit(built)
    base = _run(built, "git", "rev-parse", "--short", "HEAD")
    (built / "params.yaml").write_text(_PARAMS + "# later\n")
    _commit(built)  # builds nothing
    (built / "conf").mkdir()
    (built / "conf/ü new.yaml").write_text("x")
    (built / "elsewhere").write_text("x")
    edits = read_edits(built)
    assert edits.base == base
    assert edits.since == f"the build of commit {base}"
    assert edits.files == ("params.yaml", "conf/ü new.yaml")


def test_with_an_uncommitted_lock_edits_are_told_from_the_last_commit(project):
    _commit(project)
    _run(project, "dvc", "repro", "-q")
    (project / "params.yaml").write_text(_PARAMS + "# later\n")
    edits = read_edits(project)
    assert "the last commit" in edits.since
    assert "dvc.lock is not committed" in edits.since
    assert edits.files == ("params.yaml",)


def test_without_git_or_a_commit_that_is_said(tmp_path, project):
    assert read_edits(project).base is None
    assert "no git" in read_edits(project).since
