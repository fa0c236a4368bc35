import sqlite3
import time
from contextlib import closing

import pytest
import zstandard

from pipeline.errors import StageError
from pipeline.io.store import Store
from pipeline.io.store_care import verify
from pipeline.io.store_check import IMPORTED
from pipeline.io.store_exchange import export, import_file
from pipeline.io.store_file import SCHEMA_VERSION
from pipeline.io.store_stats import stats
from tests.io.filled_store import FAILED, answer, ask, fill, leased, outcome, sql

_PACK = zstandard.ZstdCompressor().compress
_SIMULATED = "sim#simulator:default:0:abc"


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.sqlite"
    fill(path, ["one", "two", "three"], failures=1)
    return path


@pytest.fixture
def theirs(tmp_path):
    return tmp_path / "deep" / "theirs.sqlite"


def _sound(path):
    return list(verify(path, lambda: None)) == []


def _import(path, source, simulator=False):
    return import_file(path, source, simulator=simulator)


# --- there and back ----------------------------------------------------------------------------


def test_a_colleague_gets_every_answer_byte_for_byte_and_pays_nothing(mine, theirs, tmp_path):
    file = tmp_path / "answers.sqlite"
    assert export(mine, file) == (3, 0)
    found = _import(theirs, file)
    assert (found.seen, found.new, found.elsewhere, found.damaged.total()) == (3, 3, 0, 0)
    with Store(theirs) as store:
        for text in ("one", "two", "three"):
            assert store.get(ask(text).key) == answer(text)
            assert store.start(ask(text)).result().claim == "answered"
    columns = (
        "key, identity, path, sample, model, generation_id, cost_usd, cost_source, created, completion_tokens"
    )
    rows = f"SELECT {columns} FROM responses ORDER BY key"
    assert sql(theirs, rows) == sql(mine, rows)
    assert stats(theirs)["imported"] == 3
    assert _sound(theirs)
    again = _import(theirs, file)
    assert (again.seen, again.new) == (3, 0)


def test_the_file_is_one_file_without_leases_and_holds_attempts_only_when_asked(mine, tmp_path):
    file, full = tmp_path / "out/a.sqlite", tmp_path / "out/b.sqlite"
    with leased(mine, ask("a")):
        export(mine, file)
        assert export(mine, full, attempts=True) == (3, 6)
    assert sorted(path.name for path in file.parent.iterdir()) == ["a.sqlite", "b.sqlite"]
    assert sql(file, "SELECT count(*), max(attempt) FROM responses") == [(3, IMPORTED)]
    assert sql(file, "SELECT count(*) FROM attempts") == [(0,)]
    assert sql(file, "PRAGMA journal_mode") == [("delete",)]
    for path in (file, full):
        assert sql(path, "SELECT count(*) FROM leases") == [(0,)]
        assert _sound(path)
    taken = _import(tmp_path / "theirs.sqlite", full)
    assert taken.new == 3
    assert _sound(tmp_path / "theirs.sqlite")


def test_export_filters_by_beginning_of_the_identity_and_by_date(mine, tmp_path):
    fill(mine, ["one"], "her_e")
    sql(mine, "UPDATE responses SET created = 1000 WHERE key = ?", ask("one").key)

    def keys(name, **choice):
        export(mine, tmp_path / name, **choice)
        return {key for (key,) in sql(tmp_path / name, "SELECT key FROM responses")}

    assert keys("a", identity="here") == {ask(text).key for text in ("one", "two", "three")}
    assert keys("b", identity="her_") == {ask("one", "her_e").key}
    assert keys("c", identity="her", since=time.time() - 3600) == keys("d") - {ask("one").key}


def test_export_overwrites_nothing_and_leaves_nothing_when_nothing_matches(mine, tmp_path):
    file = tmp_path / "out" / "notes.txt"
    file.parent.mkdir()
    file.write_text("precious")
    with pytest.raises(StageError, match="not overwritten"):
        export(mine, file)
    assert file.read_text() == "precious"
    with pytest.raises(StageError, match="no answer matches"):
        export(mine, file.with_name("new.sqlite"), identity="nobody")
    assert [path.name for path in file.parent.iterdir()] == ["notes.txt"]
    with pytest.raises(StageError, match=r"none\.sqlite: no store file"):
        export(tmp_path / "none.sqlite", file.with_name("new.sqlite"))


