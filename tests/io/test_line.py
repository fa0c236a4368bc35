import asyncio

import pytest

from pipeline.config import Transport
from pipeline.core.pacing import Met
from pipeline.errors import GenerationError
from pipeline.io.line import Line
from pipeline.io.run import Run, Stopped


def _line(concurrency=2, **settings):
    now = [0.0]
    run = Run(clock=lambda: now[0])

    async def connect():
        raise AssertionError("nobody needs a client here")

    return run, Line(run, Transport(**settings), concurrency, connect), now


def test_slots_are_given_in_order_of_arrival():
    async def work():
        run, line, _ = _line(2)
        came = []

        async def one(name):
            ticket = await line.admit()
            came.append(name)
            return ticket

        tickets = [await one(n) for n in range(2)]
        waiting = [asyncio.create_task(one(n)) for n in range(2, 6)]
        await asyncio.sleep(0)
        assert came == [0, 1]
        line.done(tickets[0], Met.ANSWER)
        late = asyncio.create_task(one("late"))
        await asyncio.sleep(0.01)
        assert came == [0, 1, 2]
        for _ in range(4):
            line.done(0, Met.ANSWER)
        await asyncio.gather(*waiting, late)
        assert came == [0, 1, 2, 3, 4, 5, "late"]
        assert run.tally.in_flight == line.pacer.in_flight == 2

    asyncio.run(work())


def test_who_stops_waiting_takes_no_slot_along():
    async def work():
        _, line, _ = _line(1)
        ticket = await line.admit()
        one, two = asyncio.create_task(line.admit()), asyncio.create_task(line.admit())
        await asyncio.sleep(0)
        line.done(ticket, Met.ANSWER)  # `one` is let in, and is cancelled before it runs again
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        await asyncio.wait_for(two, 5)
        assert line.pacer.in_flight == 1

    asyncio.run(work())


def test_after_a_pause_those_who_wait_are_let_in_without_anyone_ending():
    async def work():
        _, line, now = _line(1)
        line.done(await line.admit(), Met.PUSHBACK, retry_after_s=0.05)
        waiting = asyncio.create_task(line.admit())
        await asyncio.sleep(0)
        assert not waiting.done()
        now[0] = 0.05
        await asyncio.wait_for(waiting, 5)

    asyncio.run(work())


def test_a_stop_dismisses_those_who_wait():
    async def work():
        run, line, _ = _line(1)
        await line.admit()
        waiting = [asyncio.create_task(line.admit()) for _ in range(3)]
        await asyncio.sleep(0)
        run.stop(GenerationError("enough"))
        for one in waiting:
            with pytest.raises(Stopped):
                await one
        with pytest.raises(Stopped):
            await line.admit()

    asyncio.run(work())


def test_an_endpoint_that_only_fails_stops_the_run_with_the_last_problem():
    async def work():
        run, line, now = _line(5, breaker_failures=3, breaker_s=10.0)
        for number in range(3):
            now[0] = 40.0 * number
            line.done(await line.admit(), Met.FAILURE, problem="status 502")
        assert "3 exchanges in a row failed" in str(run.stop_reason)
        assert "status 502" in str(run.stop_reason)

    asyncio.run(work())
