import json
import time

import pytest
import zstandard

from pipeline.core.turns import Response
from pipeline.errors import StageError
from pipeline.io.store import Store
from pipeline.io.store_care import count_rows, find_paid, gc, verify
from pipeline.io.store_check import IMPORTED
from pipeline.io.store_stats import size_of, stats
from tests.io.filled_store import FAILED, answer, ask, fill, leased, outcome, settle, sql

_PACK = zstandard.ZstdCompressor().compress
_OTHER_KEY = "0" * 64


def _faults(path):
    return list(verify(path, lambda: None))


@pytest.fixture
def path(tmp_path):
    """A refusal, failed attempts before an answer, requests without one: what a sound store may hold."""
    path = tmp_path / "store.sqlite"
    with Store(path) as store:
        settle(store, ask("plain"), answer("plain"))
        settle(store, ask("third time"), answer("third time"), failures=2)
        refusal = Response(400, {}, b'{"error": {"code": 400, "message": "too long", "metadata": null}}')
        asked = ask("refused")
        n = store.start(asked).result().n
        store.finish(asked, n, refusal, None, outcome("fatal_row", 0.0, "none"), refusal).result()
        n = store.start(ask("open")).result().n
        store.finish(ask("open"), n, FAILED, None, outcome("retry", None, "unknown")).result()
        store.release(ask("open").key).result()
        store.start(ask("died"), bound_usd=0.5).result()
    return path


# --- stats -------------------------------------------------------------------------------------


def test_stats_count_answers_attempts_costs_and_tokens(path):
    found = stats(path)
    assert (found["answers"], found["imported"], found["unanswered"]) == (3, 0, 2)
    assert found["attempts"] == {"retry": 3, "ok": 2, "unknown": 1, "fatal_row": 1}
    served, unanswered = sorted(found["by_endpoint"], key=lambda one: one["model"], reverse=True)
    assert (served["identity"], served["model"], served["answers"]) == ("here", "m-served", 3)
    assert (served["prompt_tokens"], served["completion_tokens"]) == (15, 12)
    assert served["cost"]["usage"] == {"count": 2, "usd": 0.5, "unpriced": 0}
    assert served["cost"]["none"] == {"count": 3, "usd": 0.0, "unpriced": 0}
    unknown = {"count": 2, "usd": 0.0, "unpriced": 2, "bound_usd": 0.5, "without_bound": 1}
    assert (unanswered["identity"], unanswered["cost"]) == ("here", {"unknown": unknown})
    assert found["bytes"] == size_of(path)
    assert found["oldest"] <= found["newest"]


def test_an_imported_answer_brings_its_own_cost_and_one_with_an_attempt_is_counted_once(path):
    sql(path, "UPDATE responses SET attempt = ?, cost_usd = 2 WHERE key = ?", IMPORTED, ask("plain").key)
    sql(path, "DELETE FROM attempts WHERE key = ?", ask("plain").key)
    found = stats(path)
    assert found["imported"] == 1
    assert sum(one["cost"].get("usage", {"usd": 0})["usd"] for one in found["by_endpoint"]) == 2.25


def test_stats_tell_living_holders_of_leases_from_dead_ones(path):
    with leased(path, ask("a"), ask("b")) as child:
        (held,) = stats(path)["leases"]
        assert (held["count"], held["alive"], f"/{child.pid}/" in held["owner"]) == (2, True, True)
    assert [one["alive"] for one in stats(path)["leases"]] == [False]


@pytest.mark.parametrize("of", [stats, count_rows, gc, _faults, lambda path: find_paid(path, "", 0)])
def test_no_store_and_a_file_that_is_none_are_one_line_that_names_the_path(tmp_path, of):
    for path, text in ((tmp_path / "none.sqlite", None), (tmp_path / "notes.txt", "not a database, " * 100)):
        if text is not None:
            path.write_text(text)
        with pytest.raises(StageError) as caught:
            of(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "none.sqlite").exists()


# --- verify ------------------------------------------------------------------------------------


def test_a_sound_store_has_no_fault_and_every_row_is_a_step(path):
    steps = []
    assert list(verify(path, lambda: steps.append(1))) == []
    assert len(steps) == count_rows(path) == 3 + 7


