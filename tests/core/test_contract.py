"""Every way a tokenizer can be wrong is refused, and the message names what was expected and what came."""

import pytest
from tokenizers import AddedToken, Tokenizer

from pipeline.config import FilePin, Probe, PromptEncoding
from pipeline.core import contract, corpus
from pipeline.core.contract import Check, FileFacts
from pipeline.core.encoding import HfEncoder, TiktokenEncoder
from pipeline.errors import ContractError
from tests.conftest import KIMI_NAMED, KIMI_PATTERN

PARSED = PromptEncoding(parse_special=True)
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="module")
def encoder(kimi):
    return kimi.with_prompt(PARSED)


@pytest.fixture(scope="module")
def corpus_ids(reference):
    return [reference.encode_ordinary(text) for text in corpus.texts()]


def with_claims(settings, **changes):
    return settings.model_copy(update={"contract": settings.contract.model_copy(update=changes)})


def with_ids(settings, **ids):
    """The same settings with other claims about special tokens; `_` stands for `|` in names."""
    return with_claims(settings, special_tokens={**settings.contract.special_tokens, **ids})


def refusal(settings, encoder, check=contract.check_quickly):
    """The one line that the user reads. `check_encoder` makes the same checks and slower ones after them."""
    with pytest.raises(ContractError) as broken:
        contract.require(check(settings, encoder), "test")
    message = str(broken.value)
    assert "\n" not in message
    return message


def broken_names(checks):
    return [check.name for check in checks if not check.passed]


def test_kimi_keeps_its_contract(kimi_settings, encoder):
    checks = contract.check_encoder(kimi_settings, encoder)
    contract.require(checks, "kimi")
    names = [check.name for check in checks]
    assert len(names) == len(set(names))
    for token_id in range(163584, 163840):
        assert f"id {token_id} through text and back" in names
    for name in KIMI_NAMED:
        assert {f"id of `{name}`", f"boundaries of `{name}`", f"`{name}` in ordinary text"} <= set(names)
    assert sum(name.startswith("probe ") for name in names) == len(kimi_settings.contract.probes) >= 30
    assert {"vocabulary size", "ids of the corpus (12000 strings)"} <= set(names)


def test_the_reserved_slots_carry_their_absolute_id(kimi_settings):
    table = contract.special_table(kimi_settings)
    assert list(table.values()) == list(range(163584, 163840))
    assert table["<|reserved_token_163700|>"] == 163700
    assert table["<|reserved_token_163589|>"] == 163589
    assert {name: table[name] for name in KIMI_NAMED} == KIMI_NAMED


def test_wrong_id_of_one_special_token(kimi_settings, kimi_ranks):
    swapped = dict(contract.special_table(kimi_settings))
    swapped["<think>"], swapped["</think>"] = swapped["</think>"], swapped["<think>"]
    message = refusal(kimi_settings, TiktokenEncoder(kimi_ranks, KIMI_PATTERN, swapped, PARSED))
    assert "id of `<think>`: expected 163606 (that id decodes to `</think>`), found 163607" in message


def test_shifted_special_table(kimi_settings, kimi_ranks):
    """The named tokens packed one after another, as transformers 5.4.0 to 5.5.3 did."""
    packed = {name: 163584 + place for place, name in enumerate(KIMI_NAMED)}
    message = refusal(kimi_settings, TiktokenEncoder(kimi_ranks, KIMI_PATTERN, packed, PARSED))
    assert "vocabulary size: expected 163840, found 163607" in message
    assert (
        "id of `<|start_header_id|>`: expected 163590 (that id decodes to `<|end_header_id|>`), found 163589"
    ) in message or "`<|reserved_token_163589|>`: expected 163589" in message


def test_missing_reserved_slots(kimi_settings, kimi_ranks):
    message = refusal(kimi_settings, TiktokenEncoder(kimi_ranks, KIMI_PATTERN, KIMI_NAMED, PARSED))
    assert (
        "id of `<|reserved_token_163589|>`: expected 163589 (no token has that id), found no such" in message
    )
    assert "breaks 467 of" in message  # 233 ids, 233 ways there and back, and a probe


