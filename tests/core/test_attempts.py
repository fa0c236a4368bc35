import pytest

from pipeline.core.attempts import LONGEST_BACKOFF_S, LONGEST_WAIT_S, MOST_UNCOUNTED, Course, Next
from pipeline.core.classify import Verdict
from pipeline.records import Action


def _course(max_attempts=3, jitter=lambda low, high: high):
    return Course(max_attempts, jitter)


def _verdict(action, **changes):
    return Verdict(action, "because", **changes)


_RETRY = _verdict(Action.RETRY)
_REROUTE = _verdict(Action.REROUTE, avoid_provider="Alpha")


@pytest.mark.parametrize("action", [Action.OK, Action.REPAIR, Action.AMBIGUOUS, Action.FATAL_ROW])
def test_final_states(action):
    decision = _course().decide(4, 200, _verdict(action))
    assert (decision.next, decision.attempt) == (Next.SETTLE, 4)


def test_waits_double_up_to_a_bound_with_full_jitter():
    waits = []

    def jitter(low, high):
        waits.append((low, high))
        return low

    course = _course(10, jitter)
    for n in range(9):
        assert course.decide(n, 500, _RETRY).next is Next.AGAIN
    assert (
        waits
        == [(0.0, bound) for bound in (1, 2, 4, 8, 16, 32, LONGEST_BACKOFF_S)]
        + [(0.0, LONGEST_BACKOFF_S)] * 2
    )


def test_attempts_end():
    course = _course(3)
    assert [course.decide(n, 500, _RETRY).next for n in (1, 2, 3)] == [Next.AGAIN, Next.AGAIN, Next.GIVE_UP]


def test_retry_after_is_waited_for_in_full_and_too_much_of_it_not_at_all():
    decision = _course(jitter=lambda low, high: 0.5).decide(1, 429, _verdict(Action.RETRY, retry_after_s=7.0))
    assert (decision.next, decision.wait_s) == (Next.AGAIN, 7.5)
    patience = _verdict(Action.RETRY, retry_after_s=LONGEST_WAIT_S + 1)
    assert _course().decide(1, 429, patience).next is Next.GIVE_UP


def test_attempts_that_do_not_count_leave_the_others_and_still_end():
    course, hold = _course(2), _verdict(Action.RETRY, counts_as_attempt=False, retry_after_s=1.0)
    nexts = [course.decide(n, 402, hold).next for n in range(MOST_UNCOUNTED - 1)]
    assert set(nexts) == {Next.AGAIN}
    assert course.decide(200, 500, _RETRY).next is Next.AGAIN
    assert course.decide(201, 402, hold).next is Next.GIVE_UP


def test_a_reroute_is_tried_once():
    course = _course(1)
    decision = course.decide(1, 200, _REROUTE)
    assert (decision.next, decision.wait_s, course.avoid) == (Next.AGAIN, 0.0, "Alpha")
    again = course.decide(2, 200, _verdict(Action.REROUTE, avoid_provider="Beta"))
    assert (again.next, again.attempt, course.avoid) == (Next.SETTLE, 2, "Alpha")


def test_a_reroute_without_a_name_to_avoid_is_final():
    assert _course().decide(1, 200, _verdict(Action.REROUTE)).next is Next.SETTLE


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(404, _verdict(Action.FATAL_RUN)), (400, _verdict(Action.FATAL_ROW)), (500, _RETRY)],
)
def test_what_came_first_stands_when_the_way_round_is_closed(status, verdict):
    course = _course(1)
    course.decide(1, 200, _REROUTE)
    decision = course.decide(2, status, verdict)
    assert (decision.next, decision.attempt) == (Next.SETTLE, 1)


def test_the_account_stops_the_run_also_after_a_reroute():
    for status in (401, 402, 403):
        course = _course()
        course.decide(1, 200, _REROUTE)
        assert course.decide(2, status, _verdict(Action.FATAL_RUN)).next is Next.STOP
    assert _course().decide(1, 404, _verdict(Action.FATAL_RUN)).next is Next.STOP


def test_what_the_account_can_not_afford_now_is_no_final_state():
    assert _course().decide(1, 402, _verdict(Action.FATAL_ROW)).next is Next.GIVE_UP


def test_recalled_answers_settle_and_recalled_failures_do_not_count():
    course = _course(2)
    assert course.recall(1, 500, _RETRY) is None
    assert course.recall(2, 401, _verdict(Action.FATAL_RUN)) is None
    assert course.recall(3, 500, _RETRY) is None
    assert course.decide(4, 500, _RETRY).next is Next.AGAIN
    assert course.recall(5, 200, _verdict(Action.OK)) == 5


def test_a_recalled_reroute_is_not_bought_a_second_time():
    course = _course()
    assert course.recall(1, 200, _REROUTE) is None
    assert course.avoid == "Alpha"
    assert course.decide(2, 200, _REROUTE).next is Next.SETTLE
