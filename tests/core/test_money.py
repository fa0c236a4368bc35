import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import Price
from pipeline.core.money import TEMPLATE_TOKENS, Account, Fit, Ledger, most_usd
from pipeline.core.render import render_ids
from pipeline.core.requests import canonical_json

_PRICE = Price(prompt=2.0, completion=10.0)


def test_the_most_that_a_request_can_cost():
    body = {"messages": [{"role": "user", "content": "漢"}], "max_tokens": 1000}
    text = canonical_json(body)
    tokens = len(text.encode()) + TEMPLATE_TOKENS
    assert most_usd(body, text, _PRICE) == pytest.approx((tokens * 2 + 1000 * 10) / 1e6)
    other = {"max_completion_tokens": 7}
    assert most_usd(other, "", _PRICE) == pytest.approx((TEMPLATE_TOKENS * 2 + 7 * 10) / 1e6)


def test_no_real_request_is_longer_than_its_bound(kimi, kimi_target):
    """Rendered and encoded, in scripts that need many tokens a character."""
    for content in ("a", "漢字" * 200, "🜁🜂" * 100, "\u0301" * 300, "x " * 500, "<|im_end|>" * 50):
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": content}] * 20
        body = {"messages": [*messages, {"role": "user", "content": content}], "max_tokens": 1}
        ids = render_ids(body, kimi_target.render, kimi).ids
        assert len(ids) <= len(canonical_json(body).encode()) + TEMPLATE_TOKENS


def test_fits_now_later_or_never():
    account = Account(1.0)
    assert account.fit(1.0) is Fit.YES
    assert account.fit(1.1) is Fit.NEVER
    account.reserved = 0.5
    assert account.fit(0.6) is Fit.LATER
    account.spent = 0.5
    assert account.fit(0.6) is Fit.NEVER
    assert Account().fit(1e9) is Fit.YES


def test_both_limits_count_and_the_worse_one_decides():
    ledger = Ledger(Account(10.0), {"a": Account(1.0)})
    ledger.reserve("a", 0.8)
    assert ledger.fit("a", 0.5) is Fit.LATER
    assert ledger.fit("b", 0.5) is Fit.YES
    assert ledger.fit("b", 11.0) is Fit.NEVER
    ledger.settle("a", 0.8, 0.1)
    assert ledger.fit("a", 0.5) is Fit.YES
    assert ledger.run.spent == pytest.approx(0.1)


def test_unknown_costs_stay_booked_at_their_bound_until_they_are_known():
    ledger = Ledger()
    ledger.reserve("a", 0.5)
    ledger.settle("a", 0.5, None)
    assert (ledger.run.spent, ledger.unknown, ledger.run.reserved) == (0.5, 0.5, 0.0)
    ledger.reconcile("a", 0.5, 0.2)
    assert ledger.run.spent == pytest.approx(0.2)
    assert ledger.unknown == 0.0


def test_a_cost_above_its_bound_is_noticed():
    ledger = Ledger()
    ledger.reserve("a", 0.5)
    ledger.settle("a", 0.5, 0.75)
    assert ledger.above_bound == pytest.approx(0.25)


@given(
    st.floats(0.1, 20),
    st.lists(st.tuples(st.floats(0.001, 2), st.floats(0, 1), st.booleans(), st.integers(0, 5)), max_size=60),
)
def test_no_order_of_events_spends_more_than_the_limit(limit, requests):
    ledger, open_ = Ledger(Account(limit)), []
    for bound, share, unknown, ended in requests:
        while open_ and ended:
            reserved, cost = open_.pop(0)
            ledger.settle("d", reserved, cost)
            ended -= 1
        if ledger.fit("d", bound) is Fit.YES:
            ledger.reserve("d", bound)
            open_.append((bound, None if unknown else bound * share))
        assert ledger.run.spent + ledger.run.reserved <= limit + 1e-9
    for reserved, cost in open_:
        ledger.settle("d", reserved, cost)
    assert ledger.run.spent <= limit + 1e-9
    assert ledger.run.reserved == pytest.approx(0.0)
