import gzip
import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.config import FileSource, HubPrompts
from pipeline.errors import SourceError
from pipeline.io.sources import read_source

_ROWS = [{"text": "a\u2028b"}, {"text": 'quoted "x", and\nmore'}, {"text": "不要"}]
_JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in _ROWS)
_CSV = 'text\na\u2028b\n"quoted ""x"", and\nmore"\n不要\n'


def _read(tmp_path, name, data, pin=None):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    return list(read_source(FileSource(kind="path", path=name, sha256=pin or found), "d", tmp_path))


def _zst(text):
    return zstandard.ZstdCompressor().compress(text.encode())


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.jsonl", _JSONL),
        ("x.jsonl", "\ufeff" + _JSONL.rstrip("\n")),
        ("x.jsonl", _JSONL.replace("\n", "\r\n")),
        ("x.jsonl.gz", gzip.compress(_JSONL.encode())),
        ("x.jsonl.zst", _zst(_JSONL)),
        ("x.jsonl.zst", _zst(_JSONL[:20]) + _zst(_JSONL[20:])),
        ("x.json", json.dumps(_ROWS)),
        ("x.json.gz", gzip.compress(b"\xef\xbb\xbf" + json.dumps(_ROWS).encode())),
        ("x.csv", _CSV),
        ("x.csv.zst", _zst(_CSV)),
    ],
)
def test_every_form_gives_the_same_rows(tmp_path, name, data):
    rows = _read(tmp_path, name, data)
    assert [row.values for row in rows] == _ROWS
    assert [row.position for row in rows] == [0, 1, 2]


def test_parquet_rows_lose_the_nulls_that_only_fill_structs(tmp_path):
    table = pa.table({"tools": [[{"a": 1}], [{"b": "x"}]], "text": ["t", None]})
    pq.write_table(table, tmp_path / "x.parquet")
    rows = _read(tmp_path, "x.parquet", (tmp_path / "x.parquet").read_bytes())
    assert [row.values["tools"] for row in rows] == [[{"a": 1}], [{"b": "x"}]]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ('{"text": ', "no JSON"),
        ("[1]", "no JSON object"),
        ("[" * 100_000, "no JSON"),
        ('{"text": ' + "9" * 5001 + "}", "no JSON"),
    ],
)
def test_a_bad_line_loses_no_good_row(tmp_path, bad, why):
    rows = _read(tmp_path, "x.jsonl", f'{{"text": "first"}}\n{bad}\n\n{{"text": "last"}}\n')
    assert [row.values and row.values["text"] for row in rows] == ["first", None, "last"]
    assert rows[1].problem.startswith(why)
    assert rows[1].raw


def test_a_csv_row_of_another_length_is_said(tmp_path):
    rows = _read(tmp_path, "x.csv", "a,b\n1,2\n3\n4,5,6\n7,8\n")
    assert [row.values for row in rows] == [{"a": "1", "b": "2"}, None, None, {"a": "7", "b": "8"}]
    assert rows[1].problem == "1 fields, the header has 2"


def test_bytes_that_are_no_utf8_spoil_one_row(tmp_path):
    rows = _read(tmp_path, "x.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n')
    assert rows[0].values == {"text": "a"}
    assert rows[1].values == {"text": "\udcff"}


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("x.jsonl.zst", _zst(_JSONL)[:-4], "cut"),
        ("x.jsonl.zst", b"not zstd", "no zstd file"),
        ("x.jsonl.gz", gzip.compress(_JSONL.encode())[:-10], "gzip"),
        ("x.jsonl.gz", b"not gzip", "gzip"),
        ("x.json", "[1", "no JSON"),
        ("x.json", "{}", "array"),
        ("x.parquet", b"PAR1nonsense", "Parquet"),
        ("x.csv", 'text\na\n"open\nb\nc\n', "no CSV, near line"),
        ("x.txt", "a", "unknown form; there are: .jsonl"),
        ("x", "a", "unknown form"),
    ],
)
def test_a_file_that_can_not_be_read_is_one_line(tmp_path, name, data, why):
    with pytest.raises(SourceError, match=why) as caught:
        _read(tmp_path, name, data)
    assert "\n" not in str(caught.value)


def test_a_pin_that_does_not_match_stops(tmp_path):
    with pytest.raises(SourceError, match="pipeline pin d"):
        _read(tmp_path, "x.jsonl", _JSONL, pin="0" * 64)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"conf/dataset/d\.yaml: prompts\.source\.path: nope\.jsonl"):
        read_source(FileSource(kind="path", path="nope.jsonl", sha256="0" * 64), "d", tmp_path)


def test_a_hub_source_without_its_library_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(SourceError, match="pip install datasets"):
        list(read_source(HubPrompts(kind="hub", repo="a/b", revision="0" * 40), "d", tmp_path))


def test_a_hub_source_is_read_at_its_revision(tmp_path, monkeypatch):
    asked = []

    class Library:
        @staticmethod
        def load_dataset(repo, config, *, revision, split):
            asked.append((repo, config, revision, split))
            return [{"text": "a", "tools": None}]

    monkeypatch.setitem(__import__("sys").modules, "datasets", Library)
    source = HubPrompts(kind="hub", repo="a/b", revision="0" * 40, split="test")
    assert [row.values for row in read_source(source, "d", tmp_path)] == [{"text": "a"}]
    assert asked == [("a/b", None, "0" * 40, "test")]
