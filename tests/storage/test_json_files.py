"""JSON files that anybody may have written."""

from __future__ import annotations

import json
import os

import pytest

from tokenloom.storage import json_files
from tokenloom.storage.json_files import MOST_DEPTH, UnusableJsonError, parse_json, read_json


def nested(depth, opening="[", closing="]"):
    return opening * depth + closing * depth


@pytest.mark.parametrize("text", ["null", "[1, 2.5]", '{"a": {"b": ["[[[[", "\\u00e9"]}}', nested(MOST_DEPTH)])
def test_what_is_json_is_read_as_ever(text, tmp_path):
    assert parse_json(text) == parse_json(text.encode()) == json.loads(text)
    (tmp_path / "x.json").write_text(text)
    assert read_json(tmp_path / "x.json") == json.loads(text)


def test_many_brackets_in_a_text_are_not_deep():
    assert parse_json(json.dumps(["[" * 1000])) == ["[" * 1000]
    assert parse_json(json.dumps([[]] * 1000)) == [[]] * 1000


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe\xfa", "can't decode byte"),
        (nested(MOST_DEPTH + 1), f"expected at most {MOST_DEPTH} arrays and objects in each other, found more"),
        (nested(500, '{"a":', "}").replace(":}", ":1}"), "expected at most 64 arrays and objects in each other"),
        (nested(200_000), "expected at most 64 arrays and objects in each other"),
        (b"[" * 200_000, "expected at most 64 arrays and objects in each other"),
        (b"9" * 5000, "Exceeds the limit"),
    ],
)
def test_what_cannot_be_used_is_one_kind_of_error(data, problem):
    with pytest.raises(UnusableJsonError, match=problem):
        parse_json(data)


def test_memory_that_is_not_there_is_the_same_kind_of_error(monkeypatch):
    def fail(data, *, object_hook):
        raise MemoryError

    monkeypatch.setattr(json_files.json, "loads", fail)
    with pytest.raises(UnusableJsonError, match="its 5 bytes need more memory than there is"):
        parse_json(b"[1,2]")


def test_more_bytes_than_wanted_are_not_parsed(tmp_path):
    (tmp_path / "x.json").write_text("[1, 2, 3]")
    assert read_json(tmp_path / "x.json", most_bytes=9) == [1, 2, 3]
    for parse in (lambda: read_json(tmp_path / "x.json", most_bytes=8), lambda: parse_json("[1, 2, 3]", most_bytes=8)):
        with pytest.raises(UnusableJsonError, match="expected at most 8 bytes, found"):
            parse()


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(UnusableJsonError, match="no regular file"):
        read_json(tmp_path / "x.json")


def test_a_file_that_is_missing_is_told_from_one_that_is_damaged(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "x.json")
    with pytest.raises(IsADirectoryError):
        read_json(tmp_path)


def test_objects_may_become_something_else_as_soon_as_they_are_whole():
    assert parse_json(b'[{"a": {"b": 1}}]', object_hook=lambda members: sorted(members)) == [["a"]]