def test_changed_pattern(kimi_settings, kimi_ranks):
    table = contract.special_table(kimi_settings)
    encoder = TiktokenEncoder(kimi_ranks, LLAMA3_PATTERN, table, PARSED)
    message = refusal(kimi_settings, encoder, contract.check_encoder)
    assert 'probe " don\'t": expected [4536], found [2335, 1769]' in message
    assert "id of" not in message  # all 256 special ids are right: only texts can tell


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"&&[^\p{Han}]", ""),
        (r"[\p{Han}]+|", ""),
        (r"\p{N}{1,3}", r"\p{N}"),
        (r"+[\r\n]*|", r"+[\r\n/]*|"),
        (r"\s*[\r\n]+|", ""),
        (r"\s+(?!\S)|", ""),
        (r"(?i:'s", r"(?:'s"),
        *((suffix, "") for suffix in ("'s|", "'t|", "'re|", "'ve|", "'m|", "'ll|", "|'d")),
        *((rf"\p{{{kind}}}", "") for kind in ("Lu", "Lt", "Ll", "Lm", "Lo", "M")),
        (r"|[^\r\n\p{L}\p{N}]?", "|"),
        (r"| ?[^", "|[^"),
    ],
)
def test_the_corpus_tells_every_part_of_the_pattern(kimi_ranks, corpus_ids, old, new):
    assert old in KIMI_PATTERN
    encoder = TiktokenEncoder(kimi_ranks, KIMI_PATTERN.replace(old, new), {}, PARSED)
    assert encoder.encode_batch(corpus.texts()) != corpus_ids


def test_im_end_is_not_chas(kimi_settings, encoder):
    """The claim that corrupted every sample of an earlier pipeline."""
    claimed = with_ids(kimi_settings, **{"<|im_end|>": 163533})
    message = refusal(claimed, encoder)
    assert "id of `<|im_end|>`: expected 163533 (that id decodes to `chas`), found 163586" in message


@pytest.mark.parametrize("vendor", [None, KIMI_NAMED])
def test_im_end_is_not_chas_before_an_encoder_exists(kimi_settings, kimi_ranks, vendor):
    claimed = with_ids(kimi_settings, **{"<|im_end|>": 163533})
    ordinary = {rank: token for token, rank in kimi_ranks.items()}
    checks = contract.check_table(claimed, ordinary, vendor)
    assert broken_names(checks) == ["special id of `<|im_end|>`"]
    with pytest.raises(ContractError, match=r"163533 \(that id decodes to `chas`\)"):
        contract.require(checks, "test")
    assert broken_names(contract.check_table(kimi_settings, ordinary, vendor)) == []


@pytest.mark.parametrize(
    ("ids", "vendor", "message"),
    [
        ({"<x>": 163840}, None, "expected an id in 163584..163839, found 163840"),
        (
            {"<x>": 163586},
            None,
            "expected a special id of its own, found 163586, shared by <|im_end|> and <x>",
        ),
        ({"<x>": 163700}, {"<|y|>": 163700}, "expected 163700, found `<|y|>` behind that id in the source"),
        ({"<think>": 163700}, {"<think>": 163606}, "expected 163700, found 163606 in the source's own table"),
        ({"<x>": 7}, {}, "expected a special id of its own, found 7 (that id decodes to `(`)"),
    ],
)
def test_special_tables_that_cannot_be(kimi_settings, kimi_ranks, ids, vendor, message):
    checks = contract.check_table(
        with_ids(kimi_settings, **ids), {rank: token for token, rank in kimi_ranks.items()}, vendor
    )
    with pytest.raises(ContractError) as broken:
        contract.require(checks, "test")
    assert message in str(broken.value)


def test_tokens_that_nobody_named(kimi_settings, kimi_ranks):
    """splintr's own tokens stand above Kimi's; they would make ids that the model does not have."""
    leaked = {**contract.special_table(kimi_settings), "<|system|>": 163840, "<|im_start|>": 163843}
    message = refusal(kimi_settings, TiktokenEncoder(kimi_ranks, KIMI_PATTERN, leaked, PARSED))
    assert "vocabulary size: expected 163840, found 163844" in message
    assert "special tokens nobody named: expected 0, found 2, the first is `<|system|>` 163840" in message


def test_wrong_ranks(kimi_settings, kimi_ranks):
    """Two ranks exchanged: most texts stay as they are."""
    exchanged = dict(kimi_ranks)
    exchanged[b" the"], exchanged[b" of"] = exchanged[b" of"], exchanged[b" the"]
    table = contract.special_table(kimi_settings)
    encoder = TiktokenEncoder(exchanged, KIMI_PATTERN, table, PARSED)
    named = with_claims(
        kimi_settings, probes=(Probe(text=" the", ids=(kimi_ranks[b" the"],)), *kimi_settings.contract.probes)
    )
    message = refusal(named, encoder)
    assert f"expected [{kimi_ranks[b' the']}], found [{kimi_ranks[b' of']}]" in message


def test_special_strings_parsed_in_ordinary_text(kimi_settings, encoder):
    """What `encode` of most libraries does by default."""

    class Eager:
        special, vocab_size = encoder.special, encoder.vocab_size
        decode_bytes = staticmethod(encoder.decode_bytes)
        encode = encode_prompt = staticmethod(encoder.encode_prompt)
        encode_batch = staticmethod(lambda texts: list(map(encoder.encode_prompt, texts)))

    checks = contract.check_quickly(kimi_settings, Eager())
    assert {f"`{name}` in ordinary text" for name in encoder.special} <= set(broken_names(checks))
    message = refusal(kimi_settings, Eager())
    assert "`[BOS]` in ordinary text: expected no special id, found [163584]" in message


