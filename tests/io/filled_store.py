"""A store with answers in it, for tests of what is done to stores: real requests, real keys, real bodies."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pipeline.core.turns import Asked, Response
from pipeline.io.store import Outcome, Store
from tests.io.loopback import completion

HEADERS = {"content-type": "application/json", "x-generation-id": "gen-1"}
FAILED = Response(502, {}, b'{"error": {"code": 502, "message": "bad gateway"}}' + b" " * 5000)


def ask(text: str, identity: str = "here") -> Asked:
    """The request with this one message."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 50}
    return Asked.of(identity, "/chat/completions", body)


def answer(text: str) -> Response:
    """A complete answer with this content; it costs 0.25."""
    return Response(200, HEADERS, json.dumps(completion(text)).encode())


def outcome(action: str = "ok", usd: float | None = 0.25, source: str = "usage", **changes: Any) -> Outcome:
    """What is recorded beside a response."""
    named = {"generation_id": "gen-1", "model": "m-served", "prompt_tokens": 5, "completion_tokens": 4}
    return Outcome(action=action, detail="x", cost_usd=usd, cost_source=source, **{**named, **changes})


def settle(store: Store, asked: Asked, response: Response, failures: int = 0) -> None:
    """Ask, fail so often, and be answered."""
    n = store.start(asked).result().n
    for _ in range(failures):
        store.finish(asked, n, FAILED, None, outcome("retry", 0.0, "none")).result()
        n = store.begin_attempt(asked).result()
    store.finish(asked, n, response, None, outcome(), response).result()


def fill(path: Path, texts: Iterable[str], identity: str = "here", failures: int = 0) -> list[Asked]:
    """Settle one request a text."""
    requests = [ask(text, identity) for text in texts]
    with Store(path) as store:
        for asked in requests:
            settle(store, asked, answer(asked.body["messages"][0]["content"]), failures)
    return requests


def sql(path: Path, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run one statement on the file and commit it."""
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(statement, values).fetchall()


@contextmanager
def leased(path: Path, *requests: Asked) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the leases of these requests; killed at the end without giving them back."""
    code = (
        "import sys; from pathlib import Path; from pipeline.io.store import Store\n"
        "from tests.io.filled_store import ask\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for text in sys.argv[2:]: assert store.start(ask(text)).result().claim == 'won'\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    texts = [asked.body["messages"][0]["content"] for asked in requests]
    command = [sys.executable, "-c", code, str(path), *texts]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        try:
            yield child
        finally:
            child.kill()
