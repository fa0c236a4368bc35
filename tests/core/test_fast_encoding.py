"""The fast encoder gives the reference's ids, and says so when it does not."""

import json
from types import SimpleNamespace

import fastokens
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import PromptEncoding
from pipeline.core.encoding import UnencodableText
from pipeline.core.fast_encoding import CHECKED_EVERY, FastEncoder
from pipeline.errors import ContractError
from pipeline.io.tokenizers import RECORD, build, load, load_fast

_PARSED = PromptEncoding(parse_special=True)


@pytest.fixture(scope="module")
def folder(kimi_target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fast") / "tokenizer"
    built = build(kimi_target.tokenizer, folder, folder.parent)
    record = {
        "settings": kimi_target.tokenizer.model_dump(mode="json"),
        "files": {name: {"sha256": facts.sha256, "size": facts.size} for name, facts in built.files.items()},
    }
    (folder / RECORD).write_text(json.dumps(record))
    return folder


@pytest.fixture(scope="module")
def pair(folder, kimi_target):
    prompt = kimi_target.render.encoding
    return load_fast(folder, prompt), load(folder, prompt)


_SPECIAL = st.sampled_from(
    ["<|im_end|>", "</think>", "<|im_", "[EOS]", "<think>", "<|reserved_token_163700|>"]
)
_TEXT = st.lists(st.text(max_size=12) | _SPECIAL, max_size=6).map("".join)


@given(text=_TEXT)
def test_same_ids_as_text_and_as_prompt(pair, text):
    fast, reference = pair
    assert fast.encode(text) == reference.encode(text)
    assert fast.encode_batch([text, text]) == [reference.encode(text)] * 2
    assert fast.encode_prompt(text) == reference.encode_prompt(text)
    plain = PromptEncoding(parse_special=False)
    assert fast.with_prompt(plain).encode_prompt(text) == reference.encode(text)


def test_long_prompts_are_cut_where_the_vendor_cuts_them(pair):
    fast, reference = pair
    text = "=" * 30_000 + " <|im_end|>" + "a b" * 5_000
    assert fast.encode_prompt(text) == reference.encode_prompt(text)


def test_what_has_no_ids_is_refused(pair):
    with pytest.raises(UnencodableText, match="U\\+D800"):
        pair[0].encode("a\ud800")


def test_a_vast_run_of_blanks_goes_to_the_reference(pair):
    fast, reference = pair
    text = "a" + " " * 1_100_000
    assert fast.encode(text) == reference.encode(text)


class _Shifted:
    """A fast tokenizer with one wrong id for one word."""

    def __init__(self, reference):
        self.reference = reference

    def encode_ordinary(self, text):
        ids = self.reference.encode(text)
        return type("Encoding", (), {"ids": [ids[0] + 1, *ids[1:]] if "wrong" in text else ids})

    def encode(self, text):
        return type("Encoding", (), {"ids": self.reference.encode_prompt(text)})


def test_a_difference_stops_the_build_when_its_turn_to_be_compared_comes(pair):
    encoder = FastEncoder(pair[1], _Shifted(pair[1]), _PARSED)
    with pytest.raises(ContractError, match=r"'wrong'.*fast_encoder: false"):
        encoder.encode("wrong")
    encoder = FastEncoder(pair[1], _Shifted(pair[1]), _PARSED)
    texts = ["right"] * CHECKED_EVERY
    encoder.encode_batch(texts)
    with pytest.raises(ContractError, match="'wrong'"):
        encoder.encode("wrong")


def test_a_fast_encoder_of_another_pattern_is_refused_at_load(folder, kimi_target, monkeypatch):
    def other(path, pattern, special_tokens):
        real = fastokens.Tokenizer.from_tiktoken
        return real(path, pattern=r"\s+|\S+", special_tokens=special_tokens)

    fake = SimpleNamespace(Tokenizer=SimpleNamespace(from_tiktoken=other))
    monkeypatch.setattr("pipeline.io.tokenizers.fastokens", fake)
    with pytest.raises(ContractError, match=r"fastokens .*fast_encoder: false"):
        load_fast(folder, kimi_target.render.encoding)
