"""A project in small over a real DVC repository; its build is recorded with `dvc commit`, not run."""

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from rich.console import Console

from pipeline.config import GenerateSettings
from pipeline.core.plan import Change, Edits, Fate, Outlook, Plan
from pipeline.core.response_rows import response_rows
from pipeline.core.turns import Response, converse, replay
from pipeline.io.files import write_parquet
from pipeline.io.prompts import read_prompts
from pipeline.io.store import Outcome, Store
from pipeline.schemas import RESPONSES
from pipeline.stages import compose, plan, prompts
from pipeline.stages.plan import make_plan
from pipeline.stages.plan_screen import show

# DVC's own use of pygtrie.
pytestmark = pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning")

ROOT = Path(__file__).resolve().parent.parent.parent
_PAID_TOKENS, _BUILT_TOKENS = 40, 25


def _answer(tokens=_PAID_TOKENS):
    message = {"role": "assistant", "content": "yes", "reasoning": "so"}
    body = {
        "choices": [{"message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens, "cost": 0.1},
    }
    return Response(200, {"content-type": "application/json"}, json.dumps(body).encode())


class Project:
    """Two datasets: one of three prompts, one of two conversations of two turns."""

    def __init__(self, root, store):
        self.root, self.store = root, store

    def run(self, *command):
        env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(self.root.parent)}
        for who in ("AUTHOR", "COMMITTER"):
            env |= {f"GIT_{who}_NAME": "t", f"GIT_{who}_EMAIL": "t@example.org"}
        done = subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def edit(self, file, old, new):
        path = self.root / file
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    def params(self, **changes):
        path = self.root / "params.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))

    def settings(self, dataset):
        tree = yaml.safe_load((self.root / "build/config.yaml").read_text())
        return GenerateSettings.model_validate_json(json.dumps(tree[dataset]["generate"]))

    def pay(self, dataset, most=100, *, settle=True):
        """Store an answer to every turn of the first `most` prompts of what is built."""
        path = self.root / f"build/prompts/{dataset}.parquet"
        some = [prompt for part in read_prompts(path) for prompt in part][:most]
        self.store.parent.mkdir(exist_ok=True)
        with Store(self.store) as store:
            for prompt in some:
                steps = converse(prompt, self.settings(dataset))
                try:
                    asked = next(steps)
                    while True:
                        n = store.start(asked).result().n
                        if settle:
                            outcome = Outcome("ok", "", None, 0.1, "usage")
                            store.finish(asked, n, _answer(), None, outcome, _answer()).result()
                        else:
                            store.record_response(asked, n, _answer()).result()
                        asked = steps.send(_answer())
                except StopIteration:
                    continue

    def answer(self, dataset):
        """The generate stage's file, as if every turn had been answered."""
        rows = [
            row
            for part in read_prompts(self.root / f"build/prompts/{dataset}.parquet")
            for prompt in part
            for row in response_rows(
                prompt.prompt_id, replay(prompt, self.settings(dataset), lambda asked: _answer(_BUILT_TOKENS))
            )
        ]
        table = pa.Table.from_pylist(rows, schema=RESPONSES)
        write_parquet(self.root / f"build/responses/{dataset}.parquet", table)

    def plan(self):
        return make_plan(self.root)


def _text(found, **options):
    file = io.StringIO()
    show(found, Console(file=file, width=150, **options))
    return file.getvalue()


_FILES = ("dvc.yaml", "requirements.lock", ".dvcignore", ".gitignore")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    root = tmp_path_factory.mktemp("template") / "project"
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("conf", "pipeline"):
        shutil.copytree(ROOT / name, root / name, ignore=skip)
    for name in _FILES:
        shutil.copy(ROOT / name, root / name)
    rows = {
        "one": [{"messages": [{"role": "user", "content": f"one {n}"}]} for n in range(3)],
        "two": [{"turns": [f"first {n}", "and then?"]} for n in range(2)],
    }
    for name, lines in rows.items():
        path = root / f"conf/prompts/{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        source = {"kind": "path", "path": f"conf/prompts/{name}.jsonl"}
        shape = {"shape": "turns" if name == "two" else "messages"}
        made = {"source": source, "mapping": shape, "turns": "each"}
        dataset = {
            "name": name,
            "about": "x",
            "prompts": made,
            "sampling": {"max_tokens": 1000, "temperature": 1.0},
        }
        (root / f"conf/dataset/{name}.yaml").write_text(yaml.safe_dump(dataset))
    provider = {"name": "served", "api": {"identity": "served"}, "transport": {"base_url": "http://x/v1"}}
    (root / "conf/provider/served.yaml").write_text(yaml.safe_dump(provider))
    choice = {"target": "kimi_k2_5", "provider": "served", "datasets": ["one", "two"]}
    choice |= {"exports": ["specforge"], "overrides": {}}
    (root / "params.yaml").write_text(yaml.safe_dump(choice))
    project = Project(root, root.parent / "none")
    project.run("git", "init", "-q")
    project.run("dvc", "init", "-q")
    project.run("git", "add", "-A")
    project.run("git", "commit", "-q", "-m", "start")
    return project


@pytest.fixture(scope="module")
def recorded(template, tmp_path_factory):
    """The template as if it were built: settings, prompts and responses are real, the rest stands in."""
    root = tmp_path_factory.mktemp("recorded") / "project"
    shutil.copytree(template.root, root)
    project = Project(root, root.parent / "none")
    compose.run(root)
    tree = yaml.safe_load((root / "build/config.yaml").read_text())
    for name in ("one", "two"):
        prompts.run(name, tree[name]["prompts"], root)
        project.answer(name)
        for folder in ("rejects", "verdicts"):
            _write(root / f"build/{folder}/{name}.parquet", f"{folder} {name}")
        for folder in (f"samples/{name}", f"exports/{name}/specforge"):
            _write(root / f"build/{folder}/x", name)
        _write(root / f"build/reports/{name}.json", "{}")
    _write(root / "build/tokenizer/contract.json", '{"fingerprint": "f", "target": "kimi_k2_5"}')
    _write(root / "build/profiles.yaml", "one: {}\ntwo: {}\n")
    _write(root / "build/reports/profiles.json", "{}")
    _write(root / "build/report/summary.txt", "x")
    project.run("dvc", "commit", "-f", "-q")
    project.run("git", "add", "-A")
    project.run("git", "commit", "-q", "-m", "built")
    return project


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def project(recorded, tmp_path, monkeypatch):
    root = tmp_path / "project"
    shutil.copytree(recorded.root, root)
    monkeypatch.setenv("EXACTOK_STORE", str(tmp_path / "store" / "store.sqlite"))
    return Project(root, tmp_path / "store" / "store.sqlite")


def _fates(found):
    return {outlook.stages[0]: outlook.fate for outlook in found.stages}


def _lines(found):
    return {line.dataset: line for line in found.requests}


def test_nothing_changed_is_one_line_and_writes_nothing(project):
    before = {path: path.stat().st_mtime_ns for path in (project.root / "build").rglob("*")}
    found = project.plan()
    assert set(_fates(found).values()) == {Fate.STAYS}
    assert (found.changes, found.requests, found.notes) == ([], [], [])
    assert _text(found) == "Nothing to do: all 14 stages are as they were built, nothing would be sent.\n"
    assert {path: path.stat().st_mtime_ns for path in (project.root / "build").rglob("*")} == before
    assert not project.store.parent.exists(), "no store is made"


def test_before_the_first_build_everything_is_new_and_all_is_counted(template, tmp_path, monkeypatch):
    monkeypatch.setenv("EXACTOK_STORE", str(tmp_path / "store.sqlite"))
    found = template.plan()
    assert not found.built
    assert set(_fates(found).values()) == {Fate.RUNS}
    one, two = (_lines(found)[name] for name in ("one", "two"))
    assert (one.to_send, one.later, two.to_send, two.later) == (3, 0, 2, 2)
    assert not (template.root / "build").exists()
    assert "everything is new" in _text(found)


def test_a_sampling_setting_of_one_dataset(project):
    project.pay("one")
    project.params(overrides={"dataset": {"one": {"sampling": {"temperature": 0.5}}}})
    found = project.plan()
    (change,) = found.changes
    assert (change.key, change.old, change.new) == ("one.generate.sampling.temperature", 1.0, 0.5)
    assert (change.files, change.stages) == (("params.yaml",), ("generate@one",))
    fates = _fates(found)
    assert fates["generate@one"] is Fate.RUNS
    assert fates["reconstruct@one"] is Fate.MAY_RUN
    assert fates["generate@two"] is fates["prompts@one"] is fates["tokenizer"] is Fate.STAYS
    (line,) = found.requests
    assert (line.dataset, line.to_send, line.paid) == ("one", 3, 0)


def test_a_return_to_paid_settings_sends_nothing(project):
    project.pay("one")
    project.run("git", "rm", "-q", "--cached", "build/config.yaml")
    project.params(overrides={"dataset": {"one": {"sampling": {"temperature": 0.5}}}})
    compose.run(project.root)
    project.pay("one")
    assert [(line.to_send, line.paid) for line in project.plan().requests] == [(0, 3)]


def test_prompts_added_send_their_own_requests_and_those_paid_for_tell_the_length(project):
    project.pay("one")
    project.pay("two", most=1)
    with (project.root / "conf/prompts/one.jsonl").open("a") as file:
        for number in range(4):
            file.write(json.dumps({"messages": [{"role": "user", "content": f"more {number}"}]}) + "\n")
    with (project.root / "conf/prompts/two.jsonl").open("a") as file:
        file.write(json.dumps({"turns": ["alone"]}) + "\n")
    found = project.plan()
    assert {change.files for change in found.changes} == {
        ("conf/prompts/one.jsonl",),
        ("conf/prompts/two.jsonl",),
    }
    one, two = (_lines(found)[name] for name in ("one", "two"))
    assert (one.to_send, one.later, one.paid) == (4, 0, 3)
    assert (two.to_send, two.later, two.paid) == (2, 1, 2)
    assert one.tokens.completion == 4 * _PAID_TOKENS
    assert one.tokens.completion_most == 4 * 1000
    assert two.tokens.prompt < two.tokens.prompt_most == two.tokens.prompt + 1000


def test_prompt_tokens_are_those_of_the_rendered_requests(project, kimi, kimi_target):
    from pipeline.core.render import render_ids

    project.params(overrides={"dataset": {"one": {"sampling": {"temperature": 0.5}}}})
    (line,) = project.plan().requests
    rendered = [
        render_ids({"messages": [{"role": "user", "content": f"one {n}"}]}, kimi_target.render, kimi)
        for n in range(3)
    ]
    assert line.tokens.prompt == sum(len(one.ids) for one in rendered)


def test_an_answer_that_a_killed_run_left_behind_is_not_bought_again(project):
    project.pay("one", settle=False)
    project.params(overrides={"grammar": {}})
    project.edit("pipeline/core/turns.py", "import annotations", "import annotations  # edited")
    line = _lines(project.plan())["one"]
    assert (line.to_send, line.paid) == (0, 3)


def test_a_grammar_edit_asks_nothing(project):
    project.params(overrides={"grammar": {"reasoning_open": None}})
    found = project.plan()
    assert found.requests == []
    fates = _fates(found)
    assert {name for name, fate in fates.items() if fate is Fate.RUNS} == {
        *("compose", "profiles", "reconstruct@one", "reconstruct@two", "validate@one", "validate@two")
    }
    assert "Requests: none" in _text(found)


def test_an_edited_module_is_named_and_prompts_that_stay_ask_nothing(project):
    project.edit("pipeline/core/shapes.py", "import annotations", "import annotations  # edited")
    found = project.plan()
    assert {change.files for change in found.changes} == {("pipeline/core/shapes.py",)}
    fates = _fates(found)
    assert fates["prompts@one"] is Fate.SAME_OUTPUT
    assert fates["generate@one"] is fates["report"] is Fate.STAYS
    assert found.requests == []


def test_transport_and_runtime_run_nothing_after_compose(project):
    project.edit("conf/runtime/default.yaml", "concurrency: 64", "concurrency: 3")
    found = project.plan()
    assert found.changes == []
    assert {name for name, fate in _fates(found).items() if fate is not Fate.STAYS} == {"compose"}


def test_a_lost_output_is_said_to_be_restored(project):
    shutil.rmtree(project.root / "build/samples/one")
    fates = _fates(project.plan())
    assert fates.pop("reconstruct@one") is Fate.RESTORED
    assert set(fates.values()) == {Fate.STAYS}


def test_without_a_price_the_cost_is_unknown_and_that_is_mended_where(project):
    project.params(overrides={"sampling": {"temperature": 0.5}})
    found = project.plan()
    assert found.cost is None
    assert found.notes == [
        "no price: set transport.price in conf/provider/served.yaml to see what it may cost"
    ]
    assert "no price" in _text(found)


def _price(project, budget):
    provider = yaml.safe_load((project.root / "conf/provider/served.yaml").read_text())
    provider["transport"]["price"] = {"prompt": 1.0, "completion": 100.0}
    (project.root / "conf/provider/served.yaml").write_text(yaml.safe_dump(provider))
    project.edit("conf/runtime/default.yaml", "max_cost_usd: null", f"max_cost_usd: {budget}")


def test_a_budget_that_may_not_suffice_is_a_warning(project):
    _price(project, 0.25)
    project.params(overrides={"dataset": {"one": {"sampling": {"temperature": 0.5}}}})
    found = project.plan()
    (line,) = found.requests
    assert line.cost.high == pytest.approx((line.tokens.prompt + 3 * 1000 * 100) / 1e6)
    assert line.cost.low == pytest.approx((line.tokens.prompt + 3 * _BUILT_TOKENS * 100) / 1e6)
    assert found.cost == line.cost
    (note,) = found.notes
    assert "up to $0.30 is more than runtime.max_cost_usd ($0.25)" in note
    project.edit("conf/runtime/default.yaml", "max_cost_usd: 0.25", "max_cost_usd: 5.0")
    assert project.plan().notes == []


def test_a_budget_of_one_dataset_is_held_against_that_dataset(project):
    _price(project, 5.0)
    with (project.root / "conf/runtime/default.yaml").open("a") as file:
        file.write("\nmax_cost_usd_by_dataset: {one: 0.01, two: 100.0}\n")
    project.params(overrides={"sampling": {"temperature": 0.5}})
    (note,) = project.plan().notes
    assert "runtime.max_cost_usd_by_dataset.one ($0.01)" in note


def test_how_long_another_endpoint_answers_is_unknown(project):
    _price(project, 5.0)
    project.edit("conf/provider/served.yaml", "identity: served", "identity: other")
    found = project.plan()
    assert [line.tokens.completion for line in found.requests] == [None, None]
    assert found.cost.low is None
    assert found.cost.high > 0
    assert "? - " in _text(found)


def test_the_simulator_needs_no_price_and_nobody_pays_it(project):
    path = project.root / "conf/provider/simulator.yaml"
    provider = yaml.safe_load(path.read_text())
    provider["transport"].pop("price", None)
    path.write_text(yaml.safe_dump(provider))
    project.params(provider="simulator")
    found = project.plan()
    assert found.cost.high == 0
    assert found.notes == []
    assert "nobody pays" in _text(found)


def test_json_holds_the_same_plan(project):
    project.params(overrides={"dataset": {"one": {"sampling": {"temperature": 0.5}}}})
    file = io.StringIO()
    plan.run(project.root, Console(file=file, width=40), json=True)
    read = json.loads(file.getvalue())
    assert read["changes"][0]["key"] == "one.generate.sampling.temperature"
    assert {line["stages"][0]: line["fate"] for line in read["stages"]}["generate@one"] == "runs"
    assert read["requests"][0]["to_send"] == 3


def test_off_a_terminal_there_are_plain_lines_and_on_one_no_more_than_a_screen(project):
    project.params(overrides={"sampling": {"temperature": 0.5}, "grammar": {"reasoning_open": None}})
    found = project.plan()
    text = _text(found)
    assert re.fullmatch(r"[\x20-\x7e\n]*", text)
    assert "*.generate.sampling.temperature" in text
    assert "1.0 -> 0.5" in text
    shown = _text(found, force_terminal=True)
    assert "\x1b[" in shown
    assert len(shown.splitlines()) <= 45


def test_brackets_in_a_setting_are_shown_and_long_values_and_tables_are_cut():
    changes = [Change(f"one.x{n}", "[bold]a[/bold]", "b" * 500, (f"generate@d{n}",), ()) for n in range(20)]
    stages = [Outlook((f"generate@d{n}",), Fate.RUNS, (f"one.x{n}",)) for n in range(20)]
    text = _text(Plan(Edits("c", "then", ()), True, changes, stages, [], None, []))
    assert "[bold]a[/bold] -> bbb" in text
    assert "(500 characters)" in text
    assert "... and 8 more: --json has all" in text
    assert len(text.splitlines()) < 40
