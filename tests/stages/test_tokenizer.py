"""The tokenizer stage: one folder, one record, one line; nothing when the contract is broken."""

import json

import pytest

from pipeline.config import Probe, PromptEncoding, TokenizerSettings
from pipeline.core import corpus
from pipeline.errors import ContractError
from pipeline.io.tokenizers import load
from pipeline.stages.tokenizer import run
from tests.io.small_vocabulary import NAMED, write_source


@pytest.fixture
def small(monkeypatch, tmp_path):
    texts = corpus.texts()[:400]
    monkeypatch.setattr(corpus, "texts", lambda: texts)
    return write_source(tmp_path)


def record_of(folder):
    return json.loads((folder / "contract.json").read_text(encoding="utf-8"))


def test_kimi_is_built_with_every_check_on_record(kimi_tokenizer_dir, kimi_settings):
    record = record_of(kimi_tokenizer_dir)
    assert record["target"] == "kimi_k2_5"
    count = len(record["checks"])
    assert count > 850
    assert record["counts"] == {
        "checks": count,
        "passed": count,
        "corpus_strings": 12_000,
        "special_tokens": 256,
        "vocabulary": 163_840,
    }
    assert all(check["passed"] for check in record["checks"])
    assert record["files"]["tiktoken.model"] == kimi_settings.files["tiktoken.model"].model_dump()
    assert set(record["files"]) == {path.name for path in kimi_tokenizer_dir.iterdir()} - {"contract.json"}
    assert TokenizerSettings.model_validate_json(json.dumps(record["settings"])) == kimi_settings


def test_the_fingerprint_of_kimi(kimi_tokenizer_dir):
    """All that was made with this tokenizer is rebuilt when it changes, so it changes knowingly."""
    assert record_of(kimi_tokenizer_dir)["fingerprint"] == (
        "5106c7cad3fe6cc0766c727b213579179eeea41cc381ee04c1f0cded2635855e"
    )


def test_one_line_and_the_same_bytes_every_time(small, tmp_path):
    line = run(small, tmp_path, tmp_path / "one", "small")
    assert line == run(small, tmp_path, tmp_path / "two", "small")
    assert line.startswith("tokenizer source: ")
    assert "\n" not in line
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    assert record_of(tmp_path / "one")["fingerprint"].startswith(line.rsplit(" ", 1)[1])


def test_a_broken_contract_leaves_nothing(small, tmp_path):
    wrong = small.contract.model_copy(update={"probes": (Probe(text="the", ids=(1,)),)})
    with pytest.raises(ContractError, match=r"probe 'the': expected \[1\], found \[258\]"):
        run(small.model_copy(update={"contract": wrong}), tmp_path, tmp_path / "build" / "tokenizer")
    assert list((tmp_path / "build").iterdir()) == []


def test_a_broken_contract_leaves_the_last_good_build(small, tmp_path):
    run(small, tmp_path, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    (tmp_path / "source" / "tiktoken.model").write_bytes(b"YQ== 0\n")
    with pytest.raises(ContractError):
        run(small, tmp_path, tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_only_behaviour_moves_the_fingerprint(small, tmp_path):
    run(small, tmp_path, tmp_path / "base")
    known = record_of(tmp_path / "base")["fingerprint"]
    more_probes = small.contract.model_copy(update={"probes": ()})
    for name, same in {
        "fewer probes": {"contract": more_probes},
        "another pad token": {"pad_token": "[BOS]"},
        "other flags": {"ordinary_flag": ()},
    }.items():
        run(small.model_copy(update=same), tmp_path, tmp_path / "out", name)
        assert record_of(tmp_path / "out")["fingerprint"] == known, name
    slots = small.reserved.model_copy(update={"unnamed": "<|free{id}|>"})
    run(small.model_copy(update={"reserved": slots}), tmp_path, tmp_path / "out")
    assert record_of(tmp_path / "out")["fingerprint"] != known


def test_what_was_built_is_loaded(small, tmp_path):
    run(small, tmp_path, tmp_path / "out")
    encoder = load(tmp_path / "out", PromptEncoding(parse_special=True))
    assert encoder.encode_prompt("the</think>") == [258, NAMED["</think>"]]
