"""A small build over a real DVC repository and a real HTTP server; one change at a time, and what it costs.

The provider is the simulator, run by the test itself, so that its /stats say how many requests came.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from pipeline.simulator.process import serve

ROOT = Path(__file__).resolve().parent.parent
_BIN = Path(sys.executable).parent
_RAN = re.compile(r"^Running stage '([^']+)'", re.M)
_RESTORED = re.compile(r"^Stage '([^']+)' is cached", re.M)


class Project:
    """A clone in small: two datasets of three prompts, one export, a provider of its own."""

    def __init__(self, root: Path, home: Path, base_url: str) -> None:
        self.root, self.base_url = root, base_url
        self.env = {
            "PATH": f"{_BIN}:/usr/bin:/bin",
            "HOME": str(home),
            "EXACTOK_STORE": str(home / "store.sqlite"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "GIT_AUTHOR_NAME": "t",
            "GIT_AUTHOR_EMAIL": "t@example.org",
            "GIT_COMMITTER_NAME": "t",
            "GIT_COMMITTER_EMAIL": "t@example.org",
            "DVC_NO_ANALYTICS": "1",
        }

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.root, env=self.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def repro(self) -> tuple[set[str], int]:
        """(stages that ran or were restored, requests that reached the server)."""
        before = self._received()
        output = self.run("dvc", "repro")
        stages = {*_RAN.findall(output), *_RESTORED.findall(output)}
        return stages, self._received() - before

    def ran(self) -> tuple[set[str], int]:
        """(stages that really ran, requests)."""
        before = self._received()
        return set(_RAN.findall(self.run("dvc", "repro"))), self._received() - before

    def _received(self) -> int:
        with urlopen(f"{self.base_url.removesuffix('/v1')}/stats") as answer:
            return int(json.load(answer)["requests"])

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.root / file
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{file} has no {old!r}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def params(self, **changes: object) -> None:
        path = self.root / "params.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    root, home = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("home")
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("conf", "pipeline"):
        shutil.copytree(ROOT / name, root / name, ignore=skip)
    for name in ("dvc.yaml", "requirements.lock", ".dvcignore", ".gitignore"):
        shutil.copy(ROOT / name, root / name)
    for name in ("one", "two"):
        lines = [json.dumps({"messages": [{"role": "user", "content": f"{name} {n}"}]}) for n in range(3)]
        (root / f"conf/prompts/{name}.jsonl").write_text("\n".join(lines) + "\n")
        source = {"kind": "path", "path": f"conf/prompts/{name}.jsonl"}
        dataset = {
            "name": name,
            "about": "x",
            "prompts": {"source": source, "mapping": {"shape": "messages"}},
        }
        dataset["sampling"] = {"max_tokens": 4096}
        (root / f"conf/dataset/{name}.yaml").write_text(yaml.safe_dump(dataset))
    choice = {
        "target": "kimi_k2_5",
        "provider": "served",
        "datasets": ["one", "two"],
        "exports": ["specforge"],
    }
    (root / "params.yaml").write_text(yaml.safe_dump({**choice, "overrides": {}}))
    with serve("plain") as running:
        provider = {
            "name": "served",
            "api": {"identity": "served"},
            "transport": {"base_url": running.base_url, "deadline_s": 60.0},
            "profiles": {"default": {}},
        }
        (root / "conf/provider/served.yaml").write_text(yaml.safe_dump(provider))
        made = Project(root, home, running.base_url)
        made.run("git", "init", "-q")
        made.run("dvc", "init", "-q")
        made.run("git", "add", "-A")
        made.run("git", "commit", "-q", "-m", "start")
        yield made


_AFTER = ("reconstruct", "validate", "export")


def _stages(*names: str, datasets: tuple[str, ...] = ("one", "two")) -> set[str]:
    """Stage names as DVC prints them."""
    found = set()
    for name in names:
        if name in ("compose", "tokenizer", "profiles", "report"):
            found.add(name)
        else:
            suffix = "-specforge" if name == "export" else ""
            found |= {f"{name}@{dataset}{suffix}" for dataset in datasets}
    return found


def test_one_change_at_a_time(project):
    everything = _stages("compose", "tokenizer", "prompts", "generate", "profiles", *_AFTER, "report")
    assert project.repro() == (everything, 6)
    assert project.repro() == (set(), 0), "a second build must do nothing"
    first_lock = yaml.safe_load((project.root / "dvc.lock").read_text())

    # How requests are sent, and comments: compose at most, and nothing after it.
    project.edit("conf/provider/served.yaml", "deadline_s: 60.0", "deadline_s: 61.0")
    project.edit("conf/runtime/default.yaml", "concurrency: 64", "concurrency: 3 # fewer")
    assert project.repro() == ({"compose"}, 0)

    # Sampling of one dataset: its requests, and what follows from them.
    project.params(overrides={"dataset": {"one": {"sampling": {"temperature": 0.5}}}})
    stages, requests = project.repro()
    assert requests == 3
    assert stages >= {"compose", *_stages("generate", "reconstruct", "validate", "export", datasets=("one",))}
    assert not stages & _stages("prompts", "generate", *_AFTER, datasets=("two",))
    assert "tokenizer" not in stages

    # Back to the earlier settings: outputs restored, nothing sent.
    project.params(overrides={})
    ran, requests = project.ran()
    assert requests == 0
    assert not ran & _stages("generate", "reconstruct")
    now = yaml.safe_load((project.root / "dvc.lock").read_text())
    outs = {stage: body.get("outs") for stage, body in first_lock["stages"].items() if stage != "compose"}
    assert {stage: body.get("outs") for stage, body in now["stages"].items() if stage != "compose"} == outs

    # What is sent to one provider: every dataset that uses it.
    project.edit("conf/provider/served.yaml", "identity: served", "identity: served\n  body: {user: me}")
    stages, requests = project.repro()
    assert requests == 6
    assert _stages("generate", *_AFTER) <= stages
    assert not stages & {"tokenizer", *_stages("prompts")}

    # The grammar: read again, nothing asked again.
    project.params(overrides={"grammar": {"reasoning_open": None}})
    stages, requests = project.repro()
    assert requests == 0
    assert {"profiles", *_stages("reconstruct", "validate")} <= stages
    assert not stages & {"tokenizer", *_stages("prompts", "generate")}
    project.params(overrides={})
    project.repro()

    # A tokenizer setting that changes no id: the tokenizer alone. DVC compares the fingerprint.
    tokenizer = {"unk_token": "[PAD]"}
    project.params(overrides={"tokenizer": tokenizer})
    assert project.repro() == ({"compose", "tokenizer"}, 0)

    # Ten prompts more: ten requests.
    with (project.root / "conf/prompts/two.jsonl").open("a") as file:
        for number in range(10):
            file.write(json.dumps({"messages": [{"role": "user", "content": f"more {number}"}]}) + "\n")
    stages, requests = project.repro()
    assert requests == 10
    assert not stages & _stages("prompts", "generate", *_AFTER, datasets=("one",))

    # An export setting: that export.
    project.params(overrides={"tokenizer": tokenizer, "exports": {"specforge": {"rows_per_file": 2}}})
    assert project.repro() == ({"compose", *_stages("export")}, 0)

    # A core module: the stages that import it, and what follows.
    project.edit("pipeline/core/selection.py", "import hashlib", "import hashlib  # edited")
    assert project.repro() == ({"compose", *_stages("export")}, 0)

    # A dataset removed and put back: its outputs go, and come back without a request.
    project.params(datasets=["one"])
    _, requests = project.repro()
    assert requests == 0
    assert not (project.root / "build/samples/two").exists()
    project.params(datasets=["one", "two"])
    _, requests = project.repro()
    assert requests == 0
    assert (project.root / "build/exports/two/specforge/card.json").exists()
