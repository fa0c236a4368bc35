"""Both encoders against a bare tiktoken encoding, on ordinary text, on prompts, and on what breaks others."""

import json
import random
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pipeline.config import PromptEncoding
from pipeline.core import corpus
from pipeline.core.encoding import (
    MAX_SPACE_RUN,
    HfEncoder,
    TiktokenEncoder,
    UnencodableText,
    cut_prompt,
)

CASES = Path(__file__).parent.parent / "golden" / "kimi_k2_5" / "tokens.jsonl"
KIMI_CUTS = PromptEncoding(parse_special=True, max_chars=400_000, max_run=25_000)
UNCUT = PromptEncoding(parse_special=True)
BYTES = {bytes([value]): value for value in range(256)}


@pytest.fixture(scope="module")
def hf(kimi_tokenizer_dir):
    return HfEncoder(Tokenizer.from_file(str(kimi_tokenizer_dir / "tokenizer.json")), KIMI_CUTS)


@pytest.fixture(params=["tiktoken", "hf"])
def either(request, kimi):
    return kimi if request.param == "tiktoken" else request.getfixturevalue("hf")


def official_slices(text, max_chars=400_000, max_run=25_000):
    """The vendor's cutting, one character at a time."""
    for begin in range(0, len(text), max_chars):
        slice_, blank, length = "", None, 0
        for char in text[begin : begin + max_chars]:
            length = length + 1 if char.isspace() is blank else 1
            blank = char.isspace()
            if length > max_run:
                yield slice_
                slice_, length = "", 1
            slice_ += char
        yield slice_


def test_ordinary_text_equals_the_reference(either, reference):
    texts = corpus.texts()
    expected = [reference.encode_ordinary(text) for text in texts]
    assert either.encode_batch(texts) == expected
    assert [either.encode(text) for text in texts[:500]] == expected[:500]
    for text, ids in zip(texts, expected, strict=True):
        assert either.decode_bytes(ids) == text.encode()


def test_prompts_equal_the_reference(either, reference):
    for text in corpus.texts():
        ids = reference.encode(text, allowed_special="all")
        assert either.encode_prompt(text) == ids
        assert either.decode_bytes(ids) == text.encode()


def test_ids_of_the_vendors_own_class(either):
    """The cases were made with the vendor's class; their texts come back from the ids here."""
    for line in CASES.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        for ids in (case["expect"]["prompt_ids"], case["expect"].get("prompt_ids_plain")):
            if ids:
                text = either.decode_bytes(ids).decode()
                assert either.encode_prompt(text) == case["expect"]["prompt_ids"], case["id"]
        assert either.decode_bytes(case["expect"]["completion_ids"]).decode() == case["expect"]["decoded"]


def test_special_strings_are_text_in_answers_and_ids_in_prompts(either):
    for name, token_id in either.special.items():
        assert either.encode_prompt(name) == [token_id]
        assert not {*either.encode(f"a{name}b")} & {*either.special.values()}
        assert either.decode_bytes([token_id]) == name.encode()
    assert len(either.special) == 256
    assert either.vocab_size == 163840


def test_a_prompt_encoding_that_parses_nothing(either):
    plain = either.with_prompt(PromptEncoding(parse_special=False))
    assert plain.encode_prompt("a</think>b") == plain.encode("a</think>b") == either.encode("a</think>b")
    assert either.encode_prompt("a</think>b")[1] == 163607


def test_the_table_of_special_tokens_cannot_be_changed(either):
    with pytest.raises(TypeError):
        either.special["<new>"] = 1


def test_empty_text_has_no_ids(either):
    assert either.encode("") == either.encode_prompt("") == []
    assert either.encode_batch([]) == []
    assert either.encode_batch(["", "a"]) == [[], either.encode("a")]
    assert either.decode_bytes([]) == b""


@pytest.mark.parametrize(
    "text",
    [
        " " * 25_000,
        " " * 25_001,
        "=" * 30_000,
        "x" * 80_000 + " " * 50_001 + "y",
        "\n" * 25_000 + "a" + "\n" * 25_001,
        "ab cd " * 70_000,
        "a" * 24_996 + "</think>" + "b" * 10,
        "哈" * 400_001,
        "word " * 79_999 + "</think> tail",
        "\x1f\x85\u2028 \u3000" * 9_000,
        "\u200b" * 25_001 + "\u200b ",
    ],
    ids=lambda text: f"{text[:3]!r}x{len(text)}",
)
def test_long_prompts_are_cut_as_the_vendor_cuts_them(kimi, reference, text):
    slices = list(official_slices(text))
    assert list(cut_prompt(text, KIMI_CUTS)) == slices
    assert kimi.encode_prompt(text) == [
        token_id for part in slices for token_id in reference.encode(part, allowed_special="all")
    ]


def test_cuts_of_made_up_texts():
    dice = random.Random(5)
    for _ in range(3000):
        text = "".join(
            dice.choice(("a", " ", "\n", "é ", "\x1c", "\u3000b")) * dice.randrange(5) for _ in range(9)
        )
        max_chars, max_run = dice.randrange(1, 20), dice.randrange(1, 5)
        encoding = PromptEncoding(parse_special=True, max_chars=max_chars, max_run=max_run)
        assert list(cut_prompt(text, encoding)) == list(official_slices(text, max_chars, max_run))


