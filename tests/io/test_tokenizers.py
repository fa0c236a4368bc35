"""The folder that is written, loaded and refused; and 20,000 made-up strings through all of it."""

import json
import shutil
import sys

import huggingface_hub
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, dynamic_module_utils

from pipeline.config import BundledSource, HubSource, PathSource, PromptEncoding
from pipeline.core import contract, corpus
from pipeline.core.encoding import HfEncoder
from pipeline.errors import ConfigError, ContractError, StageError
from pipeline.io import vocabularies
from pipeline.io.tokenizer_folder import atomic_folder, check_folder
from pipeline.io.tokenizers import build, ensure, load
from pipeline.stages import tokenizer as stage
from tests.conftest import KIMI_MODEL_SHA256, KIMI_NAMED, ROOT
from tests.io.small_vocabulary import FIRST, MODEL, NAMED, bare_encoding, pin, write_source

PARSED = PromptEncoding(parse_special=True)
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def short_corpus(monkeypatch):
    """400 strings instead of 12,000: these tests are about files."""
    texts = corpus.texts()[:400]
    monkeypatch.setattr(corpus, "texts", lambda: texts)


@pytest.fixture
def small(short_corpus, tmp_path):
    return write_source(tmp_path)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refusal(error, act):
    """The one line that the user reads."""
    with pytest.raises(error) as broken:
        act()
    assert "\n" not in str(broken.value)
    return str(broken.value)


# --- the bundled vocabulary ---------------------------------------------------------------------


def test_the_bundled_package_gives_the_vendors_file_and_no_token_of_its_own():
    found = vocabularies.read("splintr_rs", "kimi_k2")
    assert (pin(found.tiktoken_model).sha256, len(found.tiktoken_model)) == (KIMI_MODEL_SHA256, 2795286)
    assert found.tiktoken_model.count(b"\n") == 163584
    assert sorted(found.special.values()) == list(range(163584, 163840))
    assert {name: found.special[name] for name in KIMI_NAMED} == KIMI_NAMED
    assert "<|im_start|>" not in found.special  # 163843: the package's own


@pytest.mark.parametrize(
    ("package", "vocabulary", "message"),
    [
        ("no_such", "kimi_k2", "tokenizer.source.package 'no_such' is not known: use one of splintr_rs"),
        ("splintr_rs", "no_such", "tokenizer.source.vocabulary 'no_such': Unknown pretrained model"),
        ("splintr_rs", "gemma3", "tokenizer.source.vocabulary 'gemma3' is no byte-level BPE"),
    ],
)
def test_a_vocabulary_that_is_not_there(package, vocabulary, message):
    assert message in refusal(ConfigError, lambda: vocabularies.read(package, vocabulary))


# --- Kimi, as it is built -----------------------------------------------------------------------


def test_trainers_load_the_folder_without_remote_code(kimi_hf, kimi_tokenizer_dir):
    assert len(kimi_hf) == 163840
    ids = (kimi_hf.bos_token_id, kimi_hf.eos_token_id, kimi_hf.pad_token_id, kimi_hf.unk_token_id)
    assert ids == (163584, 163585, 163839, 163838)
    for name, token_id in KIMI_NAMED.items():
        assert kimi_hf.convert_tokens_to_ids(name) == token_id
    assert kimi_hf("hi</think>")["input_ids"] == [9663, 163607]  # nothing is put around it
    assert kimi_hf.decode([163607], skip_special_tokens=True) == "</think>"
    assert kimi_hf.decode([163586], skip_special_tokens=True) == ""
    assert not list(kimi_tokenizer_dir.glob("*.py"))
    assert "auto_map" not in json.loads((kimi_tokenizer_dir / "tokenizer_config.json").read_text())


