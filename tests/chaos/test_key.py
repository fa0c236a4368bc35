"""A canary for an API key, a server that repeats it, builds that end in every way: it is nowhere."""

import hashlib
import resource
import signal
import sqlite3
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tests.chaos.leaks import find_in_bytes, find_in_file, find_in_folder, needles, watching

_KEY = "sk-or-v1-" + hashlib.sha256(b"canary").hexdigest()
_PIECES = needles(_KEY)
_NAME = "CHAOS_API_KEY"


@pytest.fixture
def keyed(project, server):
    """A project whose provider wants the key, as OpenRouter's file does."""
    project.transport(key_env=_NAME)
    project.extra_env |= {_NAME: _KEY, "OPENROUTER_API_KEY": _KEY}
    return project


def _run(project, *command, **options):
    """How it ended, and the arguments of all its processes."""
    with watching() as watcher:
        process = project.start(*command, start_new_session=True, **options)
        watcher.watch(process.pid)
        done = project.wait(process)
    assert watcher.arguments
    return done, watcher.arguments


def _assert_nowhere(project, done, arguments):
    places = find_in_folder(project.root.parent, _PIECES)
    said = [done.out.encode(), done.complaints.encode(), *arguments]
    assert places == []
    assert [text for text in said if find_in_bytes(text, _PIECES)] == []


def _generate(dataset="one"):
    return (sys.executable, "-m", "pipeline", "generate", dataset)


def test_a_build_by_dvc_that_succeeds_leaves_no_key(keyed, server):
    server.plan(echo=True)
    done, arguments = _run(keyed, sys.executable, "-m", "dvc", "repro", "generate@two")
    assert done.code == 0, done.complaints[-3000:]
    stats = server.stats()
    assert stats.authorizations == [f"Bearer {_KEY}"]
    assert {entry.served for entry in stats.asked} == {"good", "500", "broken header", "reason"}
    assert (keyed.root / "dvc.lock").exists()
    assert any(b"generate" in argument for argument in arguments)
    # What was repeated is there, without the key: the search looked at the right things.
    assert find_in_folder(keyed.store.parent, [b"x-request-authorization"])
    assert find_in_folder(keyed.store.parent, [b"no: Bearer [key removed]"])
    _assert_nowhere(keyed, done, arguments)


def test_a_refused_key_is_not_shown(keyed, server):
    server.plan(echo=True, unauthorized_from=60)
    done, arguments = _run(keyed, *_generate())
    assert done.code == 1
    assert "no: Bearer" in done.error
    _assert_nowhere(keyed, done, arguments)


def test_a_killed_build_leaves_no_key(keyed, server):
    with watching() as watcher:
        process = keyed.start(*_generate(), start_new_session=True)
        watcher.watch(process.pid)
        server.plan(echo=True, signal_at=120, signals=((0.02, signal.SIGKILL),), pid=process.pid)
        done = keyed.wait(process)
    assert done.code == -signal.SIGKILL
    _assert_nowhere(keyed, done, watcher.arguments)


def test_a_store_that_cannot_be_written_shows_no_key(keyed, server):
    server.plan(echo=True)

    def no_large_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    done, arguments = _run(keyed, *_generate(), preexec_fn=no_large_files)
    assert done.code == 1
    assert "the store can't be written" in done.error
    _assert_nowhere(keyed, done, arguments)


def test_a_traceback_shows_no_key(keyed, server):
    server.plan(echo=True)
    (keyed.responses("two") / "in the way").mkdir(parents=True)
    done, arguments = _run(keyed, *_generate("two"))
    assert done.code == 1
    assert "Traceback" in done.complaints
    _assert_nowhere(keyed, done, arguments)


def test_the_search_finds_a_key_wherever_it_is_planted(tmp_path, undisturbed):
    plain = tmp_path / "plain.txt"
    plain.write_text(f"a {_KEY[20:50]} b")
    assert find_in_file(plain, _PIECES)
    packed = tmp_path / "packed.bin"
    packed.write_bytes(b"before" + zstandard.compress(f"x {_KEY} y".encode()) + b"after")
    assert find_in_file(packed, _PIECES)
    table = tmp_path / "table.parquet"
    pq.write_table(pa.table({"a": ["x"], "b": [_KEY]}), table, compression="zstd")
    assert find_in_file(table, _PIECES)
    store = tmp_path / "store.sqlite"
    with sqlite3.connect(undisturbed.store) as source, sqlite3.connect(store) as copy:
        source.backup(copy)
        assert find_in_file(store, _PIECES) == []
        body = zstandard.compress(b"z" * 9000 + _KEY.encode() + bytes(range(256)) * 40)
        copy.execute("UPDATE responses SET body = ? WHERE rowid = 7", (body,))
    source.close()
    copy.close()
    assert f"{store}: responses" in find_in_file(store, _PIECES)
    (tmp_path / _KEY).touch()
    assert f"{tmp_path / _KEY}: its name" in find_in_folder(tmp_path, _PIECES)
    with watching() as watcher:
        command = [sys.executable, "-c", "import time; time.sleep(0.3)", _KEY]
        with subprocess.Popen(command, start_new_session=True) as process:
            watcher.watch(process.pid)
    assert any(find_in_bytes(argument, _PIECES) for argument in watcher.arguments)
