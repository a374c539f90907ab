"""Why records were set aside."""

from __future__ import annotations

import json
from pathlib import Path

from tokenloom.preprocess.rejected_reasons import RejectedReasons


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


def test_of_a_large_file_the_beginning_is_read(tmp_path):
    path = write_lines(tmp_path / "x", *(rejected(number, "why") for number in range(100)))
    found = RejectedReasons()
    found.add_file(path, most_bytes=1000)
    assert not found.is_whole
    assert 10 < found.num_records < 20
    assert len(found.ranked()) == 1
