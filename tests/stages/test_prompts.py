import hashlib
import json
from pathlib import Path

import pytest

from pipeline.errors import SourceError
from pipeline.io.files import read_parquet
from pipeline.stages import prompts

_SHIPPED = {path.stem: path for path in sorted(Path("conf/prompts").glob("*.jsonl"))}


def _run(root, lines, **settings):
    path = root / "x.jsonl"
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    source = {"kind": "path", "path": "x.jsonl", "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    subtree = {"source": source, "mapping": {"shape": "text"}, **settings}
    line = prompts.run("d", subtree, root)
    return line, read_parquet(root / "build/prompts/d.parquet").to_pylist()


def _texts(rows):
    return [json.loads(row["messages"])[-1]["content"] for row in rows]


def test_every_row_is_accounted_for(tmp_path):
    lines = [
        {"text": "a"},
        {"text": "b"},
        {"text": "a"},
        "no json\n",
        {"other": 1},
        {"text": "c"},
        {"text": "d"},
    ]
    line, rows = _run(tmp_path, lines, limit=3)
    assert line == "prompts d: 7 rows -> 3 prompts (2 rejected, 1 duplicates, 1 left out)"
    assert _texts(rows) == ["a", "b", "c"]
    rejects = read_parquet(tmp_path / "build/prompts/d.rejects.parquet").to_pylist()
    assert [reject["row_id"] for reject in rejects] == ["source:3", "source:4"]
    assert rejects[0]["raw"] == "no json\n"


def test_a_sample_is_seeded_and_keeps_the_order(tmp_path):
    lines = [{"text": f"t{number}"} for number in range(50)]
    one = _texts(_run(tmp_path, lines, sample=10, seed=1)[1])
    again = _texts(_run(tmp_path, lines, sample=10, seed=1)[1])
    other = _texts(_run(tmp_path, lines, sample=10, seed=2)[1])
    assert one == again != other
    assert one == sorted(one, key=lambda text: int(text[1:]))
    assert set(_texts(_run(tmp_path, lines, sample=5, seed=1, limit=10)[1])) <= {f"t{n}" for n in range(10)}


def test_the_same_source_gives_the_same_bytes(tmp_path):
    _run(tmp_path, [{"text": "a"}, {"text": "ü"}])
    first = (tmp_path / "build/prompts/d.parquet").read_bytes()
    _run(tmp_path, [{"text": "a"}, {"text": "ü"}])
    assert (tmp_path / "build/prompts/d.parquet").read_bytes() == first


def test_turns_that_each_get_an_answer(tmp_path):
    lines = [{"turns": ["one", "two"]}, {"turns": ["only"]}]
    _, rows = _run(tmp_path, lines, mapping={"shape": "turns"}, turns="each")
    assert [len(json.loads(row["following_turns"])) for row in rows] == [1, 0]


@pytest.mark.parametrize(
    ("lines", "why"),
    [([], "it is empty"), ([{"txt": "a"}] * 3, "3 times missing_field"), (["x\n"], "unreadable")],
)
def test_a_source_without_any_prompt_stops_the_build(tmp_path, lines, why):
    with pytest.raises(SourceError, match=why):
        _run(tmp_path, lines)


@pytest.mark.parametrize("key", ["tools_field", "id_field"])
def test_a_misspelt_column_is_said(tmp_path, key):
    with pytest.raises(SourceError, match=rf"mapping\.{key}: no row has 'tols'; there are: text, tools"):
        _run(tmp_path, [{"text": "a", "tools": None}], mapping={"shape": "text", key: "tols"})


@pytest.mark.parametrize("dataset", _SHIPPED)
def test_the_shipped_sets_give_a_prompt_for_every_row(tmp_path, dataset):
    import yaml

    settings = yaml.safe_load(Path(f"conf/dataset/{dataset}.yaml").read_text())["prompts"]
    path = _SHIPPED[dataset].resolve()
    settings["source"] |= {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    rows = len(path.read_text(encoding="utf-8").strip().split("\n"))
    assert rows >= 24
    line = prompts.run(dataset, settings, tmp_path)
    assert line == f"prompts {dataset}: {rows} rows -> {rows} prompts (0 rejected, 0 duplicates, 0 left out)"
