import json

import pytest
from native_writer import MARKS

from pipeline.config import Grammar
from pipeline.core.grammar import Call, CompiledGrammar, Fields, Form, Piece, ids_of, text_of, text_piece
from pipeline.errors import ConfigError
from pipeline.records import Ending, Span

_SPECIAL = {text: token_id for token_id, text in MARKS.items()} | {"<|im_end|>": 163586, "<think>": 163606}
_RAW = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
    "<|tool_call_end|><|tool_calls_section_end|>"
)


@pytest.fixture
def grammar(kimi_target):
    return CompiledGrammar(kimi_target.grammar, _SPECIAL)


def test_a_token_that_is_not_special_stops_the_build(kimi_target):
    with pytest.raises(ConfigError, match="no special token"):
        CompiledGrammar(
            kimi_target.grammar, {key: value for key, value in _SPECIAL.items() if key != "</think>"}
        )


def test_pieces_stand_in_the_order_of_the_segments(grammar):
    fields = Fields(
        text_piece("reasoning", "r"), text_piece("content", "c"), (Call("functions.f:0", "f", "{}"),)
    )
    assert text_of(grammar.write(fields, Form(Ending.TOOL_CALLS))) == f"r</think>c{_RAW}<|im_end|>"


@pytest.mark.parametrize(
    ("reasoning", "content", "expected"),
    [("r", "", "r"), ("r", "c", "r</think>c"), ("", "c", "</think>c"), ("", "", "")],
)
def test_a_cut_completion_stops_at_the_last_text(grammar, reasoning, content, expected):
    fields = Fields(text_piece("reasoning", reasoning), text_piece("content", content))
    assert text_of(grammar.write(fields, Form(Ending.LENGTH))) == expected


def test_thinking_off_has_no_think_end(kimi_target):
    grammar = CompiledGrammar(kimi_target.grammar, _SPECIAL, thinking=False)
    assert (
        text_of(grammar.write(Fields(content=text_piece("content", "c")), Form(Ending.STOP))) == "c<|im_end|>"
    )


@pytest.mark.parametrize("text", [f"a{_RAW}", f"{_RAW} after", f"{_RAW}{_RAW}", _RAW.replace("><", "> \n<")])
def test_whole_raw_sections_are_found_and_lose_no_letter(grammar, text):
    pieces = grammar.split_raw_sections("content", text)
    assert text_of(pieces) == text
    assert sum(piece.token is not None for piece in pieces) % 5 == 0
    assert {piece.kind for piece in pieces if piece.text == "functions.f:0"} == {"call_id"}


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "<|tool_call_begin|>",
        _RAW.replace("<|tool_call_end|>", ""),
        _RAW[: -len("<|tool_calls_section_end|>")],
    ],
)
def test_broken_raw_sections_are_text(grammar, text):
    assert grammar.split_raw_sections("content", text) is None


@pytest.mark.parametrize(
    "end", ["section_begin|>", "call_begin|>", "functi", "f:0", "argument_begin|>", "{", "call_end|>"]
)
def test_a_cut_raw_section_counts_only_when_the_answer_was_cut(grammar, end):
    text = "x" + _RAW[: _RAW.index(end) + len(end)]
    assert grammar.split_raw_sections("content", text) is None
    assert text_of(grammar.split_raw_sections("content", text, cut=True)) == text


def test_native_ids_of_calls(grammar):
    assert grammar.native_id("get.x", 3) == "functions.get.x:3"
    assert grammar.is_native_id(Call("functions.f:12", "f", ""))
    for foreign in ("", "call_1", "functions.g:0", "functions.f:", "functions.f:x"):
        assert not grammar.is_native_id(Call(foreign, "f", ""))


def test_neighbouring_texts_are_encoded_together_and_marks_apart():
    pieces = [
        Piece("literal", "\n"),
        Piece("reasoning", "a"),
        Piece("marker", token="</think>"),
        Piece("content", "b"),
    ]
    asked = []

    def encode(text):
        asked.append(text)
        return [len(text)] * len(text)

    ids, spans = ids_of(pieces, encode, _SPECIAL)
    assert asked == ["\na", "b"]
    assert ids == (2, 2, 163607, 1)
    assert spans == (Span("reasoning", 0, 2), Span("marker", 2, 3), Span("content", 3, 4))


def test_a_grammar_is_data():
    other = {
        "prompt_opens_reasoning": False,
        "segments": [{"literal": "\n"}, {"text": "content"}],
        "end_tokens": {"stop": "<|im_end|>"},
    }
    grammar = CompiledGrammar(Grammar.model_validate_json(json.dumps(other)), _SPECIAL)
    assert (
        text_of(grammar.write(Fields(content=text_piece("content", "c")), Form(Ending.STOP)))
        == "\nc<|im_end|>"
    )
