"""A folder -> a small project like a user's clone: conf, code, datasets, a provider on loopback."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.chaos.answers import PRICE, prompt_of

ROOT = Path(__file__).resolve().parent.parent.parent
_BIN = Path(sys.executable).parent


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    complaints: str

    @property
    def error(self) -> str:
        """The one line that a user reads; fails if there are more."""
        lines = [line for line in self.complaints.splitlines() if line.startswith("error:")]
        assert len(lines) == 1, self.complaints[-3000:]
        assert "Traceback" not in self.complaints, self.complaints[-3000:]
        return lines[0]


@dataclass
class Project:
    """`store` is inside the temporary folder; every copy has a home of its own."""

    root: Path
    home: Path
    store: Path
    extra_env: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return {
            "PATH": f"{_BIN}:/usr/bin:/bin",
            "HOME": str(self.home),
            "EXACTOK_STORE": str(self.store),
            "PYTHONDONTWRITEBYTECODE": "1",
            "DVC_NO_ANALYTICS": "1",
            **self.extra_env,
        }

    def run(self, *command: str, timeout_s: float = 120.0) -> Done:
        """A command to its end, whatever that is."""
        process = self.start(*command)
        return self.wait(process, timeout_s)

    def start(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.root, env=self.env, stdout=pipe, stderr=pipe, text=True, **options
        )

    def wait(self, process: subprocess.Popen[str], timeout_s: float = 120.0) -> Done:
        with process:
            try:
                out, complaints = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return Done(process.returncode, out, complaints)

    def verb(self, *words: str, **options: Any) -> Done:
        """`python -m pipeline WORDS`."""
        return self.run(sys.executable, "-m", "pipeline", *words, **options)

    def begin(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """The same, not waited for; its pid is that of the pipeline itself."""
        return self.start(sys.executable, "-m", "pipeline", *words, **options)

    def must(self, *command: str) -> Done:
        done = self.run(*command)
        assert done.code == 0, done.out[-2000:] + done.complaints[-3000:]
        return done

    def transport(self, **changes: Any) -> None:
        """How it is sent: read at every run, so nothing is composed again."""
        self._change("conf/provider/served.yaml", "transport", changes)

    def runtime(self, **changes: Any) -> None:
        path = self.root / "conf/runtime/default.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))

    def params(self, **changes: Any) -> None:
        path = self.root / "params.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))

    def _change(self, file: str, part: str, changes: dict[str, Any]) -> None:
        path = self.root / file
        tree = yaml.safe_load(path.read_text())
        tree[part] |= changes
        path.write_text(yaml.safe_dump(tree))

    def responses(self, dataset: str = "one") -> Path:
        return self.root / f"build/responses/{dataset}.parquet"

    def rows(self, dataset: str = "one") -> list[dict[str, Any]]:
        import pyarrow.parquet as pq

        rows: list[dict[str, Any]] = pq.read_table(self.responses(dataset)).to_pylist()
        return rows

    def digest(self, dataset: str = "one") -> str:
        return hashlib.sha256(self.responses(dataset).read_bytes()).hexdigest()

    def copy(self, folder: Path, *, store: Path | None = None) -> Project:
        """Another clone, with what is built; a store of its own unless one is given."""
        shutil.copytree(self.root, folder / "project", ignore=shutil.ignore_patterns("responses"))
        (folder / "home").mkdir()
        return Project(
            folder / "project", folder / "home", store or folder / "store/store.sqlite", dict(self.extra_env)
        )


def make_project(
    folder: Path,
    datasets: dict[str, int],
    *,
    max_tokens: int = 64,
    body: dict[str, Any] | None = None,
    git: bool = True,
) -> Project:
    """Composed, its prompts read. `datasets`: name -> number of prompts; prompts end with their number."""
    project = Project(folder / "project", folder / "home", folder / "store/store.sqlite")
    project.home.mkdir(parents=True)
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("conf", "pipeline"):
        shutil.copytree(ROOT / name, project.root / name, ignore=skip)
    for name in ("dvc.yaml", "requirements.lock", ".dvcignore", ".gitignore"):
        shutil.copy(ROOT / name, project.root / name)
    for name, prompts in datasets.items():
        _dataset(project.root, name, prompts, max_tokens)
    provider = yaml.safe_load((ROOT / "conf/provider/openai_compatible.yaml").read_text())
    provider["name"] = "served"
    provider["api"] |= {"identity": "served", "history_reasoning": "reasoning", "body": body or {}}
    provider["transport"] |= {"base_url": "http://127.0.0.1:9/v1", "price": PRICE}
    provider["profiles"] = {"default": {}}
    (project.root / "conf/provider/served.yaml").write_text(yaml.safe_dump(provider))
    choice = {"target": "kimi_k2_5", "provider": "served", "datasets": list(datasets)}
    choice |= {"exports": ["specforge"], "overrides": {}}
    (project.root / "params.yaml").write_text(yaml.safe_dump(choice))
    if git:
        project.must("git", "init", "-q")
        project.must(sys.executable, "-m", "dvc", "init", "-q")
    return project


def compose(project: Project) -> None:
    """What DVC would run before `generate`."""
    project.must(sys.executable, "-m", "pipeline", "compose")
    for dataset in yaml.safe_load((project.root / "params.yaml").read_text())["datasets"]:
        project.must(sys.executable, "-m", "pipeline", "prompts", dataset)


def _dataset(root: Path, name: str, prompts: int, max_tokens: int) -> None:
    lines = [
        json.dumps({"messages": [{"role": "user", "content": prompt_of(name, number)}]})
        for number in range(prompts)
    ]
    (root / f"conf/prompts/{name}.jsonl").write_text("\n".join(lines) + "\n")
    source = {"kind": "path", "path": f"conf/prompts/{name}.jsonl"}
    dataset = {
        "name": name,
        "about": "Numbered questions.",
        "prompts": {"source": source, "mapping": {"shape": "messages"}},
        "sampling": {"max_tokens": max_tokens},
    }
    (root / f"conf/dataset/{name}.yaml").write_text(yaml.safe_dump(dataset))


def leftovers(project: Project) -> list[str]:
    """Files in build/responses that are no finished output."""
    folder = project.root / "build/responses"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []
