import pytest

from pipeline.core.prompt_check import check_prompt
from pipeline.core.render import RenderedPrompt
from pipeline.records import Action, Answer, Usage

_OURS, _PLAIN = (1, 2, 3), (1, 7, 7, 7, 7, 3)


def _check(counted, plain=None):
    return check_prompt(Answer(usage=Usage(prompt_tokens=counted)), RenderedPrompt(_OURS, plain))


@pytest.mark.parametrize(
    ("counted", "plain", "ids", "delta", "action"),
    [
        (3, None, _OURS, 0, None),
        (6, None, _OURS, 3, None),
        (7, None, _OURS, 4, Action.AMBIGUOUS),
        (2, None, _OURS, -1, Action.REROUTE),
        (6, _PLAIN, _PLAIN, 0, None),
        (3, _PLAIN, _OURS, 0, None),
        (5, _PLAIN, _OURS, 2, None),
        (8, _PLAIN, _PLAIN, 2, None),
        (None, None, _OURS, None, None),
    ],
)
def test_the_count_tells_which_prompt_was_served(counted, plain, ids, delta, action):
    verdict = _check(counted, plain)
    assert (verdict.ids, verdict.delta, verdict.action) == (ids, delta, action)


def test_the_engines_own_prompt_ids_win_and_a_difference_is_said():
    answer = Answer(usage=Usage(prompt_tokens=4), native_prompt_ids=(1, 2, 9, 3))
    verdict = check_prompt(answer, RenderedPrompt(_OURS, None))
    assert (verdict.ids, verdict.flags, verdict.action) == ((1, 2, 9, 3), ("prompt_ids_differ",), None)
