"""What README.md tells a user to type, typed."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.__main__ import main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCKS = [line[4:] for line in README.splitlines() if line.startswith("    ")]
_COMMANDS = [line.split("#")[0].strip() for line in _BLOCKS]


def _verbs():
    found = re.findall(r"python -m pipeline ([a-z]+)", README)
    return sorted(set(found))


@pytest.mark.parametrize("verb", _verbs())
def test_every_verb_it_names_exists(verb):
    assert CliRunner().invoke(main, [verb, "--help"]).exit_code == 0


@pytest.mark.parametrize(
    "target", sorted({line.split()[1] for line in _COMMANDS if line.startswith("make ")})
)
def test_every_make_target_it_names_exists(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


def test_the_commands_that_look_at_tokens_run(tmp_path):
    case = json.loads((ROOT / "tests/golden/kimi_k2_5/tokens.jsonl").read_text().splitlines()[41])
    answer = tmp_path / "answer.json"
    request = {"messages": case["messages"], "tools": case["tools"]}
    answer.write_text(json.dumps({"request": request, "response": case["response"]}))
    shown = ("python -m pipeline inspect", "python -m pipeline target")
    for command in [line for line in _COMMANDS if line.startswith(shown)]:
        arguments = [str(answer) if word == "answer.json" else word for word in command.split()[3:]]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, command


def test_the_dataset_it_shows_is_a_dataset():
    import yaml

    from pipeline.config import Dataset

    start = _BLOCKS.index("name: my_set")
    text = "\n".join(_BLOCKS[start : start + 7])
    tree = yaml.safe_load(text)
    assert Dataset.model_validate_json(json.dumps(tree)).prompts.turns == "each"


def test_every_file_and_folder_of_the_layout_exists():
    folders = [f"pipeline/{name}" for name in ("core", "io", "exports", "stages", "simulator")]
    for name in ("conf", "params.yaml", "dvc.yaml", *folders):
        assert name in README
        assert (ROOT / name).exists()


def test_every_dependency_has_a_reason():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = README[README.index("## What it stands on") :]
    for requirement in project["dependencies"]:
        name = re.split(r"[\[;<>= ]", requirement)[0]
        assert name in table, name
