"""reconstruct -> validate -> export on a small build whose truth is known."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from native_writer import Structured, body, fields, native_ids

from pipeline.config import Runtime
from pipeline.core.render import render_ids
from pipeline.core.selection import in_validation
from pipeline.errors import ConfigError, StageError
from pipeline.io.files import read_json, read_parquet
from pipeline.stages import export, reconstruct, validate

_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
_ANSWERS = [
    Structured("Think.", "Say."),
    Structured("", "不要\n\n"),
    Structured("Call.", "", [("functions.f:0", "f", '{"a": 1}')]),
    Structured(" edges \n", "don't"),
]


@pytest.fixture
def settings(kimi_target):
    common = {"render": kimi_target.render.model_dump(), "grammar": kimi_target.grammar.model_dump()}
    return {
        "reconstruct": {**common, "shard_rows": 2},
        "validate": {**common, "rules": {"max_reject_share": 0.5}},
        "export": {"min_fidelity": "counted"},
    }


@pytest.fixture
def build(tmp_path, kimi_tokenizer_dir, kimi_target, kimi, reference):
    """A root with tokenizer, profiles and the responses of `_ANSWERS`, two of them spoilt."""
    shutil.copytree(kimi_tokenizer_dir, tmp_path / "build/tokenizer")
    (tmp_path / "build/profiles.yaml").write_text(yaml.safe_dump({"d": {"Test": {}}}))
    rows = []
    for number, answer in enumerate(_ANSWERS):
        request = {"messages": [{"role": "user", "content": f"q{number}"}], "tools": _TOOLS, "max_tokens": 99}
        ids = native_ids(answer, reference)
        prompt = len(render_ids(request, kimi_target.render, kimi).ids)
        answer_body = body(
            fields(answer), ids, "tool_calls" if answer.calls else "stop", prompt_tokens=prompt
        )
        rows.append(_response(f"p{number}:0", request, json.dumps(answer_body)))
    rows.append(_response("p4:0", request, json.dumps({**answer_body, "usage": {"completion_tokens": 99}})))
    rows.append({**_response("p5:0", request, ""), "failure": "fatal_row", "failure_detail": "refused"})
    pq.write_table(pa.Table.from_pylist(rows), _make(tmp_path / "build/responses/d.parquet"))
    return tmp_path


def _response(row_id, request, text):
    return {
        "row_id": row_id,
        "prompt_id": row_id.split(":")[0],
        "turn": 0,
        "request": json.dumps(request),
        "status": 200,
        "headers": "{}",
        "body": text,
        "served_provider": "Test",
        "failure": None,
        "failure_detail": None,
    }


def _make(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _all(settings, root, format_name="specforge"):
    return [
        reconstruct.run("d", settings["reconstruct"], root, Runtime()),
        validate.run("d", settings["validate"], root, Runtime()),
        export.run("d", format_name, settings["export"], root),
    ]


def test_rows_are_exact_and_nothing_is_lost(settings, build, kimi, kimi_target, reference):
    lines = _all(settings, build)
    assert "6 responses -> 4 samples (4 counted), 2 rejects" in lines[0]
    exported = [
        json.loads(line)
        for path in sorted((build / "build/exports/d/specforge").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    for number, (answer, row) in enumerate(zip(_ANSWERS, exported, strict=True)):
        request = {"messages": [{"role": "user", "content": f"q{number}"}], "tools": _TOOLS}
        prompt, ids = render_ids(request, kimi_target.render, kimi).ids, native_ids(answer, reference)
        assert row["input_ids"] == [*prompt, *ids]
        assert row["loss_mask"] == [0] * len(prompt) + [1] * len(ids)
    rejects = read_parquet(build / "build/rejects/d.parquet").to_pylist()
    assert [(r["row_id"], r["stage"], r["reason"]) for r in rejects] == [
        ("p4:0", "reconstruct", "count_mismatch"),
        ("p5:0", "generate", "fatal_row"),
    ]
    assert json.loads(rejects[0]["raw"])["usage"] == {"completion_tokens": 99}
    assert len(json.loads(rejects[0]["candidates"])) >= 1


def test_the_report_counts_every_response_once(settings, build):
    _all(settings, build)
    report = read_json(build / "build/reports/d.json")
    assert (report["responses"], report["rows"], sum(report["rejects"].values())) == (6, 4, 2)
    assert {rule["issues"] for rule in report["rules"].values()} == {0}
    assert report["fidelity"] == {"counted": 4}


def test_the_same_build_gives_the_same_bytes(settings, build):
    def files():
        paths = [path for path in sorted((build / "build").rglob("*")) if path.is_file()]
        return {str(path): path.read_bytes() for path in paths}

    _all(settings, build)
    first = files()
    for name in ("samples", "rejects", "verdicts", "exports", "reports"):
        shutil.rmtree(build / "build" / name)
    _all(settings, build)
    assert files() == first


def test_too_many_rejects_stop_the_build_after_the_report(settings, build):
    reconstruct.run("d", settings["reconstruct"], build, Runtime())
    strict = {**settings["validate"], "rules": {"max_reject_share": 0.1}}
    with pytest.raises(
        StageError, match=r"2 of 6 responses give no row \(.*\), more .*max_reject_share 0\.1"
    ):
        validate.run("d", strict, build, Runtime())
    assert read_json(build / "build/reports/d.json")["rows"] == 4


def test_rows_of_an_unknown_provider_are_unverified_and_not_exported(settings, build):
    (build / "build/profiles.yaml").write_text(yaml.safe_dump({"d": {}}))
    lines = _all(settings, build)
    assert "4 unverified" in lines[0]
    assert "0 rows" in lines[2]
    card = read_json(build / "build/exports/d/specforge/card.json")
    assert card["left_out"] == {"not_valid": 0, "below_min_fidelity": 4, "too_long": 0}


def test_a_row_that_breaks_a_rule_is_not_exported(settings, build):
    reconstruct.run("d", settings["reconstruct"], build, Runtime())
    shard = next((build / "build/samples/d").glob("*.parquet"))
    rows = pq.read_table(shard).to_pylist()
    rows[0]["input_ids"][-1] = 163585
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(shard)), shard)
    validate.run("d", settings["validate"], build, Runtime())
    export.run("d", "parquet", settings["export"], build)
    verdicts = {
        v["row_id"]: v["reason"] for v in read_parquet(build / "build/verdicts/d.parquet").to_pylist()
    }
    assert verdicts[rows[0]["row_id"]] == "one_end_token_and_last"
    exported = read_parquet(build / "build/exports/d/parquet/train-00000.parquet").column("id").to_pylist()
    assert rows[0]["row_id"] not in exported
    assert len(exported) == 3


@pytest.mark.parametrize("damage", ["missing", "short", "ending"])
def test_a_broken_table_stops_the_build_by_name(settings, build, damage):
    reconstruct.run("d", settings["reconstruct"], build, Runtime())
    shard = next((build / "build/samples/d").glob("*.parquet"))
    table = pq.read_table(shard)
    if damage == "missing":
        shard.unlink()
    elif damage == "short":
        pq.write_table(table.slice(1), shard)
    else:
        broken = pa.array(["over"] * table.num_rows)
        pq.write_table(table.set_column(table.column_names.index("ending"), "ending", broken), shard)
    with pytest.raises(StageError, match=shard.name):
        validate.run("d", settings["validate"], build, Runtime())


def test_an_unknown_format_lists_what_exists(settings, build):
    with pytest.raises(
        ConfigError, match="unknown format 'nope'; there are: parquet, specforge, speculators"
    ):
        export.run("d", "nope", settings["export"], build)


def test_a_format_that_lacks_its_parts_is_named(monkeypatch):
    import pipeline.exports.specforge as module

    monkeypatch.delattr(module, "row")
    with pytest.raises(ConfigError, match=r"pipeline/exports/specforge\.py: it needs FORM"):
        export.find_format("specforge")


def test_an_unknown_setting_is_named(settings, build):
    with pytest.raises(ConfigError, match=r"d\.reconstruct\.typo"):
        reconstruct.run("d", {**settings["reconstruct"], "typo": 1}, build, Runtime())


def test_validation_split_and_shuffle_keep_every_row(settings, build):
    settings["export"] |= {"validation_share": 0.5, "shuffle_seed": 3, "rows_per_file": 1}
    _all(settings, build)
    card = read_json(build / "build/exports/d/specforge/card.json")
    assert sum(card["files"].values()) == card["rows"] == 4
    splits = {"validation" if in_validation(f"p{number}", 0.5) else "train" for number in range(4)}
    assert {name.split("-")[0] for name in card["files"]} == splits
