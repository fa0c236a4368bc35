import heapq
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.pacing import LONGEST_PAUSE_S, Met, Pacer


def _pacer(ceiling=100, failures=20, failing_s=120.0):
    return Pacer(ceiling, failures, failing_s)


def _fill(pacer, now=0.0):
    tickets = []
    while (ticket := pacer.admit(now)) is not None:
        tickets.append(ticket)
    return tickets


class _Endpoint:
    """Carries so many at once and pushes the others back at once; `latency_s` for those it carries."""

    def __init__(self, carries, latency_s=1.0):
        self.carries, self.latency_s, self.carried = carries, latency_s, 0

    def run(self, pacer, until, seed=0):
        """Keep the pacer full for so many seconds; most carried at once, answers and pushbacks by second."""
        chance, events, number = random.Random(seed), [], 0
        now, answers, pushbacks = 0.0, [], []
        while now < until:
            while (ticket := pacer.admit(now)) is not None:
                number += 1
                if self.carried < self.carries:
                    self.carried += 1
                    ends = now + self.latency_s * chance.uniform(0.5, 1.5)
                    heapq.heappush(events, (ends, number, ticket, Met.ANSWER))
                else:
                    heapq.heappush(events, (now + 0.01, number, ticket, Met.PUSHBACK))
            if not events:
                now += pacer.wait_s(now) or 0.01
                continue
            now, _, ticket, met = heapq.heappop(events)
            self.carried -= met is Met.ANSWER
            (answers if met is Met.ANSWER else pushbacks).append(now)
            pacer.done(ticket, met, now, None)
        return answers, pushbacks


def test_the_full_ceiling_while_all_is_well():
    pacer = _pacer(2000)
    assert len(_fill(pacer)) == 2000
    for _ in range(2000):
        pacer.done(0, Met.ANSWER, 1.0)
    assert (pacer.window, pacer.in_flight) == (2000, 0)


def test_a_burst_of_pushbacks_is_one_decrease_to_what_was_carried():
    pacer = _pacer(2000)
    tickets = _fill(pacer)
    for ticket in tickets[50:]:
        pacer.done(ticket, Met.PUSHBACK, 0.1)
    assert pacer.in_flight == 50
    assert 45 <= pacer.window <= 50


def test_one_pushback_among_many_takes_a_quarter_and_it_comes_back():
    pacer = _pacer(100)
    tickets = _fill(pacer)
    pacer.done(tickets[0], Met.PUSHBACK, 0.1)
    assert pacer.window == 75
    for _ in range(5000):
        for ticket in tickets[1:] if pacer.in_flight == 99 else _fill(pacer):
            pacer.done(ticket, Met.ANSWER, 1.0)
        if pacer.window == 100:
            break
    assert pacer.window == 100


@pytest.mark.parametrize("carries", [1, 7, 60, 400])
def test_it_settles_at_what_the_endpoint_carries(carries):
    endpoint, pacer = _Endpoint(carries), _pacer(2000)
    answers, pushbacks = endpoint.run(pacer, until=200.0)
    late = [at for at in answers if at > 20]
    assert len(late) >= 0.75 * carries * 180  # a request takes a second on average
    late_pushbacks = [at for at in pushbacks if at > 20]
    assert len(late_pushbacks) <= 0.15 * len(late) + 200
    assert len(pushbacks) <= 2000 + 0.2 * len(answers) + 300


def test_an_endpoint_that_recovers_gets_the_full_ceiling_again():
    pacer = _pacer(500)
    for ticket in _fill(pacer):
        pacer.done(ticket, Met.PUSHBACK, 0.0)
    assert pacer.window == 1
    answers, pushbacks = _Endpoint(10_000).run(pacer, until=60.0)
    assert pushbacks == []
    assert pacer.window == 500
    assert len(answers) > 500 * 30


def test_when_not_even_one_is_carried_nothing_is_sent_until_it_was_asked_to_wait():
    pacer = _pacer(10)
    for ticket in _fill(pacer):
        pacer.done(ticket, Met.PUSHBACK, 5.0, retry_after_s=7.0)
    assert pacer.admit(11.9) is None
    assert pacer.wait_s(5.0) == pytest.approx(7.0)
    assert pacer.admit(12.0) is not None
    assert pacer.admit(12.0) is None


def test_pauses_of_its_own_double_up_to_a_bound():
    pacer, now, pauses = _pacer(1), 0.0, []
    for _ in range(8):
        ticket = pacer.admit(now)
        pacer.done(ticket, Met.PUSHBACK, now)
        pauses.append(pacer.wait_s(now))
        now += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_failures_in_a_row_open_the_breaker_and_one_answer_closes_it():
    pacer = _pacer(50, failures=5, failing_s=60.0)
    tickets = _fill(pacer)
    for ticket in tickets[:5]:
        pacer.done(ticket, Met.FAILURE, 1.0)
    assert pacer.open
    assert pacer.window == 1
    assert not pacer.given_up(1.0)
    for ticket in tickets[5:]:
        pacer.done(ticket, Met.FAILURE, 2.0)
    now = 2.0 + pacer.wait_s(2.0)
    assert now > 2.0
    ticket = pacer.admit(now)
    assert pacer.admit(now) is None
    pacer.done(ticket, Met.ANSWER, now)
    assert not pacer.open
    assert pacer.window == 50


def test_it_is_given_up_only_after_enough_failures_for_long_enough():
    pacer = _pacer(10, failures=3, failing_s=60.0)
    now = 0.0
    for number in range(40):
        ticket = pacer.admit(now)
        pacer.done(ticket, Met.FAILURE, now)
        assert pacer.given_up(now) == (number >= 2 and now >= 60.0)
        if pacer.given_up(now):
            break
        now += max(0.1, pacer.wait_s(now))
    assert number < 12


def test_a_server_that_asks_for_patience_is_not_given_up():
    pacer = _pacer(10, failures=3, failing_s=1.0)
    now = 0.0
    for _ in range(50):
        ticket = pacer.admit(now)
        pacer.done(ticket, Met.PUSHBACK, now, 5.0)
        now += pacer.wait_s(now)
    assert not pacer.given_up(now)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.sampled_from([*Met, "admit"]), st.floats(0, 5), st.none() | st.floats(0, 9))),
)
def test_whatever_happens_the_window_stays_within_its_bounds_and_can_be_entered(ceiling, events):
    pacer, tickets, now = _pacer(ceiling, failures=3), [], 0.0
    for event, passed, retry_after in events:
        now += passed
        if event == "admit":
            ticket = pacer.admit(now)
            if ticket is not None:
                tickets.append(ticket)
        elif tickets:
            pacer.done(tickets.pop(0), event, now, retry_after)
        assert 1 <= pacer.window <= ceiling
        assert pacer.in_flight == len(tickets)
    for ticket in tickets:
        pacer.done(ticket, Met.NOTHING, now)
    assert pacer.admit(now + pacer.wait_s(now)) is not None