SCRIPTS = (
    *((0x20, 0x7E), (0xA1, 0x17F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF)),
    *((0xE00, 0xE7F), (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x27BF), (0x3000, 0x30FF)),
    *((0x3400, 0x3450), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFE00, 0xFE0F), (0xFF00, 0xFFEF)),
    *((0x1F1E6, 0x1F1FF), (0x1F300, 0x1F9FF), (0x20000, 0x20050)),
)
LETTERS = st.one_of([st.characters(min_codepoint=first, max_codepoint=last) for first, last in SCRIPTS])
HAN = st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF)
FRAGMENTS = st.one_of(
    st.text(LETTERS, min_size=1, max_size=6),
    st.text(st.characters(min_codepoint=0, max_codepoint=0xA0), min_size=1, max_size=6),  # and controls
    st.text(st.sampled_from(" \t\n\r\x0b\x85\xa0\u2003\u2028\u3000"), min_size=1, max_size=5),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4),
    st.text(st.sampled_from("abcXYZ'stSTrevmld’ "), min_size=2, max_size=10),
    st.tuples(st.text(HAN, min_size=1, max_size=5), st.sampled_from("，。！？「」…ー々")).map("".join),
    st.tuples(LETTERS, st.integers(2, 300)).map(lambda pair: pair[0] * pair[1]),
    st.sampled_from([*KIMI_NAMED, "<|reserved_token_163700|>", "<|user|>", "```python\n", "}\n//", " don't"]),
)


@st.composite
def batches(draw):
    """160 strings of 20 fragments: each alone, and each pair of the first twelve joined."""
    parts = draw(st.lists(FRAGMENTS, min_size=20, max_size=20, unique=True))
    joined = [a + b for a in parts[:12] for b in parts[:12]]
    return [*parts, *joined, "".join(parts[:6])]


def test_no_difference_from_the_reference_on_made_up_strings(kimi, kimi_hf, reference):
    ordinary = HfEncoder(kimi_hf.backend_tokenizer, PARSED)
    seen = set()

    @settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(batches())
    def check(texts):
        expected = [reference.encode_ordinary(text) for text in texts]
        prompts = [reference.encode(text, allowed_special="all") for text in texts]
        assert kimi.encode_batch(texts) == expected
        assert ordinary.encode_batch(texts) == expected
        assert [kimi.encode_prompt(text) for text in texts] == prompts
        assert kimi_hf(texts, add_special_tokens=False)["input_ids"] == prompts
        assert [kimi.decode_bytes(ids).decode() for ids in prompts] == texts
        seen.update(texts)

    check()
    assert len(seen) >= 20_000


def test_kimi_as_transformers_converts_it_by_itself_is_refused(kimi_settings, kimi_tokenizer_dir, tmp_path):
    """Rank file and vendor's settings without our tokenizer.json: 256 right special ids, wrong pattern."""
    shutil.copy(kimi_tokenizer_dir / "tiktoken.model", tmp_path)
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    vendor = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "added_tokens_decoder": {
            str(token_id): {"content": name, "special": name not in kimi_settings.ordinary_flag, **flags}
            for name, token_id in KIMI_NAMED.items()
        },
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(vendor))
    (tmp_path / "config.json").write_text('{"model_type": "kimi_k25"}')
    converted = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    assert type(converted).__name__ == "TokenizersBackend"
    assert all(converted.convert_tokens_to_ids(name) == KIMI_NAMED[name] for name in KIMI_NAMED)
    checks = contract.check_encoder(kimi_settings, HfEncoder(converted.backend_tokenizer, PARSED))
    message = refusal(ContractError, lambda: contract.require(checks, "converted"))
    assert 'probe " don\'t": expected [4536], found [2335, 1769]' in message


# --- building -----------------------------------------------------------------------------------


def test_the_same_bytes_every_time(small, tmp_path):
    first = build(small, tmp_path / "first", tmp_path)
    second = build(small, tmp_path / "second", tmp_path)
    assert files_of(tmp_path / "first") == files_of(tmp_path / "second")
    assert (first.files, first.checks) == (second.files, second.checks)
    assert sorted(first.files) == ["tiktoken.model", "tokenizer.json", "tokenizer_config.json"]


