"""A limit in dollars holds while many requests are in flight; the server's own bill decides."""

import json

import pytest

from tests.chaos.answers import good_answer
from tests.chaos.serving import paid_again
from tests.chaos.trials import build_within


@pytest.fixture
def bill(undisturbed):
    """What the whole dataset costs."""
    return sum(good_answer(json.loads(row["request"]))["usage"]["cost"] for row in undisturbed.rows())


def test_a_run_never_spends_more_than_its_limit_and_a_higher_one_goes_on(project, server, undisturbed, bill):
    limit = 0.3 * bill
    spent = build_within(project, server, limit)
    assert spent.done.code == 1
    assert "max_cost_usd" in spent.done.error
    assert spent.bill_usd <= limit + 1e-12
    assert spent.bill_usd >= 0.6 * limit, "a limit that is hardly used stops too early"
    assert not project.responses().exists()
    project.runtime(max_cost_usd=2 * bill)
    server.plan(keep_counts=True)
    assert project.verb("generate", "one").code == 0
    stats = server.stats()
    assert paid_again(stats) == 0
    assert stats.bill_usd == pytest.approx(bill)
    assert project.digest() == undisturbed.digest()


def test_a_limit_of_nothing_sends_nothing(project, server):
    spent = build_within(project, server, 0.0)
    assert spent.done.code == 1
    assert "max_cost_usd" in spent.done.error
    assert spent.requests == 0


def test_a_limit_without_a_price_is_refused(project, server):
    project.transport(price=None)
    spent = build_within(project, server, 1.0)
    assert spent.done.code == 1
    assert "price" in spent.done.error
    assert spent.requests == 0


def test_each_dataset_keeps_to_its_own_limit(project, server, undisturbed, bill):
    limit = 0.3 * bill
    project.runtime(max_cost_usd_by_dataset={"one": limit})
    server.plan()
    done = project.verb("fetch", "one", "two")
    stats = server.stats()
    of_one = sum(entry.cost_usd for entry in stats.asked if entry.dataset == "one")
    assert done.code == 1
    assert "max_cost_usd_by_dataset" in done.error
    assert 0.5 * limit <= of_one <= limit + 1e-12
    assert sum(entry.dataset == "two" for entry in stats.asked) == 60, "the other dataset is not held up"
    project.runtime(max_cost_usd_by_dataset={})
    server.plan(keep_counts=True)
    assert project.verb("fetch").code == 0
    assert paid_again(server.stats()) == 0
    server.plan()
    for dataset in ("one", "two"):
        assert project.verb("generate", dataset).code == 0
    assert server.stats().asked == []
    assert project.digest() == undisturbed.digest()
