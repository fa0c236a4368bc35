import io
import json
import time
from datetime import datetime

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard
from rich.console import Console

from pipeline.config import Api, GenerateSettings, Runtime, Sampling, Transport
from pipeline.core.turns import Response
from pipeline.errors import StageError
from pipeline.io.store import Store
from pipeline.schemas import PROMPTS
from pipeline.stages import generate
from pipeline.stages import store as verbs
from tests.io.filled_store import answer, ask, fill, leased, outcome, sql
from tests.io.loopback import completion

_CANARY = "sk-canary-0123456789"


@pytest.fixture
def root(tmp_path):
    """A checkout whose conf/runtime says where the store is."""
    runtime = tmp_path / "project/conf/runtime/default.yaml"
    runtime.parent.mkdir(parents=True)
    runtime.write_text("store: kept/store.sqlite\n")
    return tmp_path / "project"


@pytest.fixture(autouse=True)
def unnamed(monkeypatch):
    monkeypatch.delenv("EXACTOK_STORE", raising=False)


@pytest.fixture
def path(root):
    path = root / "kept/store.sqlite"
    fill(path, ["one", "two"], failures=1)
    return path


def _console():
    """Keeps what is printed; narrow, as a pipe may be."""
    return Console(record=True, width=40, file=io.StringIO())


def _printed(verb, root, **options):
    console = _console()
    verb(root, console, **options)
    return console.export_text()


def _import(root, source, **options):
    console = _console()
    verbs.import_(root, str(source), console, **options)
    return console.export_text()


def test_stats_fit_on_a_screen_and_lines_are_not_broken_in_a_pipe(root, path):
    with Store(path) as store:
        store.start(ask("open"), bound_usd=0.125).result()
        n = store.start(ask("late")).result().n
        late = Response(None, {}, b"")
        store.finish(ask("late"), n, late, "broke off", outcome("retry", None, "unknown")).result()
    with leased(path, ask("a")) as child:
        lines = _printed(verbs.stats, root).splitlines()
        assert f"/{child.pid} (alive)" in lines[4]
    assert lines[0].startswith(f"store     {path}, ")
    assert lines[1].startswith("answers   2 (0 imported), 20")
    assert lines[2] == "requests  3 without an answer"
    assert lines[3] == "attempts  3 retry, 2 ok, 2 unknown"
    assert lines[4].startswith("leases    1 of ")
    assert lines[5:] == [
        "",
        "here, m-served",
        "  2 answers, 10 + 8 tokens, $0.5000 (0.5000 usage)",
        "",
        "here, requests without an answer",
        "  0 answers, 0 + 0 tokens, $0.0000 (3 unknown (at most 0.1250, 2 without a bound))",
    ]


def test_stats_as_json_is_json(root, path):
    found = json.loads(_printed(verbs.stats, root, as_json=True))
    assert (found["answers"], found["path"]) == (2, str(path))


def test_the_simulators_store_is_another_file(root, path):
    with pytest.raises(StageError, match=r"store\.simulator\.sqlite: no store file"):
        _printed(verbs.stats, root, simulator=True)
    fill(path.with_name("store.simulator.sqlite"), ["x"], "sim#simulator:a:0:b")
    assert "answers   1 " in _printed(verbs.stats, root, simulator=True)
    assert _printed(verbs.verify, root, simulator=True).endswith("sound, 2 rows\n")
    assert verbs.export(root, root / "a.sqlite", simulator=True).startswith(
        f"{root / 'a.sqlite'}: 1 answers, "
    )
    assert " 0 new answers" in _import(root, root / "a.sqlite")
    assert "1 answers, 0 new, 1 were there" in _import(root, root / "a.sqlite", simulator=True)


def test_verify_prints_the_first_twenty_faults_and_counts_the_rest(root, path):
    assert _printed(verbs.verify, root) == f"{path}: sound, 6 rows\n"
    fill(path, [f"q{n}" for n in range(23)])
    sql(path, "UPDATE responses SET path = '/x'")
    console = _console()
    with pytest.raises(StageError, match=r"store\.sqlite: 25 faults in 52 rows$"):
        verbs.verify(root, console)
    lines = console.export_text().splitlines()
    assert len(lines) == 21
    assert lines[-1] == "... and 5 more"
    assert len(set(lines)) == 21


def test_export_and_import_between_two_checkouts(root, path, tmp_path):
    file = tmp_path / "a.sqlite"
    assert verbs.export(root, file, attempts=True).startswith(f"{file}: 2 answers and 4 attempts, ")
    other = tmp_path / "other"
    (other / "conf/runtime").mkdir(parents=True)
    (other / "conf/runtime/default.yaml").write_text("store: theirs.sqlite\n")
    assert _import(other, file).splitlines() == [
        f"{file}: 2 answers, 2 new, 0 were there",
        f"{other / 'theirs.sqlite'}: 2 new answers",
    ]
    with Store(other / "theirs.sqlite") as store:
        assert store.get(ask("one").key) == answer("one")


