"""Signals at a run with real requests in flight: nothing is lost, and little is paid twice."""

import random
import signal

import pytest

from tests.chaos.trials import kill_and_finish, signal_and_finish

_IN_FLIGHT = 50
_SEEDED = random.Random(4)
# The last falls among the last answers, or where the rows are written.
_MOMENTS = [(_SEEDED.randint(20, 120), 0.03), (200, _SEEDED.uniform(0.0, 0.12))]


@pytest.mark.parametrize(("at", "after_s"), _MOMENTS)
def test_a_killed_build_is_finished_without_loss(project, server, undisturbed, at, after_s):
    killed = kill_and_finish(project, server, at=at, after_s=after_s)
    assert killed.first.code in (-signal.SIGKILL, 0)
    assert killed.kept_and_asked_again == 0
    assert killed.wrong_rows == 0
    assert killed.paid_again <= killed.out_of_store
    assert killed.paid_again <= _IN_FLIGHT
    assert killed.digest == undisturbed.digest()


def test_one_interrupt_waits_for_what_is_in_flight_and_nothing_is_paid_twice(project, server, undisturbed):
    stopped = signal_and_finish(project, server, at=80, signals=((0.0, signal.SIGINT),), delay_s=(0.1, 0.4))
    assert stopped.first.code in (1, 130)
    assert "interrupted" in stopped.first.error
    assert stopped.in_flight > 0
    assert stopped.out_of_store == 0
    assert stopped.kept == stopped.arrived < 200
    assert stopped.paid_again == 0
    assert stopped.wrong_rows == 0
    assert stopped.digest == undisturbed.digest()


def test_two_interrupts_stop_now_and_keep_what_has_come(project, server, undisturbed):
    # Answers take up to 6 s: who waits for them is seen.
    stopped = signal_and_finish(
        project,
        server,
        at=70,
        signals=((0.0, signal.SIGINT), (0.3, signal.SIGINT)),
        delay_s=(0.02, 6.0),
    )
    assert stopped.first.code == 130
    assert "Traceback" not in stopped.first.complaints
    assert stopped.stopped_after_s < 2.0
    assert stopped.kept >= 20
    assert stopped.kept_and_asked_again == 0
    assert stopped.paid_again <= stopped.out_of_store
    assert stopped.paid_again <= _IN_FLIGHT
    assert stopped.digest == undisturbed.digest()


def test_the_polite_kill_keeps_everything_too(project, server, undisturbed):
    stopped = signal_and_finish(project, server, at=80, signals=((0.0, signal.SIGTERM),))
    assert stopped.first.code != 0
    assert stopped.kept_and_asked_again == 0
    assert stopped.paid_again <= stopped.out_of_store
    assert stopped.paid_again <= _IN_FLIGHT
    assert stopped.digest == undisturbed.digest()
