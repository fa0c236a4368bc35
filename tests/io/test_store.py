import asyncio
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zstandard

from pipeline.core.turns import Asked, Response
from pipeline.errors import GenerationError
from pipeline.io import store_writes
from pipeline.io.lease_owner import may_live, new_owner
from pipeline.io.store import Claim, LeaseLost, Outcome, Started, Store
from pipeline.io.store_file import SCHEMA_VERSION, connect
from pipeline.io.store_location import store_path
from pipeline.io.store_process import Keeper

_OK = Outcome("ok", "a complete answer", "gen-1", 0.5, "usage", "m-served", 5, 4)
_RAW = Response(200, {"content-type": "application/json"}, b' \n{"x": "\xe6\xbc\xa2"}')


def _asked(key="k"):
    return Asked(
        key, "here", "/chat/completions", {"model": "m", "key": key}, f'{{"key":"{key}","model":"m"}}'
    )


def _claim(store, key="k"):
    return store.start(_asked(key)).result().claim


def _begin(store, key="k"):
    """The number of the attempt that goes out, after earlier ones too."""
    started = store.start(_asked(key)).result()
    assert started.claim is Claim.WON
    return started.n or store.begin_attempt(_asked(key)).result()


def _settle(store, key="k", response=_RAW):
    n = _begin(store, key)
    store.finish(_asked(key), n, response, None, _OK, response).result()
    return n


def test_answers_come_back_byte_for_byte_in_another_process_too(tmp_path):
    path = tmp_path / "deep" / "store.sqlite"
    with Store(path) as store:
        _settle(store)
        assert store.get("k") == _RAW
    with Store(path) as store:
        assert store.get_many(["other", "k"]) == {"k": _RAW}
        assert store.get("other") is None


def test_a_response_is_on_disk_before_it_is_judged(tmp_path):
    path = tmp_path / "store.sqlite"
    with Store(path) as store:
        n = store.start(_asked(), bound_usd=0.75).result().n
        with Store(path) as other:
            (begun,) = other.attempts("k")
            assert (begun.n, begun.ended, begun.response, begun.bound_usd) == (1, None, None, 0.75)
        store.record_response(_asked(), n, _RAW, "broke off").result()
        with Store(path) as other:
            (received,) = other.attempts("k")
            assert (received.response, received.problem, received.outcome) == (_RAW, "broke off", None)
            assert other.get("k") is None


def test_every_attempt_stays_and_the_answer_is_kept_once(tmp_path):
    path = tmp_path / "store.sqlite"
    with Store(path) as store:
        bad = Response(500, {}, b"<html>")
        first = _begin(store)
        failed = Outcome("retry", "status 500", None, None, "unknown")
        store.finish(_asked(), first, bad, None, failed).result()
        second = store.begin_attempt(_asked(), "Alpha").result()
        store.finish(_asked(), second, _RAW, None, _OK, _RAW).result()
        one, two = store.attempts("k")
    assert (one.n, one.response, one.outcome, one.cost_source) == (1, bad, "retry", "unknown")
    assert (two.n, two.response, two.outcome, two.cost_usd, two.avoided) == (2, None, "ok", 0.5, "Alpha")
    rows = sqlite3.connect(path).execute(
        "SELECT identity, path, attempt, generation_id, cost_usd, sample, model, prompt_tokens, "
        "completion_tokens FROM responses"
    )
    assert rows.fetchall() == [("here", "/chat/completions", 2, "gen-1", 0.5, 0, "m-served", 5, 4)]


def test_a_first_answer_stands_and_a_second_is_kept_beside_it(tmp_path):
    path, now = tmp_path / "store.sqlite", [1000.0]
    with Store(path, clock=lambda: now[0]) as slow, Store(path, clock=lambda: now[0]) as quick:
        late = _begin(slow)
        now[0] += 500
        assert _settle(quick) == late + 1
        too_late = Response(200, {}, b"late")
        slow.finish(_asked(), late, too_late, None, _OK, too_late).result()
        assert slow.get("k") == _RAW
        assert [attempt.response and attempt.response.body for attempt in slow.attempts("k")] == [
            b"late",
            None,
        ]


def test_a_stream_stays_beside_the_answer_that_was_assembled_from_it(tmp_path):
    stream, assembled = Response(200, {}, b"data: {}"), Response(200, {"a": "b"}, b'{"x":1}')
    with Store(tmp_path / "store.sqlite") as store:
        n = _begin(store)
        store.finish(_asked(), n, stream, None, _OK, assembled).result()
        assert store.get("k") == assembled
        assert store.attempts("k")[0].response == stream