def test_since_is_a_date_in_utc(root, path, monkeypatch):
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        sql(path, "UPDATE responses SET created = ? WHERE key = ?", 86400.0 * 365.75, ask("one").key)
        assert ": 2 answers, " in verbs.export(root, root / "a", since=datetime(1971, 1, 1))
        assert ": 1 answers, " in verbs.export(root, root / "b", since=datetime(1971, 1, 2))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_damaged_import_is_exit_one_that_says_what_was_taken(root, path, tmp_path):
    file = tmp_path / "a.sqlite"
    verbs.export(root, file)
    sql(file, "UPDATE responses SET body = x'00' WHERE key = ?", ask("two").key)
    path.unlink()
    console = _console()
    with pytest.raises(StageError) as caught:
        verbs.import_(root, str(file), console)
    assert str(caught.value) == f"{file}: 1 damaged answers could not be taken; 1 new answers were"
    assert "  1 left out: the body does not decompress" in console.export_text()


def test_a_source_that_is_neither_file_nor_revision_is_one_line(root):
    with pytest.raises(StageError, match=r"^nope\.sqlite: neither a file nor a git revision of"):
        _import(root, "nope.sqlite")


def test_gc_says_what_went_and_how_large_the_file_is(root, path):
    sql(path, "UPDATE attempts SET body = randomblob(100000) WHERE body IS NOT NULL")
    with leased(path, ask("a")):
        said = verbs.gc(root)
        assert said.startswith(f"{path}: 2 bodies of failed attempts; ")
        assert said.endswith("not compacted, 1 leases are held by a run")
    said = verbs.gc(root)
    assert said.startswith(f"{path}: 1 leases of the dead; 2")
    assert said.endswith(" kB")
    assert verbs.gc(root).startswith(f"{path}: nothing to remove; ")


def test_paid_answers_go_only_when_named_and_confirmed(root, path):
    would = verbs.gc(root, identity="he", older_than_days=0)
    assert would == (f"{path}: would remove 2 answers that cost $0.5000; nothing was changed: add --yes")
    assert len(sql(path, "SELECT 1 FROM responses")) == 2
    for half in ({"identity": "he"}, {"older_than_days": 1.0}):
        with pytest.raises(StageError, match="go together"):
            verbs.gc(root, yes=True, **half)
    assert f"{path}: 2 bodies of failed attempts; " in verbs.gc(
        root, identity="he", older_than_days=1, yes=True
    )
    assert f"{path}: 2 answers; " in verbs.gc(root, identity="he", older_than_days=0, yes=True)
    assert sql(path, "SELECT 1 FROM responses") == []


def test_gc_of_the_simulators_store_keeps_what_the_settings_name(root, path):
    simulated = path.with_name("store.simulator.sqlite")
    fill(simulated, ["x"], "sim#simulator:a:0:old")
    fill(simulated, ["x"], "sim#simulator:a:0:new")
    with pytest.raises(StageError, match=r"config\.yaml: missing.*compose"):
        verbs.gc(root, simulator=True)
    api = {"identity": "sim", "simulator": {"profile": "a", "seed": 0, "code": "new"}}
    (root / "build").mkdir()
    config = {"libraries": {"generate": {"pyarrow": "1"}}, "d": {"generate": {"api": api}}}
    (root / "build/config.yaml").write_text(yaml.safe_dump(config))
    assert "1 answers of other simulators" in verbs.gc(root, simulator=True)
    assert sql(simulated, "SELECT identity FROM responses") == [("sim#simulator:a:0:new",)]
    assert len(sql(path, "SELECT 1 FROM responses")) == 2, "the real store is not touched"


def test_a_key_that_a_gateway_repeats_is_in_no_blob_of_an_export(root, tmp_path, monkeypatch):
    monkeypatch.setenv("CANARY_KEY", _CANARY)
    prompt = {"prompt_id": "p", "position": 0, "messages": '[{"role": "user", "content": "a"}]'}
    prompts = tmp_path / "d.parquet"
    rows = [prompt | {"following_turns": "[]", "tools": None, "source_id": None}]
    pq.write_table(pa.Table.from_pylist(rows, schema=PROMPTS), prompts)
    sent = []

    def echo(request):
        sent.append(request.headers["authorization"])
        headers = {"x-echo": sent[-1]}
        if len(sent) == 1:
            return httpx.Response(502, text=f"bad gateway, you sent {sent[-1]}", headers=headers)
        return httpx.Response(200, json=completion(f"you sent {sent[-1]}"), headers=headers)

    async def sleep(_):
        return None

    generate.run(
        prompts,
        GenerateSettings(provider="p", model="m", api=Api(identity="here"), sampling=Sampling()),
        Transport(base_url="http://x", max_attempts=2, key_env="CANARY_KEY"),
        Runtime(store="kept/store.sqlite"),
        tmp_path / "out/d.parquet",
        root=root,
        http=httpx.MockTransport(echo),
        sleep=sleep,
    )
    assert sent == [f"Bearer {_CANARY}"] * 2
    file = tmp_path / "a.sqlite"
    verbs.export(root, file, attempts=True)
    blobs = sql(file, "SELECT body FROM responses UNION ALL SELECT body FROM attempts WHERE body IS NOT NULL")
    opened = [zstandard.ZstdDecompressor().decompress(blob) for (blob,) in blobs]
    assert len(opened) == 2
    assert all(b"you sent" in body for body in opened)
    kept = [file.read_bytes(), *opened, _printed(verbs.stats, root).encode()]
    assert not any(_CANARY.encode() in part for part in kept)
