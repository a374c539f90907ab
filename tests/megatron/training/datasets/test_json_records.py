"""`tokenloom.megatron.training.datasets.utils`: the records of files by number."""

from __future__ import annotations

import pickle
import sys

import pytest

from tokenloom.errors import InputError, MissingExtraError
from tokenloom.megatron.training.datasets.utils import JsonRecords, ParquetRecords
from tokenloom.megatron.training.datasets.varlen_dataset import VarlenLowLevelDataset


@pytest.mark.parametrize(
    ("text", "records"),
    [
        ('{"a": 1}\n{"b": 2}\n', [{"a": 1}, {"b": 2}]),
        ('\n{"a": 1}\r\n \n\n{"b": "\\n"}', [{"a": 1}, {"b": "\n"}]),
        ('[{"a": 1},\n {"b": 2}]\n', [{"a": 1}, {"b": 2}]),
        ("", []),
        ("{}", [{}]),
    ],
)
def test_lines_that_are_not_blank_are_records(tmp_path, text, records):
    (tmp_path / "file").write_text(text)
    found = JsonRecords(str(tmp_path / "file"))
    assert list(found) == list(pickle.loads(pickle.dumps(found))) == records
    assert len(found) == len(records)
    assert found.column_names == [key for record in records for key in record]
    if records:
        assert found[-1] == records[-1]
    with pytest.raises(IndexError):
        found[len(records)]


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"a": 1}\n{"a"\n', "record 1 is not JSON"), ("17\n", "record 0 must be a JSON object, got int")],
)
def test_a_record_that_is_none_is_named(tmp_path, text, message):
    (tmp_path / "file").write_text(text)
    with pytest.raises(InputError, match=f"file`: .*{message}"):
        list(JsonRecords(str(tmp_path / "file")))


def test_rows_of_a_table(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["one", None], "n": [1, 2]}), tmp_path / "rows.parquet")
    found = ParquetRecords(str(tmp_path / "rows.parquet"))
    assert found.column_names == ["text", "n"]
    assert list(pickle.loads(pickle.dumps(found))) == [{"text": "one", "n": 1}, {"text": None, "n": 2}]


def test_a_dataset_of_the_hub_needs_its_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match="`datasets` is not installed"):
        VarlenLowLevelDataset("someone/texts")