def test_an_earlier_attempt_can_become_the_answer(tmp_path):
    with Store(tmp_path / "store.sqlite") as store:
        first = _begin(store)
        store.finish(_asked(), first, _RAW, None, _OK).result()
        assert store.get("k") is None
        ended = store.attempts("k")[0].ended
        second = store.begin_attempt(_asked()).result()
        store.finish(_asked(), second, Response(404, {}, b"none"), None, _OK).result()
        store.finish(_asked(), first, _RAW, None, _OK, _RAW).result()
        assert store.get("k") == _RAW
        one, two = store.attempts("k")
    assert (one.response, one.ended, two.response.body) == (None, ended, b"none")


def test_hundreds_of_writes_at_once_are_all_carried_out(tmp_path):
    with Store(tmp_path / "store.sqlite") as store:
        keys = [f"k{n}" for n in range(700)]
        started = [store.start(_asked(key)) for key in keys]
        assert {one.result() for one in started} == {Started(Claim.WON, 1)}
        bodies = {key: Response(200, {}, key.encode()) for key in keys}
        done = [store.finish(_asked(key), 1, bodies[key], None, _OK, bodies[key]) for key in keys]
        for one in done:
            one.result()
        assert store.get_many(keys) == bodies


def test_a_write_is_awaited_in_an_event_loop(tmp_path):
    async def many(store):
        started = await asyncio.gather(*(_await(store.start(_asked(f"k{n}"))) for n in range(50)))
        written = store.start(_asked("k0"))
        written.result()
        return {*started, await written}

    async def _await(written):
        return await written

    with Store(tmp_path / "store.sqlite") as store:
        assert asyncio.run(many(store)) == {Started(Claim.WON, 1), Started(Claim.TAKEN)}


def test_a_write_that_fails_harms_no_neighbour(tmp_path):
    with Store(tmp_path / "store.sqlite") as store:
        bad = Asked("bad", None, "/p", {}, "{}")  # the identity may not be missing
        for _ in range(3):
            wrong, right = store.start(bad), store.start(_asked("other"))
            with pytest.raises(sqlite3.IntegrityError):
                wrong.result()
            right.result()
        assert _claim(store, "other") is Claim.TAKEN


def test_a_write_that_fails_half_way_leaves_nothing(tmp_path, monkeypatch):
    def half(writing, db, items):
        db.execute("INSERT INTO leases VALUES ('half', 'x', 1)")
        raise ValueError("half way")

    monkeypatch.setitem(store_writes.HANDLERS, "half", half)
    path = tmp_path / "store.sqlite"
    Store(path).close()
    with contextlib.closing(connect(path)) as db:
        batch = [("half", [None, None]), ("start", [store_writes.Start("k", "here", None, None)])]
        failed, (started,) = Keeper(db).commit("me", 120.0, 1.0, batch)
        assert [str(one) for one in failed] == ["half way", "half way"]
        assert started == Started(Claim.WON, 1)
        assert db.execute("SELECT key FROM leases").fetchall() == [("k",)]


def test_a_commit_that_fails_leaves_nothing_and_says_why(tmp_path):
    path = tmp_path / "store.sqlite"
    Store(path).close()
    with contextlib.closing(connect(path)) as db:
        db.execute("PRAGMA query_only = 1")
        batch = [("start", [store_writes.Start("k", "here", None, None)])]
        assert "readonly" in Keeper(db).commit("me", 120.0, 1.0, batch)
        db.execute("PRAGMA query_only = 0")
        assert db.execute("SELECT count(*) FROM leases").fetchone() == (0,)


def test_when_its_process_is_killed_everyone_who_waits_is_told(tmp_path):
    with Store(tmp_path / "store.sqlite") as store:
        store.start(_asked()).result()
        store._writer._process.kill()
        for _ in range(2):
            with pytest.raises(GenerationError, match=r"can't be written \(its process ended with code -9\)"):
                store.start(_asked("other")).result()


def test_what_cannot_be_sent_is_said_and_the_store_goes_on(tmp_path):
    with Store(tmp_path / "store.sqlite") as store:
        with pytest.raises(GenerationError, match="can't be written"):
            store._writer.submit("start", lambda: None).result()
        assert _claim(store) is Claim.WON


