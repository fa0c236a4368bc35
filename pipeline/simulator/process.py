"""Profile + seed -> a running simulator in a process of its own, for as long as a `with` block lasts.

The child is `python -m pipeline.simulator`. It says its port on stdout once it listens, and it ends when
its stdin does, so that it dies with a parent that was killed, too.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.request import ProxyHandler, Request, build_opener

from pipeline.errors import GenerationError
from pipeline.simulator.profile import load_profile

_ROOT = Path(__file__).parents[2]
_START_S = 60.0
_STOP_S = 5.0

_direct = build_opener(ProxyHandler({}))  # loopback never goes through a proxy


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers. `stop` may be called early, and more than once."""

    base_url: str
    port: int
    stop: Callable[[], None]


@contextmanager
def serve(profile: str, seed: int = 0, *, port: int = 0, corpus: Path | None = None) -> Iterator[Running]:
    """Port 0: a free one. Raises ConfigError for an unknown profile, GenerationError if it can't start."""
    load_profile(profile)
    command = [sys.executable, "-m", "pipeline.simulator", "--profile", profile, "--seed", str(seed)]
    command += ["--port", str(port), "--until-stdin-closes"]
    if corpus is not None:
        command += ["--corpus", str(corpus.resolve())]
    with tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(
            command,
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        try:
            given = _announced_port(child, complaints)
            base_url = f"http://127.0.0.1:{given}"
            _get(f"{base_url}/health")
            yield Running(base_url, given, lambda: _stop(child))
        finally:
            _stop(child)


def truth_for(base_url: str, ids: Sequence[str]) -> dict[str, dict[str, Any] | None]:
    """Truths by generation id from a running server; None for an answer that it did not give."""
    request = Request(
        f"{base_url}/truth", json.dumps({"ids": list(ids)}).encode(), {"Content-Type": "application/json"}
    )
    with _direct.open(request, timeout=_START_S) as response:
        truths: dict[str, dict[str, Any] | None] = json.load(response)
    return truths


def _announced_port(child: subprocess.Popen[bytes], complaints: IO[bytes]) -> int:
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        line = child.stdout.readline() if selector.select(_START_S) else b""
    if not line:
        _stop(child)
        complaints.seek(0)
        last = complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
        raise GenerationError(
            f"simulator: did not start within {_START_S:.0f} s: {last or 'it said nothing'}"
        )
    return int(json.loads(line)["port"])


def _get(url: str) -> None:
    with _direct.open(url, timeout=_START_S):
        pass


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
