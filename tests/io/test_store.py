import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipeline.core.turns import Asked, Response
from pipeline.errors import GenerationError
from pipeline.io.lease_owner import may_live, new_owner
from pipeline.io.store import Claim, LeaseLost, Store
from pipeline.io.store_file import SCHEMA_VERSION
from pipeline.io.store_location import store_path

_RAW = Response(200, {"content-type": "application/json"}, b' \n{"x": "\xe6\xbc\xa2"}')


def _asked(key="k"):
    return Asked(key, "here", "/chat/completions", {"model": "m", "key": key})


def _settle(store, key="k", response=_RAW):
    assert store.claim(key).result() is Claim.WON
    n = store.begin_attempt(key).result()
    store.record_response(key, n, response).result()
    store.record_outcome(key, n, "ok", "a complete answer", "gen-1", 0.5, "usage").result()
    store.put(_asked(key), n).result()
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
        store.claim("k").result()
        n = store.begin_attempt("k", "Alpha").result()
        with Store(path) as other:
            (begun,) = other.attempts("k")
            assert (begun.n, begun.ended, begun.response, begun.avoided) == (1, None, None, "Alpha")
        store.record_response("k", n, _RAW, "broke off").result()
        with Store(path) as other:
            (received,) = other.attempts("k")
            assert (received.response, received.problem, received.outcome) == (_RAW, "broke off", None)
            assert other.get("k") is None


def test_every_attempt_stays_and_the_answer_is_kept_once(tmp_path):
    path = tmp_path / "store.sqlite"
    with Store(path) as store:
        store.claim("k").result()
        bad = Response(500, {}, b"<html>")
        first = store.begin_attempt("k").result()
        store.record_response("k", first, bad).result()
        store.record_outcome("k", first, "retry", "status 500", None, None, "unknown").result()
        second = store.begin_attempt("k").result()
        store.record_response("k", second, _RAW).result()
        store.record_outcome("k", second, "ok", "complete", "gen-1", 0.5, "usage").result()
        store.put(_asked(), second).result()
        one, two = store.attempts("k")
    assert (one.n, one.response, one.outcome, one.cost_source) == (1, bad, "retry", "unknown")
    assert (two.n, two.response, two.outcome, two.cost_usd) == (2, None, "ok", 0.5)
    rows = sqlite3.connect(path).execute(
        "SELECT identity, path, attempt, generation_id, cost_usd FROM responses"
    )
    assert rows.fetchall() == [("here", "/chat/completions", 2, "gen-1", 0.5)]


def test_a_first_answer_stands_and_a_second_is_kept_beside_it(tmp_path):
    path, now = tmp_path / "store.sqlite", [1000.0]
    with Store(path, clock=lambda: now[0]) as slow, Store(path, clock=lambda: now[0]) as quick:
        slow.claim("k").result()
        late = slow.begin_attempt("k").result()
        now[0] += 500
        assert _settle(quick) == late + 1
        slow.record_response("k", late, Response(200, {}, b"late")).result()
        slow.record_outcome("k", late, "ok", "complete", None, 0.5, "usage").result()
        slow.put(_asked(), late).result()
        assert slow.get("k") == _RAW
        assert [attempt.response and attempt.response.body for attempt in slow.attempts("k")] == [
            b"late",
            None,
        ]


def test_putting_an_attempt_that_has_no_answer_is_an_error_and_harms_no_neighbour(tmp_path):
    with Store(tmp_path / "store.sqlite") as store:
        store.claim("k").result()
        n = store.begin_attempt("k").result()
        wrong = store.put(_asked(), n)
        right = store.claim("other")
        with pytest.raises(sqlite3.IntegrityError):
            wrong.result()
        assert right.result() is Claim.WON
        assert store.get("k") is None


def test_an_operation_that_fails_half_way_leaves_nothing(tmp_path):
    def half(db):
        db.execute("INSERT INTO leases VALUES ('half', 'x', 1)")
        raise ValueError("half way")

    with Store(tmp_path / "store.sqlite") as store:
        with pytest.raises(ValueError, match="half way"):
            store._writer.submit(half).result()
        store.claim("k").result()
        with sqlite3.connect(store.path) as db:
            assert db.execute("SELECT key FROM leases").fetchall() == [("k",)]


def test_a_key_is_claimed_by_one_at_a_time(tmp_path):
    path = tmp_path / "store.sqlite"
    with Store(path) as one, Store(path) as two:
        assert one.claim("k").result() is Claim.WON
        assert one.claim("k").result() is Claim.TAKEN
        assert two.claim("k").result() is Claim.TAKEN
        assert two.claim("other").result() is Claim.WON
        one.release("k").result()
        assert two.claim("k").result() is Claim.WON
        one.release("k").result()
        assert one.claim("k").result() is Claim.TAKEN
    with Store(path) as three:
        assert three.claim("k").result() is Claim.WON
        _settle(three, "answered")
        assert three.claim("answered").result() is Claim.ANSWERED


def test_many_threads_and_one_winner_a_key(tmp_path):
    path, wins = tmp_path / "store.sqlite", []

    def race():
        with Store(path) as store:
            barrier.wait()
            claims = [store.claim(f"k{n}") for n in range(50)]
            wins.extend(n for n, claim in enumerate(claims) if claim.result() is Claim.WON)
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
        assert one.claim("k").result() is Claim.WON
        now[0] += 119
        assert two.claim("k").result() is Claim.TAKEN
        now[0] += 2
        assert two.claim("k").result() is Claim.WON
        with pytest.raises(LeaseLost):
            one.begin_attempt("k").result()
        assert two.begin_attempt("k").result() == 1


def test_leases_are_renewed_while_their_process_lives(tmp_path):
    path = tmp_path / "store.sqlite"
    beaten = threading.Event()
    with Store(path, lease_s=0.4) as one:
        renew = one._writer._heartbeat

        def heartbeat(db):
            renew(db)
            beaten.set()

        one.claim("k").result()
        before = sqlite3.connect(path).execute("SELECT expires FROM leases").fetchone()[0]
        one._writer._heartbeat = heartbeat
        assert beaten.wait(20)
        one.claim("other").result()  # the transaction of the heartbeat is over
        expires = dict(sqlite3.connect(path).execute("SELECT key, expires FROM leases").fetchall())
        assert expires["k"] > before


def test_the_lease_of_a_dead_process_is_free_at_once(tmp_path):
    path = tmp_path / "store.sqlite"
    code = (
        "import os, sys; from pathlib import Path; from pipeline.io.store import Store\n"
        "store = Store(Path(sys.argv[1])); assert store.claim('k').result() == 'won'\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child, Store(path) as store:
        assert child.stdout.readline() == "ready\n"
        assert store.claim("k").result() is Claim.TAKEN
        child.kill()
        child.wait()
        assert store.claim("k").result() is Claim.WON


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


def test_a_write_that_fails_reaches_everyone_who_waits_for_it(tmp_path):
    with Store(tmp_path / "store.sqlite") as store:
        store._writer.submit(lambda db: db.execute("PRAGMA query_only = 1")).result()
        with pytest.raises((GenerationError, sqlite3.OperationalError)):
            store.claim("k").result()


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
