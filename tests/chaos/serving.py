"""A server process -> its address, plans and counts, for tests and benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.chaos.server import Asked, Plan, Stats

ROOT = Path(__file__).resolve().parent.parent.parent


class Server:
    """A running provider; `plan` starts counting anew unless `keep_counts`."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"
        self.base_url = f"{self._address}/v1"

    def plan(self, *, keep_counts: bool = False, **changes: Any) -> None:
        self._call(f"/plan?keep={int(keep_counts)}", json.dumps(asdict(Plan(**changes))).encode())

    def stats(self) -> Stats:
        told = self._call("/stats")
        told["asked"] = [Asked(**entry) for entry in told["asked"]]
        return Stats(**told)

    def _call(self, path: str, body: bytes | None = None) -> Any:
        request = Request(self._address + path, body, {"content-type": "application/json"})
        with urlopen(request, timeout=30) as answer:
            return json.load(answer)


def times_asked(stats: Stats) -> Counter[str]:
    """How often each request was asked."""
    return Counter(entry.key for entry in stats.asked)


def paid_again(stats: Stats) -> int:
    """Requests beyond the first of each key."""
    return sum(times - 1 for times in times_asked(stats).values())


@contextmanager
def running_server() -> Iterator[Server]:
    """One process, ended with the block."""
    command = [sys.executable, "-m", "tests.chaos.server"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield Server(int(line))
        finally:
            process.kill()
