"""Every known fault, mixed into three of ten first attempts: each row ends once, and good rows stay good."""

import json

import pytest

from tests.chaos.answers import good_answer
from tests.chaos.faults import CASES, FATAL_FOR_THE_RUN, PASSING, REFUSED_SETTING, STREAM_FAULTS
from tests.chaos.project import compose, make_project
from tests.chaos.serving import paid_again
from tests.chaos.trials import build_with_faults, check_integrity, is_good

_DEADLINE_S = 2.0


def test_every_fault_leaves_each_row_in_one_final_state(project, server, undisturbed):
    project.transport(deadline_s=_DEADLINE_S)
    mixed = build_with_faults(project, server, undisturbed.rows(), faults=PASSING, longest_retry_after_s=1.0)
    assert {entry.served for entry in mixed.stats.asked} == {"good", *PASSING}
    assert mixed.wrong == []
    assert mixed.good >= 140
    assert mixed.runs <= 2
    check_integrity(project.store)
    server.plan()
    again = project.digest()
    project.responses().unlink()
    assert project.verb("generate", "one").code == 0
    assert (project.digest(), server.stats().asked) == (again, [])


def test_every_fault_of_a_stream_is_mended(new_project, server):
    reference, project = new_project(), new_project()
    for one in (reference, project):
        one.transport(stream=True, deadline_s=_DEADLINE_S)
    server.plan(delay_s=(0.0, 0.01))
    assert reference.verb("generate", "one").code == 0
    assert all(map(_same_answer, reference.rows()))
    faults = (*STREAM_FAULTS, *PASSING)
    mixed = build_with_faults(project, server, reference.rows(), faults=faults, longest_retry_after_s=1.0)
    assert {entry.served for entry in mixed.stats.asked} >= {"good", *STREAM_FAULTS}
    assert all(entry.stream for entry in mixed.stats.asked)
    assert mixed.wrong == []
    assert mixed.good >= 140


def _same_answer(row):
    """Fields that matter; how a stream is put together may leave its own marks around them."""
    body, good = json.loads(row["body"]), good_answer(json.loads(row["request"]))
    message, expected = body["choices"][0]["message"], good["choices"][0]["message"]
    return (
        (message["reasoning"], message["content"]) == (expected["reasoning"], expected["content"])
        and body["usage"] == good["usage"]
        and row["finish_reason"] == "stop"
        and row["generation_id"] == good["id"]
        and row["served_provider"] == "AlphaInfer"
    )


def test_how_an_answer_is_sent_is_no_other_request(project, server):
    server.plan(delay_s=(0.0, 0.01))
    assert project.verb("generate", "two").code == 0
    before = project.digest("two")
    project.transport(stream=True)
    project.responses("two").unlink()
    assert project.verb("generate", "two").code == 0
    assert len(server.stats().asked) == 60
    assert project.digest("two") == before


def test_what_is_fatal_stops_cleanly_and_the_next_run_goes_on(project, server, undisturbed):
    asked = 0
    project.runtime(concurrency=10)  # so that each fault's prompt is still to come when its run begins
    faults = [fault for fault in FATAL_FOR_THE_RUN if fault != REFUSED_SETTING]
    assert len(faults) >= 3
    for position, fault in enumerate(faults):
        number = 20 + 60 * position
        server.plan(always={str(number): fault}, delay_s=(0.02, 0.03))
        done = project.verb("generate", "one")
        assert done.code == 1, fault
        assert CASES[fault]["http"]["body"].split('"message":"')[1][:12] in done.error
        stats = server.stats()
        asked += sum(entry.served == "good" for entry in stats.asked)
        assert {entry.number for entry in stats.asked if entry.served != "good"} == {number}
        assert paid_again(stats) == 0
        assert not project.responses().exists()
    server.plan()
    assert project.verb("generate", "one").code == 0
    assert asked + len(server.stats().asked) == 200, "what was answered before is not asked again"
    assert project.digest() == undisturbed.digest()
    assert all(map(is_good, project.rows()))


def test_a_setting_that_falsifies_rows_is_refused_before_anything_is_sent(server, tmp_path):
    project = make_project(tmp_path, {"one": 3}, body={"stop": ["Option B"]}, git=False)
    server.plan()
    with pytest.raises(AssertionError, match="stop"):
        compose(project)
    assert "stop" in project.verb("compose").error
    assert server.stats().asked == []
