import json

import pyarrow as pa
import pytest

from pipeline.errors import StageError
from pipeline.io.files import (
    atomic,
    count_parquet,
    read_json,
    read_parquet,
    read_parquet_parts,
    write_json,
    write_jsonl,
    write_parquet,
    write_parquet_parts,
)

_TABLE = pa.table({"a": list(range(10)), "b": [f"漢{n}" for n in range(10)]})


def _parts():
    yield _TABLE.slice(0, 4)
    yield _TABLE.slice(4)


def test_tables_come_back_and_the_same_table_gives_the_same_bytes(tmp_path):
    one, two = tmp_path / "deep/one.parquet", tmp_path / "two.parquet"
    for path in (one, two):
        write_parquet(path, _TABLE)
    assert read_parquet(one).equals(_TABLE)
    assert one.read_bytes() == two.read_bytes()


def test_tables_in_parts(tmp_path):
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    for path in (one, two):
        write_parquet_parts(path, _TABLE.schema, _parts())
    assert read_parquet(one).equals(_TABLE)
    assert one.read_bytes() == two.read_bytes()
    assert count_parquet(one) == 10
    sizes = [part.num_rows for part in read_parquet_parts(one, 3)]
    assert sum(sizes) == 10
    assert max(sizes) == 3


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "one.parquet"
    write_parquet(path, _TABLE)

    def broken():
        yield _TABLE
        raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        write_parquet_parts(path, _TABLE.schema, broken())
    assert read_parquet(path).equals(_TABLE)
    with pytest.raises(FileNotFoundError), atomic(path) as part:
        part.unlink(missing_ok=True)
    assert read_parquet(path).equals(_TABLE)
    assert [found.name for found in tmp_path.iterdir()] == ["one.parquet"]


@pytest.mark.parametrize(
    "read", [read_parquet, count_parquet, lambda path: list(read_parquet_parts(path, 5))]
)
def test_missing_and_broken_tables_are_named(tmp_path, read):
    path = tmp_path / "one.parquet"
    with pytest.raises(StageError, match=r"one\.parquet: missing"):
        read(path)
    path.write_text("not a table")
    with pytest.raises(StageError, match=r"one\.parquet: no readable"):
        read(path)


def test_json_keeps_order_and_text_and_is_named_when_broken(tmp_path):
    path, value = tmp_path / "deep/v.json", {"b": "漢", "a": [1]}
    write_json(path, value)
    assert list(read_json(path)) == ["b", "a"]
    assert "漢" in path.read_text(encoding="utf-8")
    path.write_text("{")
    with pytest.raises(StageError, match=r"v\.json: no JSON"):
        read_json(path)
    with pytest.raises(StageError, match="missing"):
        read_json(tmp_path / "none.json")


def test_json_lines(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"a": "x\u2028y\n"}, [1, 2]])
    lines = path.read_bytes().decode().split("\n")
    assert [json.loads(line) for line in lines[:-1]] == [{"a": "x\u2028y\n"}, [1, 2]]
    assert lines[-1] == ""