def test_a_store_from_an_older_schema_is_exported_whole(tmp_path, theirs):
    path = _of_schema_1(tmp_path / "old.sqlite", ask("one"))
    export(path, tmp_path / "a.sqlite")
    assert _import(theirs, tmp_path / "a.sqlite").new == 1
    with Store(theirs) as store:
        assert store.get(ask("one").key) == answer("one")


# --- what is not taken -------------------------------------------------------------------------


def test_existing_answers_stand_and_what_the_file_has_instead_does_not_matter(mine, theirs, tmp_path):
    fill(theirs, ["one"])
    sql(theirs, "UPDATE responses SET cost_usd = 7")
    export(mine, tmp_path / "a.sqlite")
    sql(tmp_path / "a.sqlite", "UPDATE responses SET body = x'00' WHERE key = ?", ask("one").key)
    found = _import(theirs, tmp_path / "a.sqlite")
    assert (found.seen, found.new, found.damaged.total()) == (3, 2, 0)
    assert sql(theirs, "SELECT cost_usd, attempt FROM responses WHERE key = ?", ask("one").key) == [(7.0, 1)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("request = x'00'", "the request does not decompress"),
        ("body = substr(body, 1, 20)", "the body does not decompress"),
        ("identity = 'elsewhere'", "the key is not that of its identity, path and request"),
        ("headers = 'x'", "the headers are no JSON"),
        (f"body = x'{_PACK(FAILED.body).hex()}', status = 502", "not final: now classed retry"),
    ],
)
def test_damaged_answers_are_left_out_with_their_reason_and_the_others_taken(
    mine, theirs, tmp_path, change, reason
):
    file = tmp_path / "a.sqlite"
    export(mine, file)
    sql(file, f"UPDATE responses SET {change} WHERE key = ?", ask("two").key)
    found = _import(theirs, file)
    assert (found.seen, found.new) == (3, 2)
    ((text, count),) = found.damaged.items()
    assert (count, text.startswith(reason)) == (1, True)
    with Store(theirs) as store:
        assert store.get(ask("two").key) is None
    assert _sound(theirs)


def test_a_file_that_is_broken_inside_gives_what_can_be_read(theirs, tmp_path):
    mine, file = tmp_path / "mine.sqlite", tmp_path / "a.sqlite"
    fill(mine, [f"q{n}" for n in range(300)])
    export(mine, file)
    whole = file.read_bytes()
    middle = len(whole) // 2 // 4096 * 4096
    file.write_bytes(whole[:middle] + b"\x5a" * 4096 + whole[middle + 4096 :])
    found = _import(theirs, file)
    assert 0 < found.new < 300
    assert [text for text in found.damaged if text.startswith("the file can't be read further")]
    assert _sound(theirs)
    file.write_bytes(whole[:middle])
    with pytest.raises(StageError, match="is no whole file of"):
        _import(theirs, file)


def test_answers_of_the_simulator_and_real_ones_never_mix(theirs, tmp_path):
    mixed = tmp_path / "mixed.sqlite"
    fill(mixed, ["real"])
    fill(mixed, ["made", "up"], _SIMULATED)
    real = _import(theirs, mixed)
    assert (real.seen, real.new, real.elsewhere) == (3, 1, 2)
    assert sql(theirs, "SELECT identity FROM responses") == [("here",)]
    simulated = _import(tmp_path / "sim.sqlite", mixed, simulator=True)
    assert (simulated.new, simulated.elsewhere) == (2, 1)
    assert sql(tmp_path / "sim.sqlite", "SELECT DISTINCT identity FROM responses") == [(_SIMULATED,)]


