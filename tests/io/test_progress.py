import io

import pytest
from rich.console import Console

from pipeline.io import progress as module


@pytest.mark.parametrize("terminal", [True, False])
def test_a_step_shows_how_far_it_is_and_the_note(terminal, monkeypatch):
    monkeypatch.setattr(module, "LINE_EVERY_S", 0.0)
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=100)
    with module.progress("generate d", 2, lambda: "7 sent", console) as step:
        step(1)
        step(1)
    lines = shown.getvalue()
    assert "generate d" in lines
    assert "2/2" in lines
    assert "7 sent" in lines
    if not terminal:
        assert lines == "generate d: 1/2, 7 sent\ngenerate d: 2/2, 7 sent\n"


def test_short_stages_stay_silent_where_no_one_watches():
    shown = io.StringIO()
    with module.progress("d", 1, lambda: "", Console(file=shown, force_terminal=False)) as step:
        step(1)
    assert shown.getvalue() == ""
