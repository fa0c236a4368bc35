"""A build that has nothing to do against bare `dvc status`, in pairs: what our wiring costs.

Writes build/bench/build.json. Run it after `dvc repro`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from pipeline.io.files import write_json

ROOT = Path(__file__).resolve().parent.parent.parent
ROUNDS = 5


def _seconds(*command: str) -> float:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    if "Running stage" in done.stdout:
        raise SystemExit("error: the build is not up to date: run `make repro` first")
    return time.perf_counter() - start


def main() -> None:
    pairs = [(_seconds("repro"), _seconds("status")) for _ in range(ROUNDS)]
    result = {
        "repro_noop_s": round(statistics.median(repro for repro, _ in pairs), 2),
        "status_s": round(statistics.median(status for _, status in pairs), 2),
        "repro_vs_status": round(statistics.median(repro / status for repro, status in pairs), 2),
    }
    write_json(ROOT / "build/bench/build.json", result)
    Console().print_json(json.dumps(result))


if __name__ == "__main__":
    main()
