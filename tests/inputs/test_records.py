"""Records one by one, and what is said of bad ones."""

from __future__ import annotations

import pytest

from tokenloom.inputs.records import BadLine, NumberedRecord, UnusableLineError, data_of, kind_of


@pytest.mark.parametrize(
    ("value", "kind"),
    [({}, "an object"), ([], "an array"), ("", "a string"), (True, "a boolean"), (None, "null"), (1.5, "a number")],
)
def test_values_in_words(value: object, kind: str):
    assert kind_of(value) == kind


def test_where_a_bad_record_is():
    assert BadLine(path="a.csv", unit="row", line=3, reason="", data=b"").place == "`a.csv` row 3"
    assert BadLine(path="a.txt", unit="file", line=1, reason="", data=b"").place == "`a.txt`"


def test_the_bytes_of_a_row_are_json():
    assert data_of(NumberedRecord(1, {"text": "é"})) == '{"text": "é"}'.encode()
    assert data_of(NumberedRecord(1, {"text": "é"}, b"text,more")) == b"text,more"
    assert data_of(NumberedRecord(1, UnusableLineError("why"))) == b""
