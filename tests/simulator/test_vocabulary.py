import json
from pathlib import Path

import pytest

from pipeline.simulator import vocabulary

_CORPUS = Path("pipeline/simulator/corpus")


def _texts():
    for file in sorted(_CORPUS.glob("*.jsonl")):
        for line in file.read_text("utf-8").split("\n"):
            if line:
                record = json.loads(line)
                yield record.get("text", json.dumps(record.get("value"), ensure_ascii=False))


def test_every_text_of_the_corpus_gets_the_ids_of_another_tokenizer(reference):
    texts = list(_texts())
    assert len(texts) > 500
    differing = [text for text in texts if vocabulary.encode(text) != reference.encode_ordinary(text)]
    assert not differing


@pytest.mark.parametrize(
    "text",
    [
        "</think>",
        "<|im_end|>",
        "a<|tool_calls_section_begin|>b",
        "<|im_start|>",
        "<|user|>",
        "\n" * 64,
        "哈" * 65,
    ],
)
def test_a_special_string_in_text_is_spelled_out(text, reference):
    ids = vocabulary.encode(text)
    assert ids == reference.encode_ordinary(text)
    assert max(ids) < 163584


def test_the_special_table_is_the_vendors(reference):
    for token_id in range(163584, 163840):
        name = reference.decode([token_id])
        assert vocabulary.name(token_id) == name
        assert vocabulary.special_id(name) == token_id
    assert vocabulary.special_id("<|im_start|>") is None


@pytest.mark.parametrize(
    "text",
    [
        "<|im_user|>user<|im_middle|>It's <think>x</think> [EOS] [EOS[EOS]] <|<|im_end|>|> <|no_such|>",
        "<|reserved_token_163700|> <|reserved_token_1|> </think</think> <think>>",
        "plain",
        "",
    ],
)
def test_special_strings_in_prompts_become_their_tokens(text, reference):
    expected = reference.encode(text, allowed_special="all", disallowed_special=())
    assert vocabulary.encode_with_specials(text) == expected


def test_bytes_of_tokens(reference):
    ids = reference.encode_ordinary("naïve 🥾 你好")
    assert vocabulary.to_bytes(ids) == "naïve 🥾 你好".encode()
    assert b"".join(map(vocabulary.token_bytes, ids)) == "naïve 🥾 你好".encode()
    assert all(vocabulary.ids_by_bytes()[vocabulary.token_bytes(one)] == one for one in ids)
