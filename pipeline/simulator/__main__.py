"""Command line -> a simulator that serves until it is stopped.

python -m pipeline.simulator --profile default --port 8080
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
from pathlib import Path

from aiohttp import web

from pipeline.errors import ExactokError
from pipeline.simulator.server import make_app
from pipeline.simulator.texts import DEFAULT_FOLDER

_BACKLOG = 4096


def main(arguments: list[str] | None = None) -> int:
    """Writes `{"port": N}` to stdout when it listens."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.simulator", description="An OpenRouter-like server on loopback."
    )
    parser.add_argument("--profile", default="default", help="a file of pipeline/simulator/profiles/")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--corpus", type=Path, default=DEFAULT_FOLDER, help="a folder of <kind>.jsonl files")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end together with the parent")
    given = parser.parse_args(arguments)
    try:
        app = make_app(given.profile, given.seed, given.corpus)
    except ExactokError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if given.until_stdin_closes:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    with socket.create_server(("127.0.0.1", given.port), backlog=_BACKLOG) as listening:
        sys.stdout.write(json.dumps({"port": listening.getsockname()[1]}) + "\n")
        sys.stdout.flush()
        web.run_app(app, sock=listening, print=None, access_log=None, shutdown_timeout=0.2, backlog=_BACKLOG)
    return 0


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
