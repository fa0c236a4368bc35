"""The default provider in small, as a user runs it: two fresh copies, every row against the known truth."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
_DATASETS = ["b1_tools", "b6_multiturn"]
_COPIED = ("conf", "pipeline", "dvc.yaml", "params.yaml", "requirements.lock", ".dvcignore", ".gitignore")


def _build(root, home):
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / name)
    params = yaml.safe_load((root / "params.yaml").read_text())
    choice = {"datasets": _DATASETS, "exports": ["specforge", "speculators", "parquet"]}
    (root / "params.yaml").write_text(yaml.safe_dump({**params, **choice}))
    # The key of a real provider lies in the environment of many users: it must end up nowhere.
    env = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(home),
        "OPENROUTER_API_KEY": "sk-canary-7f3a",
        "PYTHONDONTWRITEBYTECODE": "1",
        "DVC_NO_ANALYTICS": "1",
    }
    for command in (["git", "init", "-q"], ["dvc", "init", "-q"], ["dvc", "repro"]):
        done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return root


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """Two builds that share nothing, not even a home."""
    return [_build(tmp_path_factory.mktemp(name), tmp_path_factory.mktemp(f"home-{name}")) for name in "ab"]


def test_every_row_equals_what_the_server_sampled(builds):
    total = json.loads((builds[0] / "build/report/summary.json").read_text())["total"]
    assert total["responses"] == total["rows"] + sum(total["rejects"].values())
    assert total["rows"] > 100
    assert total["truth"]["wrong_claimed"] == 0
    assert total["truth"]["exact"] == total["truth"]["compared"] >= total["rows"]


def test_two_fresh_copies_give_the_same_bytes(builds):
    locks = [yaml.safe_load((root / "dvc.lock").read_text()) for root in builds]
    assert locks[0] == locks[1]


def test_every_prompt_and_turn_is_somewhere(builds):
    import pyarrow.parquet as pq

    for dataset in _DATASETS:
        prompts = pq.read_table(builds[0] / f"build/prompts/{dataset}.parquet").to_pylist()
        turns = {
            f"{prompt['prompt_id']}:{turn}"
            for prompt in prompts
            for turn in range(1 + len(json.loads(prompt["following_turns"])))
        }
        verdicts = pq.read_table(builds[0] / f"build/verdicts/{dataset}.parquet").column("row_id").to_pylist()
        rejects = pq.read_table(builds[0] / f"build/rejects/{dataset}.parquet").column("row_id").to_pylist()
        assert sorted([*verdicts, *rejects]) == sorted(turns)


def test_exports_hold_the_same_rows_in_each_form(builds):
    import pyarrow.parquet as pq

    folder = builds[0] / "build/exports/b1_tools"
    lines = [
        json.loads(line) for line in (folder / "specforge/train-00000.jsonl").read_text().split("\n") if line
    ]
    table = pq.read_table(folder / "parquet/train-00000.parquet")
    assert table.column("input_ids").to_pylist() == [line["input_ids"] for line in lines]
    assert table.column("loss_mask").to_pylist() == [line["loss_mask"] for line in lines]
    for line in lines:
        assert len(line["input_ids"]) == len(line["loss_mask"])
        assert set(line["loss_mask"]) == {0, 1}


def test_a_key_in_the_environment_ends_up_in_no_file(builds):
    for path in builds[0].rglob("*"):
        if path.is_file():
            assert b"sk-canary-7f3a" not in path.read_bytes(), path