def test_special_strings_not_parsed_in_prompts(kimi_settings, encoder):
    deaf = encoder.with_prompt(PromptEncoding(parse_special=False))
    message = refusal(kimi_settings, deaf)
    assert "id 163584 through text and back: expected [163584], found [72706, 4110, 60]" in message


def test_a_token_that_eats_the_blanks_beside_it(kimi_settings, kimi_tokenizer_dir):
    """`rstrip` of an added token: single probes pass, text after the token loses its blanks."""
    text = (kimi_tokenizer_dir / "tokenizer.json").read_text(encoding="utf-8")
    clean = '"content":"<|im_middle|>","single_word":false,"lstrip":false,"rstrip":false'
    assert text.count(clean) == 1
    greedy = text.replace(clean, clean.replace('"rstrip":false', '"rstrip":true'))
    checks = contract.check_encoder(kimi_settings, HfEncoder(Tokenizer.from_str(greedy), PARSED))
    [check] = [check for check in checks if not check.passed and "<|im_middle|>" in check.name]
    assert check.name == "boundary '' + `<|im_middle|>` + ' '"
    assert (check.expected, check.found) == ("[163601, 220]", "[163601]")


def test_an_added_token_too_many(kimi_settings, kimi_tokenizer_dir):
    tokenizer = Tokenizer.from_file(str(kimi_tokenizer_dir / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken("don", normalized=False, special=False)])
    names = broken_names(contract.check_quickly(kimi_settings, HfEncoder(tokenizer, PARSED)))
    assert names == ["special tokens nobody named"]


def test_files_against_their_pins():
    pins = {"a.model": FilePin(sha256="a" * 64, size=10), "b.json": FilePin(sha256="b" * 64, size=3)}
    good = {"a.model": FileFacts("a" * 64, 10), "b.json": FileFacts("b" * 64, 3)}
    assert broken_names(contract.check_files(pins, good)) == []
    cut = {**good, "a.model": FileFacts("c" * 64, 9)}
    assert contract.check_files(pins, cut)[:2] == [
        Check("size of a.model", False, "10 bytes", "9 bytes"),
        Check("sha256 of a.model", False, "a" * 64, "c" * 64),
    ]
    assert [check.found for check in contract.check_files(pins, {})] == ["no such file"] * 4


def test_all_broken_checks_are_counted_and_the_first_few_listed():
    checks = [Check(f"c{n}", n % 2 == 0, "1", f"{n}") for n in range(10)]
    with pytest.raises(ContractError) as broken:
        contract.require(checks, "here")
    assert str(broken.value) == (
        "tokenizer here breaks 5 of 10 checks: c1: expected 1, found 1; c3: expected 1, found 3; "
        "c5: expected 1, found 5; and 2 more. Mend conf/target: its tokenizer.source or what it claims"
    )
    contract.require([check for check in checks if check.passed], "here")


def test_lists_of_ids_are_shown_where_they_part():
    assert contract.differing_ids([1, 2], [1, 3]) == ("[1, 2]", "[1, 3]")
    long = list(range(100))
    assert contract.differing_ids(long, [*long[:50], 7, *long[51:]]) == (
        "[..., 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, ... (100 ids)]",
        "[..., 48, 49, 7, 51, 52, 53, 54, 55, 56, 57, 58, 59, ... (100 ids)]",
    )
    assert contract.differing_ids(long, long[:50]) == (
        "[..., 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, ... (100 ids)]",
        "[..., 48, 49]",
    )


def test_the_fingerprint_is_behaviour_and_nothing_else(
    kimi_settings, encoder, kimi_ranks, kimi_tokenizer_dir
):
    known = contract.fingerprint(encoder)
    other_library = HfEncoder(Tokenizer.from_file(str(kimi_tokenizer_dir / "tokenizer.json")), PARSED)
    assert contract.fingerprint(other_library) == known
    table = contract.special_table(kimi_settings)
    renamed = {("<|named|>" if token_id == 163701 else name): token_id for name, token_id in table.items()}
    exchanged = {**kimi_ranks, b" the": kimi_ranks[b" of"], b" of": kimi_ranks[b" the"]}
    for ranks, pattern, special in (
        (kimi_ranks, LLAMA3_PATTERN, table),
        (kimi_ranks, KIMI_PATTERN, renamed),
        (kimi_ranks, KIMI_PATTERN, KIMI_NAMED),
        (exchanged, KIMI_PATTERN, table),
    ):
        assert contract.fingerprint(TiktokenEncoder(ranks, pattern, special, PARSED)) != known
