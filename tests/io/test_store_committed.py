import json
import shutil
import socket
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from aiohttp import web

from pipeline.config import Api, GenerateSettings, Sampling, SimulatorSettings
from pipeline.errors import StageError
from pipeline.io import store_committed
from pipeline.io.store import Store
from pipeline.io.store_care import verify
from pipeline.io.store_committed import import_committed, import_revision
from tests.io.filled_store import sql
from tests.io.loopback import completion, failure, loopback

_ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = Path(__file__).with_name("run_committed.py")
_BIN = Path(sys.executable).parent
_SIMULATOR = {"profile": "default", "seed": 0, "code": "abc"}


def _settings(**api):
    return GenerateSettings(
        provider="loopback", model="m", api=Api(**{"identity": "here", **api}), sampling=Sampling()
    )


class Project:
    """A git and DVC repository with one generate stage for each of two datasets."""

    def __init__(self, root: Path, url: str) -> None:
        self.root, self.url = root, url
        self.store = root.parent / "store.sqlite"
        self.env = {
            "PATH": f"{_BIN}:/usr/bin:/bin",
            "HOME": str(root.parent),
            "PYTHONPATH": str(_ROOT),
            "EXACTOK_STORE": str(self.store),
            "DVC_NO_ANALYTICS": "1",
            **{f"GIT_{who}_{what}": "t@t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        stages = {
            f"generate@{name}": {
                "cmd": f"python {_SCRIPT} {url} {name}",
                "deps": [f"build/prompts/{name}.parquet"],
                "outs": [f"build/responses/{name}.parquet"],
            }
            for name in ("one", "two")
        }
        plain = {name.replace("@", "_"): stage for name, stage in stages.items()}
        generate = {"generate": {"api": {"identity": "here", "path": "/chat/completions", "of_2031": 1}}}
        simulated = {"generate": {"api": {"identity": "sim", "simulator": _SIMULATOR}}}
        config = {
            "libraries": {"generate": {"pyarrow": "1"}},
            **dict.fromkeys(("one", "two"), generate),
            "made_up": simulated,
        }
        (root / "build").mkdir(parents=True)
        (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": plain}))
        (root / "build/config.yaml").write_text(yaml.safe_dump(config))
        (root / ".gitignore").write_text("build/*\n!build/config.yaml\n")
        for name in ("one", "two"):
            self.prompts(name, f"{name} a", f"{name} b")
        self.run("git", "init", "-q", "-b", "main")
        self.run("dvc", "init", "-q")

    def run(self, *command: object) -> str:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.root,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout + done.stderr

    def commit(self, tag: str) -> None:
        self.run("git", "add", "-A")
        self.run("git", "commit", "-q", "-m", tag)
        self.run("git", "tag", tag)

    def prompts(self, name: str, *texts: str) -> None:
        rows = [
            {
                "prompt_id": text,
                "position": position,
                "messages": json.dumps([{"role": "user", "content": text}]),
                "following_turns": "[]",
                "tools": None,
                "source_id": None,
            }
            for position, text in enumerate(texts)
        ]
        schema = pa.schema(
            [
                (key, pa.int64() if key == "position" else pa.string())
                for key in ("prompt_id", "position", "messages", "following_turns", "tools", "source_id")
            ]
        )
        path = self.root / f"build/prompts/{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)

    def lose_store(self) -> None:
        for path in self.store.parent.glob(f"{self.store.name}*"):
            path.unlink()

    def lose_cache(self) -> Path:
        """DVC's cache moves away; where to."""
        gone = self.root.parent / "cache-of-someone-else"
        shutil.move(self.root / ".dvc/cache", gone)
        return gone

    def take(self, dataset: str = "one", **api) -> tuple[int, list[str]]:
        """What import_committed takes into an empty store, and what it says."""
        self.lose_store()
        said: list[str] = []
        with Store(self.store) as store:
            return import_committed(store, self.root, dataset, _settings(**api), said.append), said

    def take_apart(self, patience_s: float = 20.0) -> tuple[int, list[str], str]:
        """The same in a process of its own, and its stderr: fsspec's HTTP client outlives its use."""
        self.lose_store()
        code = (
            "import json, sys; from pathlib import Path\n"
            "from pipeline.io import store_committed as committed; from pipeline.io.store import Store\n"
            "from tests.io.test_store_committed import _settings\n"
            "path, committed.PATIENCE_S, said = Path(sys.argv[1]), float(sys.argv[2]), []\n"
            "with Store(path) as store:\n"
            "    new = committed.import_committed(store, Path(), 'one', _settings(), said.append)\n"
            "parts = committed.import_revision(path, Path(), 'v1', simulator=False) if new else ()\n"
            "print(json.dumps([sum([new, *(found.new for _, found in parts)]), said]))"
        )
        command = [sys.executable, "-c", code, str(self.store), str(patience_s)]
        done = subprocess.run(
            command, cwd=self.root, env=self.env, capture_output=True, text=True, check=True, timeout=60
        )
        return (*json.loads(done.stdout), done.stderr)


async def _answer(body, n):
    text = body["messages"][-1]["content"]
    return failure(400, "too long") if "refuse" in text else web.json_response(completion(f"re: {text}"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Built and committed once as v1, its repository and the server's address; copied for each test."""
    root = tmp_path_factory.mktemp("committed") / "project"
    with loopback(_answer) as server:
        project = Project(root, server.url)
        project.run("dvc", "repro")
        project.commit("v1")
        yield project, server


@pytest.fixture
def project(built, tmp_path):
    original, _ = built
    shutil.copytree(original.root, tmp_path / "project", symlinks=True)
    copy = object.__new__(Project)
    copy.__dict__.update(original.__dict__)
    copy.root, copy.store = tmp_path / "project", tmp_path / "store.sqlite"
    copy.env = {**original.env, "EXACTOK_STORE": str(copy.store), "HOME": str(tmp_path)}
    return copy


# --- generate takes what the last commit has -----------------------------------------------------


def test_with_the_store_lost_only_new_prompts_are_sent(built, project):
    _, server = built
    before = len(server.asked)
    project.lose_store()
    project.prompts("one", "one a", "one c", "one b", "one d")
    output = project.run("dvc", "repro")
    assert sorted(body["messages"][-1]["content"] for body in server.asked[before:]) == ["one c", "one d"]
    assert "2 taken; generate one: 4 rows (4 answers, 0 failures); 2 requests sent" in output
    rows = pq.read_table(project.root / "build/responses/one.parquet").to_pylist()
    bodies = [json.loads(row["body"])["choices"][0]["message"]["content"] for row in rows]
    assert bodies == ["re: one a", "re: one c", "re: one b", "re: one d"]
    assert list(verify(project.store, lambda: None)) == []


def test_a_rebuild_from_the_commit_alone_gives_the_same_bytes_and_sends_nothing(built, project):
    _, server = built
    before = len(server.asked)
    project.lose_store()
    out = project.root / "build/responses/two.parquet"
    old = out.read_bytes()
    output = project.run("dvc", "repro", "-f", "generate_two")
    assert "2 taken; generate two: 2 rows" in output
    assert len(server.asked) == before
    assert out.read_bytes() == old


def test_only_what_the_store_lacks_is_taken(project):
    assert project.take() == (2, [])
    sql(project.store, "DELETE FROM responses WHERE rowid = 1")
    with Store(project.store) as store:
        assert import_committed(store, project.root, "one", _settings()) == 1
        assert import_committed(store, project.root, "one", _settings()) == 0


def test_answers_of_another_endpoint_are_not_taken(project):
    assert project.take(identity="elsewhere") == (0, [])
    assert project.take(path="/completions") == (0, [])


def test_dvc_is_not_even_opened_for_the_simulator_and_for_what_was_never_built(project, monkeypatch):
    monkeypatch.setattr(store_committed, "_opened", lambda *_: pytest.fail("opened"))
    assert project.take("three") == (0, [])
    assert project.take(simulator=SimulatorSettings(**_SIMULATOR)) == (0, [])


def test_where_there_is_nothing_to_take_it_is_nothing_and_silent(project, tmp_path):
    project.lose_cache()
    assert project.take() == (0, [])
    new = tmp_path / "new"
    new.mkdir()
    with Store(project.store) as store:
        for command in (
            None,
            ("git", "init", "-q", new),
            ("git", "-C", new, "commit", "-qm", "x", "--allow-empty"),
        ):
            if command is not None:
                project.run(*command)
            assert import_committed(store, new, "one", _settings(), pytest.fail) == 0


def test_the_cache_may_lie_elsewhere(project):
    project.run("dvc", "cache", "dir", "--local", project.lose_cache())
    assert project.take() == (2, [])


def test_a_damaged_cache_is_said_and_no_obstacle(project):
    for file in (project.root / ".dvc/cache/files/md5").glob("*/*"):
        file.chmod(0o644)
        file.write_bytes(file.read_bytes()[:300])
    taken, (line,) = project.take()
    assert taken == 0
    assert line.startswith("one: answers of the last commit were not taken: ")
    assert "\n" not in line


# --- remotes -----------------------------------------------------------------------------------


def test_a_remote_serves_where_the_cache_does_not_also_one_younger_than_the_commit(project):
    remote = project.lose_cache()
    project.run("dvc", "remote", "add", "-d", "shared", remote)
    assert project.take() == (2, [])
    project.run("git", "checkout", "-q", ".dvc/config")
    project.run("dvc", "remote", "add", "--local", "-d", "shared", remote)
    assert project.take() == (2, [])


def test_a_remote_over_the_network_serves_too(project):
    handler = partial(_Quiet, directory=str(project.lose_cache()))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        project.run("dvc", "remote", "add", "-d", "web", f"http://127.0.0.1:{server.server_port}")
        taken, said, _ = project.take_apart()
        server.shutdown()
    assert (taken, said) == (4, []), "two of dataset one by import_committed, two of the other by its tag"
    assert list(verify(project.store, lambda: None)) == []


def test_a_remote_that_is_dead_or_hangs_is_said_and_holds_nothing_up(project):
    project.lose_cache()
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        port = hanging.getsockname()[1]
        project.run("dvc", "remote", "add", "-d", "web", f"http://127.0.0.1:{port}")
        taken, (line,), _ = project.take_apart(patience_s=0.5)
        assert (taken, "no word within 0.5 s" in line) == (0, True)
    taken, (line,), stderr = project.take_apart()
    assert (taken, "DVC's remote failed" in line, "\n" in line) == (0, True, False)
    assert "Traceback" not in stderr


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


# --- store import REV ----------------------------------------------------------------------------


def _revision(project, revision, simulator=False):
    project.lose_store()
    return dict(import_revision(project.store, project.root, revision, simulator=simulator))


def test_a_tag_gives_every_answer_that_its_build_had(project):
    project.prompts("one", "other")
    project.run("dvc", "repro")
    project.commit("v2")
    found = _revision(project, "v1")
    assert {name: (one.seen, one.new) for name, one in found.items()} == {"one": (2, 2), "two": (2, 2)}
    rows = sql(project.store, "SELECT identity, path, attempt, model, cost_usd, cost_source FROM responses")
    assert rows == [("here", "/chat/completions", 0, "m-served", 0.25, "usage")] * 4
    assert sql(
        project.store, "SELECT DISTINCT prompt_tokens, completion_tokens, generation_id FROM responses"
    ) == [(5, 4, "gen-1")]
    assert list(verify(project.store, lambda: None)) == []
    assert _revision(project, "HEAD")["one"].new == 1


def test_every_flipped_bit_of_a_body_that_was_taken_is_found(project):
    _revision(project, "v1")
    ((body,),) = sql(project.store, "SELECT body FROM responses LIMIT 1")
    for place in range(len(body)):
        flipped = body[:place] + bytes([body[place] ^ 4]) + body[place + 1 :]
        sql(project.store, "UPDATE responses SET body = ? WHERE rowid = 1", flipped)
        assert len(list(verify(project.store, lambda: None))) == 1, f"byte {place}"


def test_final_refusals_are_answers_and_what_is_missing_is_none(built, project):
    project.prompts("one", "one a", "refuse", "one b")
    project.run("dvc", "repro")
    path = project.root / "build/responses/one.parquet"
    table = pq.read_table(path).to_pylist()
    assert [row["failure"] for row in table] == [None, "fatal_row", None]
    table[2] |= {"status": None, "body": "", "failure": "missing"}
    table.append({**table[2], "request": None, "request_key": None, "failure": "previous_turn_failed"})
    table.append({**table[0], "body": table[0]["body"] + " "})  # two rows of one request
    _replace(project, table)
    project.commit("v2")
    found = _revision(project, "v2")["one"]
    assert (found.seen, found.new, found.damaged.total()) == (3, 2, 0)
    assert not _body_of(project, table[0]["request_key"]).endswith(b" ")
    assert sorted(sql(project.store, "SELECT status FROM responses WHERE model IS NULL")) == [(400,)]


def test_rows_whose_key_or_body_is_not_theirs_are_left_out(project):
    table = pq.read_table(project.root / "build/responses/one.parquet").to_pylist()
    table.append({**table[0], "request_key": "0" * 64})
    table.append({**table[1], "request_key": "1" * 64, "request": None})
    table[1]["body"] = table[1]["body"][:40]
    _replace(project, table)
    project.commit("v2")
    found = _revision(project, "v2")["one"]
    assert (found.seen, found.new) == (4, 1)
    assert sorted(reason[:20] for reason in found.damaged) == [
        "not final: now class",
        "the key is not that ",
        "the request is no JS",
    ]
    assert list(verify(project.store, lambda: None)) == []


def _body_of(project, key):
    with Store(project.store) as store:
        return store.get(key).body


def _replace(project, rows):
    """Put other rows where the stage wrote its own, as if it had written them."""
    path = project.root / "build/responses/one.parquet"
    schema = pq.read_schema(path)
    path.unlink()  # it may be a link into the cache
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    project.run("dvc", "commit", "-f", "generate_one")


def test_an_answer_that_is_nowhere_is_said_by_dataset_and_the_others_are_taken(project):
    digest = yaml.safe_load((project.root / "dvc.lock").read_text())["stages"]["generate_one"]["outs"][0][
        "md5"
    ]
    (project.root / f".dvc/cache/files/md5/{digest[:2]}/{digest[2:]}").unlink()
    found = _revision(project, "v1")
    assert "neither DVC's cache nor its remote holds it" in found["one"]
    assert found["two"].new == 2


@pytest.mark.parametrize(
    ("revision", "simulator", "reason"),
    [
        ("nope", False, "nope: neither a file nor a git revision of"),
        ("empty", False, "empty: has no build/config.yaml"),
        ("real", True, "leave --simulator out"),
        ("simulated", False, "add --simulator"),
        ("odd", False, "odd: build/config.yaml: one.generate.api"),
    ],
)
def test_a_revision_that_gives_nothing_is_refused_in_one_line(project, revision, simulator, reason):
    path = project.root / "build/config.yaml"
    config = yaml.safe_load(path.read_text())
    if revision == "empty":
        path.unlink()
    elif revision == "odd":
        path.write_text(yaml.safe_dump({"one": {"generate": {"api": {"path": 3}}}}))
    elif revision != "nope":
        gone = ("one", "two") if revision == "simulated" else ("made_up",)
        path.write_text(yaml.safe_dump({name: part for name, part in config.items() if name not in gone}))
    if revision != "nope":
        project.commit(revision)
    with pytest.raises(StageError) as caught:
        _revision(project, revision, simulator)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_dvc_is_imported_only_when_it_is_needed():
    code = "import sys, pipeline.io.store_committed; sys.exit('dvc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=_ROOT, check=False).returncode == 0
