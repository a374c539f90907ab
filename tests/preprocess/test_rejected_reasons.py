"""Why records were set aside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenloom.preprocess.rejected_reasons import RejectedReasons, find_rejected


def write_lines(path: Path, *records: object) -> str:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def rejected(number: int, reason: str) -> dict[str, object]:
    return {"file": "in.jsonl", "line": number, "reason": reason, "text": f"record {number}"}


def test_reasons_that_differ_in_numbers_and_names_are_one(tmp_path):
    path = write_lines(
        tmp_path / "x",
        rejected(1, "no key 'text'; found 'a'"),
        rejected(7, "no key 'text'; found 'b'"),
        rejected(9, "column 3 is broken"),
    )
    found = RejectedReasons()
    found.add_file(path)
    assert (found.num_records, found.is_whole) == (3, True)
    first, second = found.ranked()
    assert (first.count, second.count) == (2, 1)
    assert [example.place for example in first.examples] == ["in.jsonl:1", "in.jsonl:7"]
    assert second.examples[0].text == "record 9"


def test_rows_files_and_bytes_have_places(tmp_path):
    path = write_lines(
        tmp_path / "x",
        {"file": "a.parquet", "row": 4, "reason": "one", "base64": "AAAA"},
        {"file": "b.txt", "reason": "two", "text": "t" * 9999},
    )
    found = RejectedReasons()
    found.add_file(path)
    one, two = (each.examples[0] for each in found.ranked())
    assert (one.place, one.text) == ("a.parquet:4", None)
    assert (two.place, len(two.text)) == ("b.txt", 300)


def test_lines_that_are_none_of_ours_are_counted(tmp_path):
    path = write_lines(tmp_path / "x", "{", "[]", "7", {"reason": 3}, "", '"' + "[" * 10_000)
    found = RejectedReasons()
    found.add_file(path)
    assert [(each.count, each.examples[0].reason) for each in found.ranked()] == [
        (6, "lines of the file that are none of ours")
    ]


def test_of_a_large_file_the_beginning_is_read(tmp_path):
    path = write_lines(tmp_path / "x", *(rejected(number, "why") for number in range(100)))
    found = RejectedReasons()
    found.add_file(path, most_bytes=1000)
    assert not found.is_whole
    assert 10 < found.num_records < 20
    assert len(found.ranked()) == 1


def test_reasons_without_end_are_put_together(tmp_path):
    names = ["".join(chr(97 + int(digit)) for digit in f"{number:04}") for number in range(1200)]
    found = RejectedReasons()
    found.add_file(write_lines(tmp_path / "x", *(rejected(1, name) for name in names)))
    assert (len(found.ranked()), found.ranked()[0].count) == (1001, 200)


@pytest.mark.parametrize(
    ("pair", "options"),
    [
        ("out", None),
        ("out_text_document", {"key": "text", "split": None}),
        ("out_train_a_b_sentence", {"key": "a/b", "split": "train", "split_sentences": True}),
    ],
)
def test_the_file_of_a_pair_is_found_by_the_name_of_its_job(tmp_path, pair, options):
    assert find_rejected(f"{tmp_path}/{pair}", options) is None
    (tmp_path / "out.rejected.jsonl").write_text("")
    assert find_rejected(f"{tmp_path}/{pair}", options) == f"{tmp_path}/out.rejected.jsonl"
