from pipeline.core.tally import Tally


def test_a_line_says_all_that_a_person_wants_to_know():
    tally = Tally(total=1000, window=64)
    tally.line(0.0)
    tally.done, tally.cached, tally.failed, tally.answers = 300, 100, 2, 200
    tally.completion_tokens, tally.spent_usd, tally.in_flight = 400_000, 1.0, 60
    assert tally.line(10.0) == (
        "100 cached, 2 failed, 60/64 in flight, 20.0 answers/s, 40.0k tokens/s, $1.00 of ~$4.50, 23 s left"
    )


def test_unknown_cost_is_said_and_the_end_has_no_time_left():
    tally = Tally(total=2, done=2, spent_usd=0.5, unknown_usd=0.25)
    assert "$0.50 (of it up to $0.25 unknown) of ~$0.50" in tally.line(1.0)
    assert "left" not in tally.line(2.0)


def test_rates_are_of_the_last_half_minute():
    tally = Tally(total=100_000)
    for second in range(101):
        tally.answers = tally.done = 10 * second if second <= 50 else 500 + 2 * (second - 50)
        line = tally.line(float(second))
    assert "2.0 answers/s" in line
    assert "13 h 48 min left" in line


def test_what_was_cached_costs_nothing_in_the_projection():
    tally = Tally(total=100, done=90, cached=90)
    assert tally.projected_usd() == 0.0
    tally.done, tally.spent_usd = 95, 1.0
    assert tally.projected_usd() == 2.0