def test_a_chat_template_is_written_and_used(small, tmp_path):
    build(small, tmp_path / "out", tmp_path, "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    loaded = AutoTokenizer.from_pretrained(str(tmp_path / "out"), local_files_only=True)
    text = loaded.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False)
    assert text == "the<|im_end|>"


def test_a_build_replaces_the_folder_whole(small, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "stale.txt").write_text("old")
    build(small, tmp_path / "out", tmp_path)
    assert not (tmp_path / "out" / "stale.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_a_folder_is_never_left_half_written(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "good.txt").write_text("good")

    def interrupted():
        with atomic_folder(tmp_path / "out") as work:
            (work / "half.txt").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert files_of(tmp_path / "out") == {"good.txt": b"good"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_tokenizer_json_is_taken_as_it_is(small, tmp_path):
    build(small, tmp_path / "made", tmp_path)
    data = (tmp_path / "made" / "tokenizer.json").read_bytes()
    taken = small.model_copy(
        update={
            "source": PathSource(kind="path", path="made"),
            "files": {"tokenizer.json": pin(data)},
            "pattern": None,
        }
    )
    built = build(taken, tmp_path / "out", tmp_path)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == data
    assert isinstance(built.encoder, HfEncoder)
    assert built.encoder.encode("</think>") == bare_encoding().encode_ordinary("</think>")
    stage.run(taken, tmp_path, tmp_path / "out")
    assert load(tmp_path / "out", PARSED).encode_prompt("a</think>") == [97, NAMED["</think>"]]


def test_a_role_that_no_token_has_is_refused(small, tmp_path):
    """transformers would add the token by itself, above every id of the model."""
    wrong = small.model_copy(update={"pad_token": "<pad>"})
    message = refusal(ContractError, lambda: build(wrong, tmp_path / "out", tmp_path))
    assert f"AutoTokenizer: length: expected {FIRST + 8}, found {FIRST + 9}" in message
    assert f"AutoTokenizer: id of pad_token: expected None, found {FIRST + 8}" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "broken"),
    [
        (
            r"\\s+(?!\\S)|",
            "",
            {"AutoTokenizer: corpus as prompts", "tokenizer.json: corpus as ordinary text"},
        ),
        (
            '"content":"<think>","single_word":false',
            '"content":"<think>","single_word":true',
            {"AutoTokenizer: corpus as prompts"},
        ),
        ('"decoder":{"type":"ByteLevel"', '"decoder":{"type":"Fuse"', {"AutoTokenizer: corpus decoded"}),
        (
            '"normalized":false,"special":false}],',
            '"normalized":false,"special":true}],',
            {"AutoTokenizer: special tokens that skip_special_tokens keeps"},
        ),
    ],
)
def test_a_folder_that_does_something_else_is_seen(small, tmp_path, old, new, broken):
    flagged = small.model_copy(update={"ordinary_flag": ("<think>", "</think>", f"<|r{FIRST + 7}|>")})
    built = build(flagged, tmp_path / "out", tmp_path)
    path = tmp_path / "out" / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    checks = check_folder(tmp_path / "out", flagged, built.encoder)
    assert {check.name for check in checks if not check.passed} == broken
    assert all(check.expected != check.found for check in checks if not check.passed)


# --- sources ------------------------------------------------------------------------------------


def test_a_truncated_file_is_refused_and_nothing_is_left(small, tmp_path):
    (tmp_path / "source" / "tiktoken.model").write_bytes(MODEL[:-40])
    message = refusal(ContractError, lambda: build(small, tmp_path / "out", tmp_path))
    expected, found = small.files["tiktoken.model"], pin(MODEL[:-40])
    assert f"size of tiktoken.model: expected {expected.size} bytes, found {found.size} bytes" in message
    assert f"expected {expected.sha256}, found {found.sha256}" in message
    assert not (tmp_path / "out").exists()


