import random

import pytest
from native_writer import Structured, body, fields, native_ids

from pipeline.config import Profile
from pipeline.core.answer import read_answer
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.learning import MIN_ROWS, learn
from pipeline.core.reconstruct import Case

_WORDS = [
    "The",
    "user",
    "asks",
    "for",
    "a",
    "list",
    "不要",
    "don't",
    "(x)",
    "42",
    "naïve",
    "`code`",
    "\n\n",
    "1.",
    "Yes",
]
_REQUEST = {"messages": [], "tools": [{"function": {"name": "f"}}]}


@pytest.fixture(scope="module")
def grammar(kimi, kimi_target):
    return CompiledGrammar(kimi_target.grammar, kimi.special)


def _answers(count, *, edges):
    """Answers as a model gives them; with `edges` one in five has whitespace at the ends of its fields."""
    draw = random.Random(7)
    for number in range(count):
        reasoning, content = (
            f"So {' '.join(draw.choices(_WORDS, k=draw.randint(4, 30)))}." for _ in range(2)
        )
        if edges and number % 5 == 0:
            reasoning, content = f"{reasoning}\n", f"\n\n{content} \n"
        calls = [("functions.f:0", "f", '{"q": 1}')] if number % 4 == 0 else []
        yield Structured(reasoning, "" if calls else content, calls)


def _verbatim(answer, ids):
    return fields(answer), len(ids)


def _joined(answer, ids):
    message = fields(answer)
    message["reasoning"] = f" {answer.reasoning} "
    message["content"] = f" {answer.content}" if answer.content else ""
    return message, len(ids)


def _joined_and_cut(answer, ids):
    message, count = _joined(answer, ids)
    return {**message, "reasoning": message["reasoning"].rstrip()}, count


def _stripped(answer, ids):
    message = fields(answer)
    return {**message, "reasoning": answer.reasoning.strip(), "content": answer.content.strip()}, len(ids)


def _tail_stripped(answer, ids):
    return {**fields(answer), "reasoning": answer.reasoning.rstrip()}, len(ids)


def _end_uncounted(answer, ids):
    return fields(answer), len(ids) - 1


def _renamed(answer, ids):
    message = fields(answer)
    for call in message["tool_calls"]:
        call["id"] = "call_0123456789abcdef"
    return message, len(ids)


def _cases(reference, habit, count, *, edges=True):
    cases = []
    for answer in _answers(count, edges=edges):
        ids = native_ids(answer, reference)
        message, counted = habit(answer, ids)
        whole = body(message, ids, "tool_calls" if answer.calls else "stop", completion_tokens=counted)
        cases.append(Case(read_answer(whole), _REQUEST))
    return cases


@pytest.mark.parametrize(
    ("habit", "expected"),
    [
        (_verbatim, Profile()),
        (_joined, Profile(space_join=True)),
        (_joined_and_cut, Profile(space_join=True, strips="reasoning_tail")),
        (_stripped, Profile(strips="both")),
        (_tail_stripped, Profile(strips="reasoning_tail")),
        (_end_uncounted, Profile(counts_end=False)),
        (_renamed, Profile(rewrites_ids=True)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_habit_is_learned_from_its_rows(kimi, grammar, reference, habit, expected):
    learned = learn(_cases(reference, habit, 240), kimi, grammar)
    assert learned.profile == expected
    assert learned.matched > learned.runner_up


def test_too_few_rows_teach_nothing(kimi, grammar, reference):
    learned = learn(_cases(reference, _verbatim, MIN_ROWS - 1), kimi, grammar)
    assert learned.profile is None


def test_counts_of_another_tokenizer_teach_nothing(kimi, grammar, reference):
    def foreign(answer, ids):
        return fields(answer), len(ids) * 3 // 4

    assert learn(_cases(reference, foreign, 240), kimi, grammar).profile is None


def test_what_no_row_can_tell_is_said(kimi, grammar, reference):
    # No field has whitespace at an edge: a stripping provider would look the same.
    learned = learn(_cases(reference, _verbatim, 240, edges=False), kimi, grammar)
    assert learned.undecided == ("strips",)
    assert learn(_cases(reference, _verbatim, 240), kimi, grammar).undecided == ()