def test_costs_that_become_known_are_booked(tmp_path):
    unknown = Outcome("ok", "a complete answer", "gen-1", None, "unknown")
    with Store(tmp_path / "store.sqlite") as store:
        n = store.start(_asked(), bound_usd=0.75).result().n
        store.finish(_asked(), n, _RAW, None, unknown, _RAW).result()
        (unpriced,) = store.unpriced("here")
        assert (unpriced.key, unpriced.n, unpriced.generation_id, unpriced.bound_usd) == (
            "k",
            1,
            "gen-1",
            0.75,
        )
        assert store.unpriced("elsewhere") == []
        store.book(unpriced, 0.125).result()
        assert store.unpriced("here") == []
        assert (store.attempts("k")[0].cost_usd, store.attempts("k")[0].cost_source) == (0.125, "generation")


def test_a_store_of_schema_1_is_migrated_with_all_it_holds(tmp_path):
    path = tmp_path / "store.sqlite"
    body = {
        "model": "m-served",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "a"}}],
    }
    body["usage"] = {"prompt_tokens": 7, "completion_tokens": 3, "cost": 0.5}
    pack = zstandard.ZstdCompressor().compress
    raw, request = pack(json.dumps(body).encode()), pack(b'{"messages":[],"model":"m"}')
    old = sqlite3.connect(path)
    old.executescript(
        """
CREATE TABLE responses (
  key TEXT PRIMARY KEY, identity TEXT NOT NULL, path TEXT NOT NULL, request BLOB NOT NULL,
  attempt INTEGER NOT NULL, status INTEGER, headers TEXT NOT NULL, body BLOB NOT NULL,
  generation_id TEXT, cost_usd REAL, cost_source TEXT NOT NULL, created REAL NOT NULL);
CREATE TABLE attempts (
  key TEXT NOT NULL, n INTEGER NOT NULL, started REAL NOT NULL, ended REAL, avoided TEXT,
  status INTEGER, headers TEXT, body BLOB, problem TEXT,
  outcome TEXT, detail TEXT, generation_id TEXT, cost_usd REAL, cost_source TEXT,
  PRIMARY KEY (key, n));
CREATE TABLE leases (key TEXT PRIMARY KEY, owner TEXT NOT NULL, expires REAL NOT NULL);
PRAGMA user_version = 1;
"""
    )
    with old:
        old.execute(
            "INSERT INTO responses VALUES ('k', 'here', '/p', ?, 1, 200, '{}', ?, 'g', 0.5, 'usage', 1.0)",
            (request, raw),
        )
        old.execute("INSERT INTO attempts (key, n, started, outcome) VALUES ('k', 1, 0.5, 'ok')")
        old.execute(
            "INSERT INTO responses VALUES ('bad', 'here', '/p', ?, 1, 200, '{}', ?, 'g', 0.5, 'usage', 1.0)",
            (request, b"damaged"),
        )
    old.close()
    with Store(path) as store:
        assert json.loads(store.get("k").body) == body
        assert store.attempts("k")[0].outcome == "ok"
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    found = db.execute(
        "SELECT key, model, prompt_tokens, completion_tokens, sample FROM responses ORDER BY key"
    )
    assert found.fetchall() == [("bad", None, None, None, 0), ("k", "m-served", 7, 3, 0)]
    assert db.execute("SELECT identity FROM attempts").fetchall() == [("here",)]


def test_a_key_is_claimed_by_one_at_a_time(tmp_path):
    path = tmp_path / "store.sqlite"
    with Store(path) as one, Store(path) as two:
        assert _claim(one) is Claim.WON
        assert _claim(one) is Claim.TAKEN
        assert _claim(two) is Claim.TAKEN
        assert _claim(two, "other") is Claim.WON
        one.release("k").result()
        assert _claim(two) is Claim.WON
        one.release("k").result()
        assert _claim(one) is Claim.TAKEN
    with Store(path) as three:
        assert _claim(three) is Claim.WON
        _settle(three, "answered")
        assert _claim(three, "answered") is Claim.ANSWERED


def test_many_threads_and_one_winner_a_key(tmp_path):
    path, wins = tmp_path / "store.sqlite", []

    def race():
        with Store(path) as store:
            barrier.wait()
            claims = [store.start(_asked(f"k{n}")) for n in range(50)]
            wins.extend(n for n, claim in enumerate(claims) if claim.result().claim is Claim.WON)
            barrier.wait()

    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wins) == list(range(50))


def test_a_lease_that_ran_out_is_taken_over_and_its_old_owner_may_not_send(tmp_path):
    path, now = tmp_path / "store.sqlite", [1000.0]
    with Store(path, clock=lambda: now[0]) as one, Store(path, clock=lambda: now[0]) as two:
        assert _claim(one) is Claim.WON
        now[0] += 119
        assert _claim(two) is Claim.TAKEN
        now[0] += 2
        assert _claim(two) is Claim.WON
        with pytest.raises(LeaseLost):
            one.begin_attempt(_asked()).result()
        assert two.begin_attempt(_asked()).result() == 2