def test_a_truncated_kimi_file_is_refused(kimi_settings, kimi_tokenizer_dir, tmp_path):
    data = (kimi_tokenizer_dir / "tiktoken.model").read_bytes()
    (tmp_path / "tiktoken.model").write_bytes(data[:2_000_000])
    moved = kimi_settings.model_copy(update={"source": PathSource(kind="path", path=".")})
    message = refusal(ContractError, lambda: build(moved, tmp_path / "out", tmp_path))
    assert "expected 2795286 bytes, found 2000000 bytes" in message
    assert f"sha256 of tiktoken.model: expected {KIMI_MODEL_SHA256}, found " in message


def test_another_models_rank_file_is_refused(kimi_settings, tmp_path):
    other = kimi_settings.model_copy(
        update={"source": BundledSource(kind="bundled", package="splintr_rs", vocabulary="qwen3")}
    )
    message = refusal(ContractError, lambda: build(other, tmp_path / "out", tmp_path))
    assert f"expected {KIMI_MODEL_SHA256}, found " in message


def test_a_wrong_rank_file_is_refused_even_if_it_is_pinned(small, tmp_path):
    lines = MODEL.splitlines(keepends=True)
    swapped = [
        lines[257].split()[0] + b" 256\n"
        if n == 256
        else lines[256].split()[0] + b" 257\n"
        if n == 257
        else line
        for n, line in enumerate(lines)
    ]
    data = b"".join(swapped)
    (tmp_path / "source" / "tiktoken.model").write_bytes(data)
    pinned = small.model_copy(update={"files": {"tiktoken.model": pin(data)}})
    message = refusal(ContractError, lambda: build(pinned, tmp_path / "out", tmp_path))
    assert "ids of the corpus (12000 strings): expected" in message


@pytest.mark.parametrize("line", [b"!!!! 7\n", b"YQ== seven\n", b"YQ==\n"])
def test_a_line_that_is_no_rank(small, tmp_path, line):
    data = MODEL + line
    (tmp_path / "source" / "tiktoken.model").write_bytes(data)
    pinned = small.model_copy(update={"files": {"tiktoken.model": pin(data)}})
    message = refusal(ContractError, lambda: build(pinned, tmp_path / "out", tmp_path))
    assert f"tiktoken.model line {FIRST + 1} is no `base64 rank`" in message


def test_a_special_id_inside_the_ranks_is_refused(kimi_settings, tmp_path):
    special = {**KIMI_NAMED, "<|im_end|>": 163533}
    wrong = kimi_settings.model_copy(
        update={"contract": kimi_settings.contract.model_copy(update={"special_tokens": special})}
    )
    message = refusal(ContractError, lambda: build(wrong, tmp_path / "out", ROOT))
    assert "`<|im_end|>`: expected 163533 (that id decodes to `chas`), found 163586" in message
    assert not (tmp_path / "out").exists()


def test_a_hole_in_the_special_table_is_refused(small, tmp_path):
    """transformers gives added tokens ids one after another, so a hole would shift what follows."""
    bare, texts = bare_encoding(), corpus.texts()
    packed = type(bare)(
        "holes", pat_str=small.split_pattern, mergeable_ranks=bare._mergeable_ranks, special_tokens=NAMED
    )
    claims = {
        "vocab_size": max(NAMED.values()) + 1,
        "corpus_sha256": corpus.ids_sha256(
            map(packed.encode_ordinary, texts), (packed.encode(t, allowed_special="all") for t in texts)
        ),
    }
    holes = small.model_copy(update={"reserved": None, "contract": small.contract.model_copy(update=claims)})
    message = refusal(ContractError, lambda: build(holes, tmp_path / "out", tmp_path))
    assert f"id of `<|im_end|>` in tokenizer.json: expected {FIRST + 2}, found {FIRST + 1}" in message


