"""Counts of a long run -> a live line on a terminal, else a plain one now and then (both on stderr)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from pipeline.core.tally import Tally

LINE_EVERY_S = 15.0
_REDRAW_S = 0.5


@contextmanager
def display(label: str, tally: Tally, console: Console | None = None) -> Iterator[None]:
    """Show `tally` while the block runs.

    From a thread of its own: counting costs a request nothing, and a run that hangs still shows where.
    """
    console = console or Console(stderr=True)
    over = threading.Event()
    show = _on_a_terminal if console.is_terminal else _in_lines
    thread = threading.Thread(target=show, args=(label, tally, console, over), name="display", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _on_a_terminal(label: str, tally: Tally, console: Console, over: threading.Event) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn())
    note = TextColumn("{task.fields[note]}")
    with Progress(*columns, note, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(label, total=None, note="")
        while not over.wait(_REDRAW_S):
            now = time.monotonic()
            bar.update(task, total=tally.total, completed=tally.done, note=tally.line(now), refresh=True)


def _in_lines(label: str, tally: Tally, console: Console, over: threading.Event) -> None:
    tally.line(time.monotonic())  # rates count from here
    while not over.wait(LINE_EVERY_S):
        line = f"{label}: {tally.done}/{tally.total}, {tally.line(time.monotonic())}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
