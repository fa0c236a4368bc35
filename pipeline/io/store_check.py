"""A stored answer, as its row holds it -> what is wrong with it, or nothing.

Verifying a store and importing answers hold every row to the same checks, so nothing gets in that
`store verify` would complain about.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from pipeline.core.classify import Verdict, classify
from pipeline.core.requests import request_key
from pipeline.errors import StageError
from pipeline.io.store_file import connect, prepare
from pipeline.records import Action

MOST_BYTES = 1 << 30
"""No body is this large (transport.max_response_bytes); a damaged frame can claim any size."""
IMPORTED = 0
"""`responses.attempt` of an answer that was bought elsewhere. Attempts begin at 1: none is of this one."""
_OUT_OF_MONEY = 402


class Damaged(Exception):
    """A row is not what was stored; the argument says which part, in a few words."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One final answer, unpacked: the columns of `responses` that its checks need."""

    key: str
    identity: str
    path: str
    request: str
    sample: int
    status: int | None
    headers: str
    body: bytes


CHECKED = "key, identity, path, request, sample, status, headers, body"
"""The columns that `unpack` takes, in order."""


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """An existing store, its schema brought up to date. Raises StageError in one line."""
    if not path.is_file():
        raise StageError(
            f"{path}: no store file; nothing has been asked yet, or it is elsewhere ($EXACTOK_STORE, "
            "runtime.store)"
        )
    try:
        db = connect(path)
        try:
            prepare(db, path)
            yield db
        finally:
            db.close()
    except sqlite3.Error as error:
        raise StageError(f"{path}: can't be used as a store ({error})") from None


def is_simulated(identity: str) -> bool:
    """Whether the simulator answered (pipeline.core.requests.endpoint_identity)."""
    return "#simulator:" in identity


def decompressed(blob: Any, what: str) -> bytes:
    """The bytes of a zstd frame. Raises Damaged."""
    try:
        if zstandard.frame_content_size(blob) > MOST_BYTES:
            raise Damaged(f"the {what} claims an impossible size")
        return zstandard.ZstdDecompressor().decompress(blob, allow_extra_data=False)
    except (zstandard.ZstdError, TypeError) as broken:
        raise Damaged(f"the {what} does not decompress ({broken})") from None


def unpack(row: tuple[Any, ...]) -> Answer:
    """A row of the columns `CHECKED`. Raises Damaged."""
    key, identity, path, request, sample, status, headers, body = row
    try:
        text = decompressed(request, "request").decode()
    except UnicodeDecodeError:
        raise Damaged("the request is not UTF-8") from None
    return Answer(key, identity, path, text, sample, status, headers, decompressed(body, "body"))


def check(answer: Answer) -> Verdict:
    """Key, status and headers hold, and the answer is final; what it is classed. Raises Damaged."""
    request = _object(answer.request, "request")
    if request_key(answer.identity, answer.path, request, answer.sample) != answer.key:
        raise Damaged("the key is not that of its identity, path and request")
    headers = check_headers(answer.status, answer.headers)
    verdict = classify(answer.status, headers, answer.body, request)
    unpaid = verdict.action is Action.FATAL_ROW and answer.status == _OUT_OF_MONEY
    if verdict.action in (Action.RETRY, Action.FATAL_RUN) or unpaid:
        raise Damaged(f"not final: now classed {verdict.action} ({verdict.reason})")
    return verdict


def check_headers(status: Any, headers: Any) -> dict[str, str]:
    """The headers. Raises Damaged for those that don't parse, and for a status that HTTP doesn't have."""
    if status is not None and not (isinstance(status, int) and 100 <= status <= 599):
        raise Damaged(f"the status is {status!r}")
    found = _object(headers, "headers")
    if not all(isinstance(value, str) for value in found.values()):
        raise Damaged("the headers hold a value that is no text")
    return found


def _object(text: Any, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise Damaged(f"the {what} is no JSON" if what == "request" else f"the {what} are no JSON") from None
    if not isinstance(value, dict):
        raise Damaged(f"the {what} {'is' if what == 'request' else 'are'} no JSON object")
    return value
