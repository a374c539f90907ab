"""What works in a folder."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from tokenloom.doctor import disk_trial
from tokenloom.doctor.disk_trial import try_folder


def test_all_works_in_a_usual_folder_and_nothing_is_left(tmp_path):
    found = try_folder(str(tmp_path))
    assert (found.is_writable, found.reason, found.failed) == (True, None, {})
    assert found.num_free_bytes > 0
    assert os.listdir(tmp_path) == []


def test_a_folder_that_takes_no_files_says_why():
    found = try_folder("/proc")  # also for root
    assert not found.is_writable
    assert found.reason


def test_locks_that_do_not_work_are_named(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert try_folder(str(tmp_path)).failed == {"locks (flock)": "No locks available"}
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    assert try_folder(str(tmp_path)).failed == {"locks (flock)": "two hold one lock"}
    assert os.listdir(tmp_path) == []


def test_a_trial_that_fails_does_not_take_the_others_away(tmp_path, monkeypatch):
    def fail(_: str) -> None:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setitem(disk_trial._TRIALS, "mapping", fail)
    monkeypatch.setitem(disk_trial._TRIALS, "renaming over a file", fail)
    assert try_folder(str(tmp_path)).failed == dict.fromkeys(("mapping", "renaming over a file"), "No such device")


def test_a_folder_that_is_gone_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        try_folder(str(tmp_path / "gone"))
