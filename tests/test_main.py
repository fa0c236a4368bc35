import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.__main__ import main

_ROOT = Path(__file__).resolve().parent.parent
_VERBS = [
    "compose",
    "tokenizer",
    "prompts",
    "generate",
    "profiles",
    "reconstruct",
    "validate",
    "export",
    "report",
]
_FOR_PEOPLE = ["inspect", "target", "pin", "simulate"]


def test_help_lists_every_verb_with_one_line():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for verb in _VERBS + _FOR_PEOPLE:
        line = next(line for line in result.output.splitlines() if line.strip().startswith(f"{verb} "))
        assert len(line.split()) > 2


def _run(*arguments, cwd, text=None):
    command = [sys.executable, "-m", "pipeline", *arguments]
    environment = {"PYTHONPATH": str(_ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, input=text, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compose"], "params.yaml: missing"),
        (["reconstruct", "b1_tools"], "build/config.yaml is missing"),
        (["inspect", "--target", "nope", "-"], "no target 'nope'"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_1(tmp_path, arguments, message):
    result = _run(*arguments, cwd=tmp_path, text="{}")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_wrong_usage_is_exit_code_2(tmp_path):
    assert _run("nonsense", cwd=tmp_path).returncode == 2


def test_a_stage_refuses_another_version_of_a_library(tmp_path):
    (tmp_path / "build").mkdir()
    (tmp_path / "build/config.yaml").write_text(
        "libraries: {reconstruct: {pyarrow: 0.0.1}}\nd: {reconstruct: {}}\nreading: {}\n"
    )
    result = _run("reconstruct", "d", cwd=tmp_path)
    assert result.returncode == 1
    assert "pyarrow 0.0.1" in result.stderr
    assert "make setup" in result.stderr


def test_an_unlisted_dataset_names_those_that_are(tmp_path):
    (tmp_path / "build").mkdir()
    (tmp_path / "build/config.yaml").write_text("d: {}\nreading: {}\n")
    result = _run("reconstruct", "other", cwd=tmp_path)
    assert "no 'other'; there are: d, reading" in result.stderr


@pytest.mark.parametrize("form", ["value", "lines", "array"])
def test_inspect_reads_one_value_lines_or_an_array(form):
    case = json.loads(Path("tests/golden/kimi_k2_5/tokens.jsonl").read_text().splitlines()[0])
    request = {"messages": case["messages"], "tools": case["tools"]}
    value = {"id": "x", "request": request, "response": case["response"]}
    text = {
        "value": json.dumps(value, indent=1),
        "lines": f"{json.dumps(value)}\n" * 2,
        "array": f"[{json.dumps(value)}]",
    }
    result = CliRunner().invoke(main, ["inspect", "-"], input=text[form])
    assert result.exit_code == 0
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(found) == (2 if form == "lines" else 1)
    assert found[0]["completion_ids"] == case["expect"]["completion_ids"]
    assert found[0]["prompt_ids"] == case["expect"]["prompt_ids"]
    assert found[0]["loss_mask_runs"] == case["expect"]["loss_mask_runs"]
    keys = (
        "id action reason prompt_ids completion_ids loss_mask_runs ending fidelity flags candidates decoded"
    )
    assert list(found[0]) == keys.split()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no value in it"),
        (b"\xff", "no UTF-8"),
        (b"{\n{}\n", "line 1 is no JSON"),
        (b'{"request": 1}', "value 1"),
    ],
)
@pytest.mark.parametrize("pretty", [[], ["--pretty"]])
def test_inspect_names_the_file_that_it_can_not_read(tmp_path, data, message, pretty):
    path = tmp_path / "answer.json"
    path.write_bytes(data)
    result = CliRunner().invoke(main, ["inspect", *pretty, str(path)])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {path}: ")
    assert message in result.stderr


def test_inspect_shows_tokens_to_a_person():
    case = json.loads(Path("tests/golden/kimi_k2_5/tokens.jsonl").read_text().splitlines()[0])
    value = {"request": {"messages": case["messages"]}, "response": case["response"]}
    result = CliRunner().invoke(main, ["inspect", "--pretty", "-"], input=json.dumps(value))
    assert result.exit_code == 0
    assert "prompt (loss mask 0)" in result.output
    assert "⟦</think>⟧163607" in result.output.replace("\n", "")


def test_target_check_prints_a_table():
    result = CliRunner().invoke(main, ["target", "check", "kimi_k2_5"])
    assert result.exit_code == 0
    assert "contract" in result.output
    assert "golden prompts" in result.output
