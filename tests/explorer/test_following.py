"""A file that grows."""

from __future__ import annotations

import json
import os

import pytest

from tokenloom.errors import StorageError
from tokenloom.explorer import following
from tokenloom.explorer.following import FollowedFile


def steps_of(found) -> list[int]:
    return [line["step"] for line in found.lines]


def test_what_is_added_is_read_and_a_line_counts_once_it_has_ended(tmp_path):
    path = tmp_path / "sources.jsonl"
    followed = FollowedFile(str(path))
    assert (followed.look().lines, followed.look().changed) == ((), None)  # not there yet
    with open(path, "a") as stream:
        stream.write('{"step": 1}\n{"step": 2')
        stream.flush()
        assert steps_of(followed.look()) == [1]
        stream.write('}\n{"step": 3}\n')
        stream.flush()
        assert steps_of(followed.look()) == [1, 2, 3]
    assert steps_of(followed.look()) == [1, 2, 3]
    assert followed.look().changed == os.stat(path).st_mtime


def test_lines_that_are_no_reports_are_counted_and_left_out(tmp_path):
    path = tmp_path / "sources.jsonl"
    path.write_bytes(b'\n[1]\nnonsense\n\xff\xfe\n{"step": 1}\n' + b"[" * 5000 + b"\n")
    found = FollowedFile(str(path)).look()
    assert (steps_of(found), found.num_skipped) == ([1], 4)


def test_a_file_that_takes_its_place_or_is_cut_is_read_anew(tmp_path):
    path = tmp_path / "sources.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    followed = FollowedFile(str(path))
    assert steps_of(followed.look()) == [1, 2]
    path.write_text('{"step": 7}\n')
    assert steps_of(followed.look()) == [7]
    other = tmp_path / "other"
    other.write_text('{"step": 8}\n{"step": 9}\n')
    os.replace(other, path)
    assert steps_of(followed.look()) == [8, 9]
    path.unlink()
    assert followed.look().lines == ()


def test_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "MOST_LINES", 3)
    monkeypatch.setattr(following, "_MOST_BYTES", 200)
    path = tmp_path / "sources.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1000)))
    followed = FollowedFile(str(path))
    found = followed.look()
    assert (steps_of(found), found.is_whole) == ([997, 998, 999], False)
    with open(path, "a") as stream:
        stream.write("x" * 1000)
    for _ in range(9):
        followed.look()
    with open(path, "a") as stream:
        stream.write('\n{"step": 1000}\n')
    assert steps_of(followed.look())[-1] == 1000


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(StorageError, match="cannot read"):
        FollowedFile(str(tmp_path)).look()