_CUT = json.dumps({"choices": [{"message": {"content": "half"}}]}).encode()[:-5]
_FAULTS = {
    "request_no_frame": ("request = x'00'", "request does not decompress"),
    "request_cut": ("request = substr(request, 1, length(request) - 3)", "request does not decompress"),
    "request_other": (("request", _PACK(ask("another").text.encode())), "the key is not that of"),
    "request_no_json": (("request", _PACK(b"{")), "request is no JSON"),
    "request_no_object": (("request", _PACK(b"[]")), "request is no JSON object"),
    "request_no_utf8": (("request", _PACK(b"\xff")), "request is not UTF-8"),
    "body_no_frame": ("body = x'00'", "body does not decompress"),
    "body_cut": ("body = substr(body, 1, length(body) - 3)", "body does not decompress"),
    "body_text": ("body = 'text'", "body does not decompress"),
    "body_huge": (("body", b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 7 + b"\x00"), "impossible size"),
    "identity": ("identity = 'elsewhere'", "the key is not that of"),
    "path": ("path = '/completions'", "the key is not that of"),
    "sample": ("sample = 1", "the key is not that of"),
    "headers_no_json": ("headers = '{'", "headers are no JSON"),
    "headers_list": ("headers = '[]'", "headers are no JSON object"),
    "headers_number": ("headers = '{\"a\": 1}'", "value that is no text"),
    "status": ("status = 9999", "status is 9999"),
    "now_retry": (("body", _PACK(_CUT)), "not final: now classed retry"),
    "now_no_money": (f"status = 402, body = x'{_PACK(b'{}').hex()}'", "not final: now classed"),
    "no_attempt": ("attempt = 7", "attempt 7 is not there"),
}


@pytest.mark.parametrize("name", _FAULTS)
def test_a_fault_planted_in_an_answer_is_found_and_named(path, name):
    change, expected = _FAULTS[name]
    key = ask("plain").key
    if isinstance(change, str):
        sql(path, f"UPDATE responses SET {change} WHERE key = ?", key)
    else:
        sql(path, f"UPDATE responses SET {change[0]} = ? WHERE key = ?", change[1], key)
    (fault,) = _faults(path)
    assert fault.startswith(f"answer {key}: ")
    assert expected in fault
    assert "\n" not in fault


_ATTEMPT_FAULTS = {
    "body": ("body = x'00'", "body does not decompress"),
    "headers": ("headers = 'x'", "headers are no JSON"),
    "no_end": ("ended = NULL", "no end"),
    "early_end": ("ended = started - 1", "ended before it started"),
}


@pytest.mark.parametrize("name", _ATTEMPT_FAULTS)
def test_a_fault_planted_in_an_attempt_is_found_and_named(path, name):
    change, expected = _ATTEMPT_FAULTS[name]
    key = ask("third time").key
    sql(path, f"UPDATE attempts SET {change} WHERE key = ? AND n = 2", key)
    (fault,) = _faults(path)
    assert fault.startswith(f"attempt {key} 2: ")
    assert expected in fault


def test_an_answer_whose_attempt_was_never_judged_is_a_fault(path):
    sql(path, "UPDATE attempts SET outcome = NULL WHERE key = ?", ask("plain").key)
    assert _faults(path) == [f"answer {ask('plain').key}: its attempt 1 was never judged"]


def test_the_lease_of_a_dead_owner_is_a_fault_and_that_of_a_living_one_is_none(path):
    with leased(path, ask("a")):
        assert _faults(path) == []
    (fault,) = _faults(path)
    assert "1 of a dead owner" in fault


def test_a_broken_index_is_found_by_sqlite_and_the_rest_is_still_read(path):
    sql(path, "UPDATE responses SET sample = 1 WHERE key = ?", ask("refused").key)
    sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    file, key = path.read_bytes(), ask("plain").key.encode()
    assert file.count(key) >= 2, "in the table and in its index"
    path.write_bytes(file.replace(key, _OTHER_KEY.encode(), 1))
    faults = _faults(path)
    assert any(fault.startswith("integrity_check: ") for fault in faults)
    assert any(fault.startswith(f"answer {ask('refused').key}: ") for fault in faults)


def test_pages_of_noise_are_faults_and_no_crash(tmp_path):
    path = tmp_path / "store.sqlite"
    fill(path, [f"q{n}" for n in range(60)], failures=1)
    sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    file = path.read_bytes()
    for start in range(8192, len(file) - 8192, 8192):
        path.write_bytes(file[:start] + b"\x5a" * 4096 + file[start + 4096 :])
        try:
            faults = _faults(path)
        except StageError as refused:
            faults = [str(refused)]
        assert faults, f"noise at byte {start} was not noticed"
        assert all("\n" not in fault for fault in faults)


# --- gc ----------------------------------------------------------------------------------------


def test_gc_frees_the_leases_of_the_dead_and_leaves_those_of_the_living(path):
    with leased(path, ask("a"), ask("b")):
        pass
    with leased(path, ask("c")):
        swept = gc(path)
        assert (swept.leases, swept.in_use) == (2, 1)
        assert sql(path, "SELECT key FROM leases") == [(ask("c").key,)]
    assert gc(path).leases == 1
    assert _faults(path) == []


