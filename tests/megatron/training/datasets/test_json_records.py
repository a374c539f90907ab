"""`tokenloom.megatron.training.datasets.utils`."""

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
def test_json_records(tmp_path, text, records):
    (tmp_path / "file").write_text(text)
    found = JsonRecords(str(tmp_path / "file"))
    assert list(found) == list(pickle.loads(pickle.dumps(found))) == records
    assert (len(found), found.column_names) == (len(records), [key for record in records for key in record])
    assert [found[k] for k in range(-len(records), 0)] == records


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"a": 1}\n{"a"\n', "record 1 is not JSON"), ("17\n", "record 0 must be a JSON object, got int")],
)
def test_invalid_records(tmp_path, text, message):
    (tmp_path / "file").write_text(text)
    with pytest.raises(InputError, match=f"file`: .*{message}"):
        list(JsonRecords(str(tmp_path / "file")))


def test_parquet_records(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["one", None], "n": [1, 2]}), tmp_path / "rows.parquet")
    found = ParquetRecords(str(tmp_path / "rows.parquet"))
    assert found.column_names == ["text", "n"]
    assert list(pickle.loads(pickle.dumps(found))) == [{"text": "one", "n": 1}, {"text": None, "n": 2}]


def test_a_hub_dataset_needs_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match="`datasets` is not installed"):
        VarlenLowLevelDataset("someone/texts")
