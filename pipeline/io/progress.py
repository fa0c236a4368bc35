"""Steps done of a long stage -> a bar on a terminal, else a plain line now and then (both on stderr)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY_S = 15.0


@contextmanager
def progress(
    label: str, total: int, note: Callable[[], str], console: Console | None = None
) -> Iterator[Callable[[int], None]]:
    """A function to call with the steps that were done; `note` says what else is worth seeing."""
    console = console or Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[note]}"), console=console, transient=True) as bar:
            task = bar.add_task(label, total=total, note="")
            yield lambda steps: bar.update(task, advance=steps, note=note())
        return
    done, next_line = 0, time.monotonic() + LINE_EVERY_S

    def step(steps: int) -> None:
        nonlocal done, next_line
        done += steps
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + LINE_EVERY_S
            said = f"{label}: {done}/{total}"
            console.print(
                ", ".join(filter(None, (said, note()))), markup=False, highlight=False, soft_wrap=True
            )

    yield step
