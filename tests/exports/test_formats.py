import importlib
import json
import pkgutil

import pytest

import pipeline.exports
from pipeline.records import ExportRow

_ROW = ExportRow(
    row_id="p:0",
    prompt_id="p",
    turn=0,
    input_ids=[163587, 163606, 64, 163607, 163586],
    loss_mask=[0, 0, 1, 1, 1],
    ending="stop",
    fidelity="counted",
    flags=[],
    text="a</think><|im_end|>",
    provider="Test",
    model="m",
)
_FORMATS = sorted(module.name for module in pkgutil.iter_modules(pipeline.exports.__path__))


@pytest.mark.parametrize("name", _FORMATS)
def test_every_format_offers_a_form_and_a_row(name):
    module = importlib.import_module(f"pipeline.exports.{name}")
    assert module.FORM in ("jsonl", "parquet")
    row = module.row(_ROW)
    assert row["input_ids"] == _ROW.input_ids
    assert row["loss_mask"] == _ROW.loss_mask
    assert json.loads(json.dumps(row)) == row


@pytest.mark.parametrize("name", ["specforge", "speculators"])
def test_ids_and_mask_are_plain_ints_of_equal_length(name):
    # SpecForge's prompt_builder refuses 1.0 ("must be an integer, got float") and unequal lengths.
    row = importlib.import_module(f"pipeline.exports.{name}").row(_ROW)
    assert {type(value) for value in row["input_ids"] + row["loss_mask"]} == {int}
    assert len(row["input_ids"]) == len(row["loss_mask"])


def test_speculators_rows_carry_conversation_and_text():
    row = importlib.import_module("pipeline.exports.speculators").row(_ROW)
    assert (row["id"], row["primary_id"], row["text"]) == ("p:0", "p", "a</think><|im_end|>")
    assert row["metadata"]["fidelity"] == "counted"
