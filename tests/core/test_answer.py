import pytest

from pipeline.core.answer import UnreadableAnswer, read_answer
from pipeline.records import Usage


def _body(message, usage=None, **choice):
    return {"choices": [{"message": message, "finish_reason": "stop", **choice}], "usage": usage}


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_is_read_under_each_of_its_names(field):
    assert read_answer(_body({field: " a\n", "content": "b"})).reasoning == " a\n"


def test_equal_copies_count_once_and_different_ones_are_kept_apart():
    details = [{"type": "reasoning.text", "text": "a"}, {"type": "reasoning.encrypted", "data": "x"}]
    same = read_answer(_body({"reasoning": "a", "reasoning_content": "a", "reasoning_details": details}))
    assert (same.reasoning, same.reasoning_variants, same.encrypted) == ("a", (), True)
    other = read_answer(_body({"reasoning": "a", "reasoning_content": "b"}))
    assert other.reasoning_variants == ("a", "b")


@pytest.mark.parametrize("empty", [None, "", []])
def test_null_empty_and_missing_are_the_same(empty):
    assert read_answer(_body({"content": empty, "reasoning": None, "tool_calls": None})) == read_answer(
        _body({})
    )


def test_content_parts_join_in_order():
    parts = [
        {"type": "thinking", "thinking": "t"},
        {"type": "text", "text": "a "},
        {"type": "text", "text": "b"},
    ]
    answer = read_answer(_body({"content": parts}))
    assert (answer.content, answer.reasoning) == ("a b", "t")


@pytest.mark.parametrize("content", [[{"type": "image_url"}], 5, [{"type": "text"}]])
def test_content_that_is_no_text_is_refused(content):
    with pytest.raises(UnreadableAnswer):
        read_answer(_body({"content": content}))


def test_arguments_stay_verbatim_and_objects_are_marked():
    calls = [
        {"id": "a", "function": {"name": "f", "arguments": '{ "x":1 }'}},
        {"id": "", "function": {"name": "g", "arguments": {"x": 1}}},
        {"function": {"name": "h", "arguments": None}},
    ]
    read = read_answer(_body({"tool_calls": calls})).tool_calls
    assert [(call.id, call.arguments, call.arguments_rewritten) for call in read] == [
        ("a", '{ "x":1 }', False),
        (None, '{"x": 1}', True),
        (None, "", False),
    ]


@pytest.mark.parametrize(
    ("usage", "expected", "flags"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 5}, Usage(3, 5), ()),
        (
            {"completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 4}},
            Usage(None, 5, 4),
            (),
        ),
        ({"completion_tokens": 5, "completion_tokens_details": None}, Usage(None, 5), ()),
        ({"prompt_tokens": 3, "total_tokens": 8}, Usage(3, 5), ("count_elsewhere",)),
        ({"input_tokens": 3, "output_tokens": 5}, Usage(3, 5), ("count_elsewhere",)),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, Usage(), ()),
        ({"completion_tokens": True}, Usage(), ()),
        ({"completion_tokens": 5.5}, Usage(), ()),
        (None, Usage(), ()),
    ],
)
def test_counts_are_read_where_they_stand(usage, expected, flags):
    answer = read_answer(_body({"content": "x"}, usage))
    assert (answer.usage, answer.flags) == (expected, flags)


def test_native_ids_of_each_dialect():
    vllm = {**_body({}, token_ids=[1, 2]), "prompt_token_ids": [3]}
    sglang = _body({}, response_token_ids=[1, 2], prompt_token_ids=[3])
    ext = {**_body({}), "sglext": {"output_ids": [[1, 2]], "input_ids": [3]}}
    for body in (vllm, sglang, ext):
        answer = read_answer(body)
        assert (answer.native_ids, answer.native_prompt_ids) == ((1, 2), (3,))
    assert read_answer(_body({}, token_ids=["1"])).native_ids is None