def test_gc_drops_bodies_of_failed_attempts_that_have_an_answer_and_nothing_else(tmp_path):
    path = tmp_path / "store.sqlite"
    requests = fill(path, [f"q{n}" for n in range(30)], failures=2)
    noise = "UPDATE attempts SET body = randomblob(20000) WHERE body IS NOT NULL"  # so that space counts
    sql(path, noise)
    sql(
        path, "UPDATE attempts SET body = x'aa' WHERE key = ? AND outcome = 'ok'", requests[0].key
    )  # a stream
    lost = "UPDATE attempts SET cost_source = 'unknown', generation_id = ? WHERE key = ? AND n = 1"
    sql(path, lost, None, requests[1].key)
    sql(path, lost, "gen-7", requests[2].key)
    unjudged = "UPDATE attempts SET outcome = NULL WHERE key = ? AND n = 1"
    sql(path, unjudged, requests[3].key)
    with Store(path) as store:
        n = store.start(ask("open")).result().n
        store.finish(ask("open"), n, FAILED, None, outcome("retry", 0.0, "none")).result()
    rows = "SELECT count(*), sum(cost_usd), group_concat(outcome) FROM attempts"
    before = sql(path, rows)
    swept = gc(path)
    assert swept.bodies == 60 - 2
    assert swept.after < swept.before - 50 * 20000
    assert swept.after == size_of(path)
    assert sql(path, rows) == before
    kept = sql(path, "SELECT key, n FROM attempts WHERE body IS NOT NULL")
    expected = {(requests[0].key, 3), (requests[1].key, 1), (requests[3].key, 1), (ask("open").key, 1)}
    assert set(kept) == expected
    with Store(path) as store:
        assert all(store.get(asked.key) == answer(f"q{n}") for n, asked in enumerate(requests))
    assert gc(path).bodies == 0


def test_the_raw_stream_of_a_refusal_that_is_the_answer_is_kept(path):
    key = ask("refused").key
    sql(path, "UPDATE attempts SET body = x'aa' WHERE key = ?", key)
    gc(path)
    assert sql(path, "SELECT body FROM attempts WHERE key = ?", key) == [(b"\xaa",)]


def test_a_second_good_answer_is_kept(path):
    key = ask("third time").key
    sql(path, "UPDATE attempts SET outcome = 'ok' WHERE key = ? AND n = 1", key)
    assert gc(path).bodies == 1
    assert sql(path, "SELECT n FROM attempts WHERE body IS NOT NULL AND key = ?", key) == [(1,)]


def test_a_file_in_use_is_cleaned_but_not_compacted(path):
    sql(path, "UPDATE attempts SET body = randomblob(200000) WHERE body IS NOT NULL")
    with leased(path, ask("a")):
        swept = gc(path)
    assert (swept.in_use, swept.bodies) == (1, 2)
    assert sql(path, "PRAGMA freelist_count")[0][0] > 0
    gc(path)
    assert sql(path, "PRAGMA freelist_count") == [(0,)]


def test_simulators_that_are_not_current_lose_their_answers_and_attempts(tmp_path):
    path = tmp_path / "store.sqlite"
    current, old = "sim#simulator:a:0:new", "sim#simulator:a:0:old"
    fill(path, ["x", "y"], current)
    fill(path, ["x", "y", "z"], old, failures=1)
    with Store(path) as store:
        store.start(ask("unanswered", old)).result()
        store.start(ask("unanswered", current)).result()
    assert gc(path, current={current}).stale == 3
    assert sql(path, "SELECT DISTINCT identity FROM responses") == [(current,)]
    assert sql(path, "SELECT DISTINCT identity FROM attempts") == [(current,)]
    assert _faults(path) == []


def test_paid_answers_are_found_by_prefix_and_age_and_go_with_their_attempts(tmp_path):
    path = tmp_path / "store.sqlite"
    old, young = fill(path, ["old", "young"], "open_router", failures=1)
    fill(path, ["other"], "openXrouter")
    week = 7 * 86400
    sql(path, "UPDATE responses SET created = ? WHERE key <> ?", time.time() - week, young.key)
    paid = find_paid(path, "open_", 6.9)
    assert (paid.keys, paid.usd) == ((old.key,), 0.25)
    assert find_paid(path, "open_", 7.1).keys == ()
    assert len(find_paid(path, "", 0).keys) == 3
    assert len(sql(path, "SELECT 1 FROM responses")) == 3, "finding removes nothing"
    assert gc(path, paid=paid).removed == 1
    with Store(path) as store:
        assert (store.get(old.key), store.attempts(old.key)) == (None, [])
        assert store.get(young.key) == answer("young")
    assert _faults(path) == []


def test_answers_are_not_removed_under_a_run(path):
    paid = find_paid(path, "here", 0)
    with leased(path, ask("a")):
        for removal in ({"paid": paid}, {"current": {"elsewhere"}}):
            with pytest.raises(StageError, match="1 leases are held by a run"):
                gc(path, **removal)
    assert len(sql(path, "SELECT 1 FROM responses")) == 3
