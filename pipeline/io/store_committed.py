"""A git revision -> the answers that its build had, through DVC's cache and remote, into a store.

A colleague's clone, or a machine whose store is lost, so buys nothing that a commit already holds.
DVC is imported only when there is something to read: it takes half a second.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml
import zstandard
from pydantic import ValidationError
from rich.console import Console

from pipeline.config import Api, GenerateSettings
from pipeline.core.answer import model_and_counts
from pipeline.core.requests import endpoint_identity
from pipeline.errors import StageError
from pipeline.io.files import read_parquet_parts
from pipeline.io.store import Store
from pipeline.io.store_check import Answer, check
from pipeline.io.store_exchange import Adopted, Imported, Offer, adopt

PATIENCE_S = 10.0
"""So long a remote has to say whether it holds a file: a dead one must not hold up a build."""
_ROWS = 500
_NEEDED = ("request", "request_key", "status", "headers", "body", "generation_id", "cost_usd", "cost_source")


def import_revision(
    path: Path, root: Path, revision: str, *, simulator: bool
) -> Iterator[tuple[str, Imported | str]]:
    """Dataset by dataset of that revision's build/config.yaml: what was taken, or why nothing could be.

    With `simulator` those that the simulator answered, else all others. Raises StageError for a revision
    that can't be read at all, or has none of them.
    """
    with _opened(root, revision) as tree:
        apis = apis_of(_config(tree, revision), f"{revision}: build/config.yaml")
        ours = {name: api for name, api in apis.items() if (api.simulator is not None) is simulator}
        if not ours:
            who = "real endpoints: leave --simulator out" if simulator else "the simulator: add --simulator"
            raise StageError(f"{revision}: all its answers are of {who}")
        for dataset, api in ours.items():
            try:
                yield dataset, _take(path, tree, dataset, api, patience_s=None)
            except StageError as failed:
                yield dataset, str(failed)


def import_committed(
    store: Store,
    root: Path,
    dataset: str,
    settings: GenerateSettings,
    say: Callable[[str], None] | None = None,
) -> int:
    """Answers of the last commit that `store` lacks, for generate before it sends; how many were new.

    0, silently, where there is none to take: no commit, no DVC, never built, in no cache. `say` (default:
    a line on stderr) gets what a person should know, since now the answers are bought again.
    """
    # The simulator's cost nothing, and it is asked again sooner than DVC is imported.
    if settings.api.simulator is not None or not _locked_at_head(root, _file_of(dataset)):
        return 0
    try:
        with _opened(root, "HEAD") as tree:
            found = _take(store.path, tree, dataset, settings.api, patience_s=PATIENCE_S)
    except _Absent:
        return 0
    except StageError as failed:
        (say or _on_stderr)(f"{dataset}: answers of the last commit were not taken: {failed}")
        return 0
    return found.new


class _Absent(StageError):
    """Neither cache nor remote holds the file, or it was never built."""


def _file_of(dataset: str) -> str:
    return f"build/responses/{dataset}.parquet"


def _locked_at_head(root: Path, file: str) -> bool:
    """Whether the last commit's dvc.lock names the file at all: git tells sooner than DVC."""
    command = ["git", "-C", str(root), "show", "HEAD:./dvc.lock"]
    try:
        shown = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:  # no git
        return False
    return shown.returncode == 0 and file.encode() in shown.stdout


@contextmanager
def _opened(root: Path, revision: str) -> Iterator[Any]:
    """The files of a revision, those in git and those that DVC tracks (dvc.api.DVCFileSystem)."""
    from dvc.api import DVCFileSystem
    from dvc.exceptions import DvcException, NotDvcRepoError
    from dvc.repo import Repo
    from dvc.scm import RevError

    try:
        with Repo(str(root)) as now:
            remote = now.config["core"].get("remote")  # also for commits that are older than it
        tree = DVCFileSystem(repo=str(root), rev=revision, remote=remote)
        tree.repo.get_rev()
    except (RevError, NotDvcRepoError):
        raise StageError(f"{revision}: neither a file nor a git revision of a DVC repository") from None
    except DvcException as failed:
        raise StageError(f"{revision}: {_line(failed)}") from None
    try:
        yield tree
    finally:
        tree.close()


def _config(tree: Any, revision: str) -> Any:
    try:
        return yaml.safe_load(tree.read_text("build/config.yaml"))
    except FileNotFoundError:
        raise StageError(f"{revision}: has no build/config.yaml; nothing was built there") from None
    except yaml.YAMLError as broken:
        raise StageError(f"{revision}: build/config.yaml: no YAML ({_line(broken)})") from None