def test_leases_are_renewed_while_their_process_lives(tmp_path):
    path = tmp_path / "store.sqlite"

    def expires():
        with contextlib.closing(sqlite3.connect(path)) as db:
            return db.execute("SELECT expires FROM leases WHERE key = 'k'").fetchone()[0]

    with Store(path, lease_s=0.4) as one:
        _claim(one)
        before, ends = expires(), time.monotonic() + 20
        while expires() == before and time.monotonic() < ends:
            time.sleep(0.02)
        assert expires() > before


def test_a_lease_is_held_again_or_known_to_be_lost(tmp_path):
    path, now = tmp_path / "store.sqlite", [1000.0]
    with Store(path, clock=lambda: now[0]) as one, Store(path, clock=lambda: now[0]) as two:
        _claim(one)
        one.hold(_asked()).result()
        now[0] += 500
        _claim(two)
        with pytest.raises(LeaseLost):
            one.hold(_asked()).result()


def test_an_attempt_that_did_not_go_out_is_taken_back_and_one_that_ended_is_not(tmp_path):
    with Store(tmp_path / "store.sqlite") as store:
        n = _begin(store)
        store.withdraw(_asked(), n).result()
        assert store.attempts("k") == []
        store.release("k").result()
        _settle(store)
        store.withdraw(_asked(), 1).result()
        assert len(store.attempts("k")) == 1


def test_the_lease_of_a_dead_process_is_free_at_once(tmp_path):
    path = tmp_path / "store.sqlite"
    code = (
        "import os, sys; from pathlib import Path; from pipeline.io.store import Store\n"
        "from pipeline.core.turns import Asked\n"
        "store = Store(Path(sys.argv[1])); asked = Asked('k', 'here', '/p', {}, '{}')\n"
        "assert store.start(asked).result().claim == 'won'\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child, Store(path) as store:
        assert child.stdout.readline() == "ready\n"
        assert _claim(store) is Claim.TAKEN
        child.kill()
        child.wait()
        assert _claim(store) is Claim.WON


def test_who_may_live():
    here, process, name = new_owner().rsplit("/", 2)
    assert int(process) == os.getpid()
    assert may_live(f"{here}/{process}/{name}")
    assert may_live(f"elsewhere/{2**22 + 1}/{name}")
    assert not may_live(f"{here}/{2**22 + 1}/{name}")


def test_a_newer_store_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "store.sqlite"
    Store(path).close()
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()
    with pytest.raises(GenerationError, match=rf"schema {SCHEMA_VERSION + 1}.*update"):
        Store(path)
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION + 1,)


def test_a_file_that_is_no_store_is_refused_in_one_line(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, " * 100)
    with pytest.raises(GenerationError, match="EXACTOK_STORE") as caught:
        Store(path)
    assert "\n" not in str(caught.value)


def test_the_file_is_named_by_the_environment_then_by_the_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("EXACTOK_STORE", str(tmp_path / "mine.sqlite"))
    assert store_path(Path("/r"), "other.sqlite", simulator=False) == tmp_path / "mine.sqlite"
    assert store_path(Path("/r"), None, simulator=True) == tmp_path / "mine.simulator.sqlite"
    monkeypatch.delenv("EXACTOK_STORE")
    assert store_path(Path("/r"), "other.sqlite", simulator=False) == Path("/r/other.sqlite")


def test_without_a_name_clones_share_a_file_and_the_simulator_has_its_own(tmp_path, monkeypatch):
    for name in ("EXACTOK_STORE", "DVC_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    repository, clone, bare = tmp_path / "repository", tmp_path / "clone", tmp_path / "bare"
    bare.mkdir()

    def git(*arguments):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q", repository)
    assert store_path(repository, None, simulator=False).parent.name == "no-repository"
    git("-C", repository, "commit", "-q", "--allow-empty", "-m", "first")
    root_commit = git("-C", repository, "rev-parse", "HEAD")
    git("-C", repository, "commit", "-q", "--allow-empty", "-m", "second")
    git("clone", "-q", repository, clone)
    path = store_path(repository, None, simulator=False)
    assert (path.name, path.parent.name) == ("store.sqlite", root_commit)
    assert store_path(clone, None, simulator=False) == path
    assert store_path(bare, None, simulator=False).parent.name == "no-repository"
    simulated = store_path(repository, None, simulator=True)
    assert simulated.parent.name == root_commit
    assert simulated.parent != path.parent
    monkeypatch.setenv("DVC_ROOT", str(repository))
    assert store_path(bare, None, simulator=False) == path
