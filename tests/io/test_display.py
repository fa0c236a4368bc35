import io
import time

import pytest
from rich.console import Console

from pipeline.core.tally import Tally
from pipeline.io import display as module


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_run_shows_how_far_it_is(terminal, monkeypatch):
    monkeypatch.setattr(module, "LINE_EVERY_S", 0.01)
    monkeypatch.setattr(module, "_REDRAW_S", 0.01)
    shown, tally = io.StringIO(), Tally(total=9, done=4, spent_usd=1.25)
    with module.display("fetch", tally, Console(file=shown, force_terminal=terminal, width=200)):
        ends = time.monotonic() + 20
        while "$1.25" not in shown.getvalue() and time.monotonic() < ends:
            time.sleep(0.01)
    assert "4/9" in shown.getvalue()
    if not terminal:
        assert shown.getvalue().startswith("fetch: 4/9, 0 cached, 0 failed, 0/0 in flight, ")


def test_short_runs_stay_silent_where_no_one_watches():
    shown = io.StringIO()
    with module.display("d", Tally(total=1), Console(file=shown, force_terminal=False)):
        pass
    assert shown.getvalue() == ""