def apis_of(config: Any, where: str) -> dict[str, Api]:
    """build/config.yaml -> dataset -> what the keys of its requests depend on. Raises StageError."""
    found = {}
    for dataset, part in config.items() if isinstance(config, dict) else ():
        generate = part.get("generate") if isinstance(part, dict) else None
        if isinstance(generate, dict) and isinstance(generate.get("api"), dict):
            # Only these, so that settings which this program does not have don't matter.
            names = ("identity", "path", "simulator")
            kept = {name: generate["api"][name] for name in names if name in generate["api"]}
            try:
                found[str(dataset)] = Api.model_validate_json(json.dumps(kept))
            except ValidationError as broken:
                raise StageError(f"{where}: {dataset}.generate.api: {broken.errors()[0]['msg']}") from None
    return found


# --- the file ----------------------------------------------------------------------------------


def _take(path: Path, tree: Any, dataset: str, api: Api, *, patience_s: float | None) -> Imported:
    """Answers of one dataset into the store. Raises StageError when its file can't be had or read."""
    with tempfile.TemporaryDirectory() as folder:
        file = _fetched(tree, _file_of(dataset), Path(folder), patience_s)
        return adopt(path, _offers(file, api), simulator=api.simulator is not None)


def _fetched(tree: Any, file: str, folder: Path, patience_s: float | None) -> Path:
    """The file in DVC's cache, else a copy from its remote in `folder`."""
    from dvc.config import NoRemoteError
    from dvc.exceptions import DvcException

    try:
        digest = tree.info(file).get("md5")
        cache = tree.repo.cache.local
        if digest and cache.exists(digest):
            return Path(cache.oid_to_path(digest))
        remote = tree.repo.cloud.get_remote_odb()
    except FileNotFoundError:
        raise _Absent(f"{file}: was not built in that revision") from None
    except NoRemoteError:
        raise _Absent(f"{file}: is not in DVC's cache, and there is no remote") from None
    except DvcException as failed:
        raise StageError(f"{file}: {_line(failed)}") from None
    copy = folder / "responses.parquet"
    try:
        source = remote.oid_to_path(digest)
        _within(patience_s, partial(_find, remote.fs, source))
        remote.fs.get_file(source, str(copy))
    except FileNotFoundError:
        raise _Absent(f"{file}: neither DVC's cache nor its remote holds it") from None
    except Exception as failed:  # each kind of remote has errors of its own; all mean: not to be had now
        raise StageError(f"{file}: DVC's remote failed ({type(failed).__name__}: {_line(failed)})") from None
    return copy


def _find(remote: Any, source: str) -> None:
    """Raises FileNotFoundError if it is not there; fsspec says so of a web server that is not there, too."""
    try:
        remote.info(source)
    except FileNotFoundError as absent:
        cause = absent.__cause__
        if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
            raise cause from None
        raise


def _within(patience_s: float | None, question: Callable[[], object]) -> None:
    """Ask, and raise TimeoutError when there is no answer in time: some remotes retry for minutes."""
    answered: Future[object] = Future()

    def ask() -> None:
        try:
            answered.set_result(question())
        except Exception as failed:
            answered.set_exception(failed)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answered.result(patience_s)
    except TimeoutError:
        raise TimeoutError(f"no word within {patience_s:g} s; `store import HEAD` waits longer") from None


# --- its rows ----------------------------------------------------------------------------------


def _offers(file: Path, api: Api) -> Iterator[Offer]:
    """Every row that holds an answer, also one that refuses; what was never answered is none."""
    # With a checksum: else three of four flipped bits in a body decompress without a word.
    now, pack = time.time(), zstandard.ZstdCompressor(level=3, write_checksum=True).compress
    for part in read_parquet_parts(file, _ROWS):
        lacking = [name for name in _NEEDED if name not in part.schema.names]
        if lacking:
            raise StageError(f"{file}: has no column {lacking[0]!r}; an older program wrote it")
        for row in part.select(list(_NEEDED)).to_pylist():
            if row["request_key"] is not None and row["status"] is not None:
                yield row["request_key"], partial(_adopted, row, api, now, pack)


def _adopted(row: Mapping[str, Any], api: Api, now: float, pack: Callable[[bytes], bytes]) -> Adopted:
    """Raises Damaged for a row whose key is not that of its request at this endpoint."""
    body, request = row["body"].encode(), row["request"] or ""
    identity = endpoint_identity(api)
    answer = Answer(row["request_key"], identity, api.path, request, 0, row["status"], row["headers"], body)
    model, prompt_tokens, completion_tokens = model_and_counts(check(answer).body)
    return Adopted(
        key=answer.key,
        identity=identity,
        path=api.path,
        request=pack(request.encode()),
        sample=answer.sample,
        status=answer.status,
        headers=answer.headers,
        body=pack(body),
        model=model,
        generation_id=row["generation_id"],
        cost_usd=row["cost_usd"],
        cost_source=row["cost_source"] or "unknown",
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        created=now,
    )


def _on_stderr(line: str) -> None:
    Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


def _line(error: object) -> str:
    return " ".join(str(error).split())
