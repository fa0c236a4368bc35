"""Builds at once that share a store."""

from tests.chaos.project import compose
from tests.chaos.serving import times_asked
from tests.chaos.trials import is_good, requests_sent


def test_jobs_at_once_pay_each_request_once(new_project, server, undisturbed):
    one = new_project()
    other_grammar, backwards = new_project(store=one.store), new_project(store=one.store)
    other_grammar.params(overrides={"grammar": {"reasoning_open": None}})
    # The first two go through the same prompts in the same order; this one comes from the other end.
    prompts = backwards.root / "conf/prompts/one.jsonl"
    prompts.write_text("".join(reversed(prompts.read_text().splitlines(keepends=True))))
    compose(other_grammar)
    compose(backwards)
    jobs = [one, other_grammar, backwards]
    # Slow enough that all are at it, however unevenly they start.
    server.plan(delay_s=(0.2, 0.3))
    running = [job.begin("generate", "one") for job in jobs]
    sent = []
    for job, process in zip(jobs, running, strict=True):
        done = job.wait(process)
        assert done.code == 0, done.complaints
        sent.append(requests_sent(done.out))
    stats = server.stats()
    assert set(times_asked(stats).values()) == {1}
    assert len(stats.asked) == sum(sent) == 200
    assert sent[0] + sent[1] > 0
    assert sent[2] > 0
    assert one.digest() == other_grammar.digest() == undisturbed.digest()
    assert all(map(is_good, backwards.rows()))