def test_the_sources_own_table_is_a_witness(small, tmp_path):
    declared = {"added_tokens_decoder": {str(FIRST + 6): {"content": "<think>"}}}
    (tmp_path / "source" / "tokenizer_config.json").write_text(json.dumps(declared))
    message = refusal(ContractError, lambda: build(small, tmp_path / "out", tmp_path))
    assert f"special id of `<think>`: expected {FIRST + 5}, found {FIRST + 6} in the source's own" in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": PathSource(kind="path", path="nowhere")}, "there is no folder nowhere"),
        ({"files": {}}, "tokenizer.files must pin one of tiktoken.model and tokenizer.json, not none"),
        ({"pattern": None}, "tokenizer.pattern belongs to a tiktoken.model"),
        ({"files": {"tokenizer.json": pin(b"")}}, "tokenizer.pattern belongs to a tiktoken.model"),
        ({"files": {"tokenizer.json": pin(b"")}, "pattern": None}, "source has no tokenizer.json"),
        (
            {
                "files": {"tokenizer.json": pin(b"")},
                "pattern": None,
                "source": BundledSource(kind="bundled", package="splintr_rs", vocabulary="kimi_k2"),
            },
            "a bundled source gives a tiktoken.model",
        ),
    ],
)
def test_settings_that_lead_nowhere(small, tmp_path, changes, message):
    broken = small.model_copy(update=changes)
    assert message in refusal(ConfigError, lambda: build(broken, tmp_path / "out", tmp_path))


@pytest.mark.parametrize("text", ["{", '{"model": {}}', '{"version": "1.0"}'])
def test_a_tokenizer_json_that_is_none(small, tmp_path, text):
    (tmp_path / "source" / "tokenizer.json").write_text(text)
    changes = {"files": {"tokenizer.json": pin(text.encode())}, "pattern": None}
    message = refusal(
        ConfigError, lambda: build(small.model_copy(update=changes), tmp_path / "out", tmp_path)
    )
    assert "tokenizer.json can't be used" in message


# --- the hub ------------------------------------------------------------------------------------

VENDOR_CODE = """
from transformers import PreTrainedTokenizer

class VendorTokenizer(PreTrainedTokenizer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)

    @property
    def vocab_size(self):
        return 256

    def get_vocab(self):
        return {f"<{n}>": n for n in range(256)}

    def _tokenize(self, text, **kwargs):
        return [f"<{n}>" for n in text.encode()]

    def _convert_token_to_id(self, token):
        return int(token[1:-1])

    def _convert_id_to_token(self, index):
        return f"<{index}>"
"""


@pytest.fixture
def hub(small, tmp_path, monkeypatch):
    """A hub that serves the source folder, and settings that ask it."""
    asked = []

    def snapshot_download(repo, *, revision, allow_patterns):
        asked.append((repo, revision, allow_patterns))
        return str(tmp_path / "source")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)

    def settings_for(trust):
        source = HubSource(kind="hub", repo="vendor/model", revision=REVISION, trust_remote_code=trust)
        return small.model_copy(update={"source": source})

    return settings_for, asked


def test_the_hub_is_asked_for_the_pinned_files_at_the_pinned_revision(hub, tmp_path):
    settings_for, asked = hub
    (tmp_path / "source" / "tokenization_vendor.py").write_text("raise SystemExit('remote code ran')")
    config = {"auto_map": {"AutoTokenizer": ["tokenization_vendor.VendorTokenizer", None]}}
    (tmp_path / "source" / "tokenizer_config.json").write_text(json.dumps(config))
    built = build(settings_for(False), tmp_path / "out", tmp_path)
    assert asked == [("vendor/model", REVISION, ["tiktoken.model", "tokenizer_config.json"])]
    assert built.source == "vendor/model@01234567"
    assert not (tmp_path / "out" / "tokenization_vendor.py").exists()


def test_trusted_code_is_run_and_must_agree(hub, tmp_path, monkeypatch):
    settings_for, asked = hub
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "source" / "tokenization_vendor.py").write_text(VENDOR_CODE)
    config = {
        "tokenizer_class": "VendorTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_vendor.VendorTokenizer", None]},
    }
    (tmp_path / "source" / "tokenizer_config.json").write_text(json.dumps(config))
    message = refusal(ContractError, lambda: build(settings_for(True), tmp_path / "out", tmp_path))
    assert "*.py" in asked[0][2]
    assert "the vendor's own class: corpus as prompts: expected [73, 32, 100," in message
    assert not (tmp_path / "out").exists()