def test_cutting_agrees_with_isspace_on_every_character():
    encoding = PromptEncoding(parse_special=True, max_run=2)
    for code in range(0x20000):  # nothing above is whitespace
        char = chr(code)
        assert list(cut_prompt("  " + char, encoding)) == (["  ", char] if char.isspace() else ["  " + char])


def test_a_special_string_on_a_cut_is_destroyed(kimi):
    inside = "ab " * 133_332 + "</think>"  # the cut comes after "</th"
    assert 163607 not in kimi.encode_prompt(inside)
    assert kimi.encode_prompt("ab " * 133_000 + "</think>")[-1] == 163607
    assert kimi.with_prompt(UNCUT).encode_prompt(inside)[-1] == 163607


@pytest.mark.parametrize(
    ("blank", "tail"), [(" ", "x"), (" ", ""), ("\t", "\n"), ("\n", "x"), (" \n", "。"), ("\u3000", "x")]
)
def test_the_way_round_tiktokens_own_regex_gives_the_same_ids(kimi, reference, blank, tail):
    text = "don't " + (blank * 600_000)[:600_000] + tail
    expected = reference.encode_ordinary(text)  # below 999,999 the reference still works
    assert kimi.encode(text) == expected
    assert kimi.with_prompt(UNCUT).encode_prompt(text + "</think> <b>") == [
        *expected,
        *reference.encode("</think> <b>", allowed_special="all"),
    ]


def test_a_million_spaces_do_not_panic(kimi, reference):
    space = {n: reference.encode_ordinary(" " * n) for n in (256, 64, 1)}
    assert all(len(ids) == 1 for ids in space.values())
    ids = kimi.encode(" " * 1_000_000)
    assert kimi.decode_bytes(ids) == b" " * 1_000_000
    assert ids == space[256] * 3906 + space[64]
    assert kimi.encode(" " * 1_000_000 + "x")[:3906] == space[256] * 3906
    prompt = kimi.encode_prompt(" " * 1_000_000)
    assert kimi.decode_bytes(prompt) == b" " * 1_000_000
    assert kimi.with_prompt(UNCUT).encode_prompt("</think>" + " " * 1_000_000) == [163607, *ids]


@pytest.mark.parametrize("letter", ["a", "=", "1", "哈", "\u0301", "\n", " x"])
def test_long_repeats_of_anything_else(kimi, reference, letter):
    text = letter * 400_000
    assert kimi.encode(text) == reference.encode_ordinary(text)


@pytest.mark.parametrize("text", [" " * (MAX_SPACE_RUN + 1), "x" + "\n" * (MAX_SPACE_RUN + 1)])
def test_a_run_that_no_engine_takes_is_a_reject(either, text):
    for encode in (either.encode, either.encode_prompt, lambda text: either.encode_batch(["ok", text])):
        with pytest.raises(UnencodableText, match="a run of 5000001 whitespace characters"):
            encode(text)


@pytest.mark.parametrize("text", ["\ud800", "ok \udc80 ok", "\ud83d\ude00", "x" * 10 + "\udfff"])
def test_a_lone_surrogate_is_a_clear_reject(either, text):
    where = next(n for n, char in enumerate(text) if 0xD800 <= ord(char) < 0xE000)
    for encode in (either.encode, either.encode_prompt, lambda text: either.encode_batch([text])):
        with pytest.raises(
            UnencodableText, match=f"surrogate U\\+D[89C-F][0-9A-F]{{2}} at character {where}"
        ):
            encode(text)
    assert issubclass(UnencodableText, ValueError)
    assert not issubclass(UnencodableText, UnicodeError)


def test_a_panic_of_the_regex_engine_is_a_reject():
    """A pattern that backtracks without end stands for whatever we do not know of."""
    hostile = TiktokenEncoder(BYTES, r"(?:(?:a|aa)+(?!\S))+c|[\s\S]", {}, UNCUT)
    assert hostile.encode("ab") == [97, 98]
    with pytest.raises(UnencodableText, match="gave up"):
        hostile.encode("a" * 64 + "b")


def test_other_errors_are_not_called_panics(kimi):
    with pytest.raises((TypeError, AttributeError)):
        kimi.encode(7)


@pytest.mark.parametrize("ids", [[163840], [7, -1], [2**40]])
def test_ids_that_no_token_has(either, ids):
    with pytest.raises(ValueError, match="no token has this id"):
        either.decode_bytes(ids)


def test_hf_keeps_tokens_with_special_false_ordinary():
    """`encode_special_tokens` would parse them; that is why there are two objects."""
    tokenizer = Tokenizer(models.BPE({chr(0x100 + n): n for n in range(3)} | {"a": 3, "b": 4, "<": 5}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<a", special=False, normalized=False)])
    encoder = HfEncoder(tokenizer, UNCUT)
    assert encoder.encode("b<a") == [4, 5, 3]
    assert encoder.encode_prompt("b<a") == [4, 6]
    assert encoder.decode_bytes([4, 6, 0]) == b"b<a\x00"
    assert encoder.special == {"<a": 6}


def test_hf_refuses_what_is_not_byte_level():
    tokenizer = Tokenizer(models.BPE({"▁a": 0, "b": 1}, []))
    with pytest.raises(ValueError, match="token 0 '▁a' is not byte-level"):
        HfEncoder(tokenizer, UNCUT)