def test_what_is_no_exported_file_is_refused_in_one_line_and_left_alone(mine, theirs, tmp_path):
    text, newer, other = (tmp_path / name for name in ("a.txt", "b.sqlite", "c.sqlite"))
    text.write_text("not a database, " * 100)
    export(mine, newer)
    sql(newer, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    sql(other, "CREATE TABLE pets (name)")
    for file, reason in ((text, "is no whole file of"), (newer, "update it"), (other, "is no whole file of")):
        before = file.read_bytes()
        with pytest.raises(StageError, match=reason) as caught:
            _import(theirs, file)
        assert str(file) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert file.read_bytes() == before
    with pytest.raises(StageError, match="is the store itself"):
        _import(mine, mine)
    assert not theirs.exists()


def test_a_file_of_an_older_schema_is_read_and_left_as_it_is(theirs, tmp_path):
    file = _of_schema_1(tmp_path / "old.sqlite", ask("one"))
    before = file.read_bytes()
    assert _import(theirs, file).new == 1
    assert file.read_bytes() == before
    assert sql(theirs, "SELECT model, completion_tokens FROM responses") == [("m-served", 4)]


def test_a_store_that_can_not_be_written_is_said_in_one_line(mine, theirs, tmp_path):
    export(mine, tmp_path / "a.sqlite")
    theirs.parent.mkdir()
    theirs.write_text("not a database, " * 100)
    with pytest.raises(StageError, match=r"theirs\.sqlite: can't be used") as caught:
        _import(theirs, tmp_path / "a.sqlite")
    assert "\n" not in str(caught.value)


def test_an_import_waits_for_a_run_that_writes(mine, theirs, tmp_path):
    export(mine, tmp_path / "a.sqlite")
    with Store(theirs) as store:
        started = [store.start(ask(f"q{n}")) for n in range(200)]
        assert _import(theirs, tmp_path / "a.sqlite").new == 3
        assert all(one.result().n == 1 for one in started)
        n = store.start(ask("one")).result()
        assert (n.claim, store.get(ask("one").key)) == ("answered", answer("one"))


def test_an_answer_that_arrives_after_the_import_is_kept_beside_it(mine, theirs, tmp_path):
    export(mine, tmp_path / "a.sqlite")
    with Store(theirs) as store:
        n = store.start(ask("one")).result().n
        _import(theirs, tmp_path / "a.sqlite")
        late = answer("late")
        store.finish(ask("one"), n, late, None, outcome(), late).result()
        assert store.get(ask("one").key) == answer("one")
        assert [attempt.response for attempt in store.attempts(ask("one").key)] == [late]
    assert _sound(theirs)


def _of_schema_1(path, asked):
    """A store as the first version wrote it, with one answer."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "CREATE TABLE responses (key TEXT PRIMARY KEY, identity TEXT NOT NULL, path TEXT NOT NULL, "
            "request BLOB NOT NULL, attempt INTEGER NOT NULL, status INTEGER, headers TEXT NOT NULL, "
            "body BLOB NOT NULL, generation_id TEXT, cost_usd REAL, cost_source TEXT NOT NULL, "
            "created REAL NOT NULL)"
        )
        db.execute(
            "CREATE TABLE attempts (key TEXT NOT NULL, n INTEGER NOT NULL, started REAL NOT NULL, "
            "ended REAL, avoided TEXT, status INTEGER, headers TEXT, body BLOB, problem TEXT, "
            "outcome TEXT, detail TEXT, generation_id TEXT, cost_usd REAL, cost_source TEXT, "
            "PRIMARY KEY (key, n))"
        )
        db.execute("CREATE TABLE leases (key TEXT PRIMARY KEY, owner TEXT NOT NULL, expires REAL NOT NULL)")
        response = answer(asked.body["messages"][0]["content"])
        headers = '{"content-type": "application/json", "x-generation-id": "gen-1"}'
        request, body = _PACK(asked.text.encode()), _PACK(response.body)
        row = (asked.key, asked.identity, asked.path, request, 1, 200, headers, body, "gen-1", 0.25, "usage")
        db.execute(f"INSERT INTO responses VALUES ({', '.join('?' * 12)})", (*row, time.time()))
        db.execute("PRAGMA user_version = 1")
    return path