def test_an_unreachable_hub_is_one_line(hub, tmp_path, monkeypatch):
    def unreachable(repo, **asked):
        raise huggingface_hub.errors.LocalEntryNotFoundError("no network\nand a long explanation")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    message = refusal(ConfigError, lambda: build(hub[0](False), tmp_path / "out", tmp_path))
    assert "vendor/model@01234567 can't be fetched (LocalEntryNotFoundError: no network)" in message


# --- loading ------------------------------------------------------------------------------------


@pytest.fixture
def built(small, tmp_path):
    stage.run(small, tmp_path, tmp_path / "build" / "tokenizer", "small")
    return tmp_path / "build" / "tokenizer"


def test_a_loaded_tokenizer_encodes_prompts_as_it_is_told(built, small):
    for given_settings in (None, small):
        assert load(built, PARSED, given_settings).encode_prompt("a<think>") == [97, NAMED["<think>"]]
    plain = load(built, PromptEncoding(parse_special=False))
    assert plain.encode_prompt("a<think>") == bare_encoding().encode_ordinary("a<think>")
    cut = load(built, PromptEncoding(parse_special=True, max_chars=2))
    assert cut.encode_prompt("a<think>") == [
        token_id for part in ("a<", "th", "in", "k>") for token_id in bare_encoding().encode_ordinary(part)
    ]


@pytest.mark.parametrize("name", ["tiktoken.model", "tokenizer.json", "tokenizer_config.json"])
def test_a_changed_file_is_refused_when_loaded(built, name):
    data = (built / name).read_bytes()
    (built / name).write_bytes(data + b"\n")
    message = refusal(ContractError, lambda: load(built, PARSED))
    assert f"size of {name}: expected {len(data)} bytes, found {len(data) + 1} bytes" in message
    (built / name).unlink()
    assert f"{name}: expected {len(data)} bytes, found no such file" in refusal(
        ContractError, lambda: load(built, PARSED)
    )


def test_other_claims_are_checked_when_loaded(built, small):
    moved = {**NAMED, "<think>": FIRST + 4}
    claims = small.contract.model_copy(update={"special_tokens": moved})
    message = refusal(
        ContractError, lambda: load(built, PARSED, small.model_copy(update={"contract": claims}))
    )
    assert f"expected [{FIRST + 5}], found [{FIRST + 4}]" in message


def test_a_folder_that_was_never_built(tmp_path):
    message = refusal(StageError, lambda: load(tmp_path / "build" / "tokenizer", PARSED))
    assert message.endswith("contract.json: missing; an earlier stage writes it: run `dvc repro`")


def test_a_record_of_another_version(built):
    record = json.loads((built / "contract.json").read_text())
    for recorded, message in (
        (None, "settings: Input should be an object"),
        ({"source": 1}, "settings.source"),
    ):
        (built / "contract.json").write_text(json.dumps(record | {"settings": recorded}))
        found = refusal(StageError, lambda: load(built, PARSED))
        assert message in found
        assert found.endswith("Run `dvc repro -f tokenizer`")


def test_ensure_takes_the_built_folder_only_if_it_is_of_these_settings(built, small, tmp_path):
    assert ensure(small, PARSED, tmp_path).encode(" the") == [260]
    (built / "tokenizer.json").write_text("{}")
    assert "size of tokenizer.json" in refusal(ContractError, lambda: ensure(small, PARSED, tmp_path))
    renamed = small.model_copy(update={"pad_token": "[BOS]"})  # no longer the built one: from the source
    assert ensure(renamed, PARSED, tmp_path).encode(" the") == [260]


def test_ensure_keeps_the_contract_too(small, tmp_path):
    claims = small.contract.model_copy(update={"vocab_size": 5})
    message = refusal(
        ContractError, lambda: ensure(small.model_copy(update={"contract": claims}), PARSED, tmp_path)
    )
    assert f"vocabulary size: expected 5, found {FIRST + 8}" in message
