"""What programs record: whole lines, and nothing unless they are asked to."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError
from tokenloom.testing import record_batch, record_checkpoint, recording
from tokenloom.testing.recording import RecordReader, RecordWriter


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv(recording.FILE, str(tmp_path / "events"))
    return tmp_path / "events"


def test_nothing_is_recorded_unless_asked(monkeypatch, tmp_path):
    monkeypatch.delenv(recording.FILE, raising=False)
    record_batch(object())
    record_checkpoint()


def test_batches_and_checkpoints_are_events(path):
    record_batch({"a": [1, 2], "step": 3})
    record_checkpoint()
    record_batch([{"a": 1}], samples="list")
    kinds = [(kind, value if kind != "batch" else len(value)) for kind, value in RecordReader(str(path)).events()]
    assert kinds == [("left out", ["['step']"]), ("batch", 2), ("checkpoint", 1), ("batch", 1)]


@pytest.mark.parametrize(("name", "limit", "count"), [(recording.STOP_AFTER, "2", 2), (recording.STOP_SAMPLES, "5", 3)])
def test_a_rank_stops_where_it_is_to_be_killed(path, monkeypatch, name, limit, count):
    class Waiting(Exception):
        pass

    def wait(parent):
        raise Waiting

    monkeypatch.setenv(name, limit)
    monkeypatch.setattr(recording, "wait_to_be_killed", wait)
    for _ in range(count - 1):
        record_batch(["a", "b"])
    with pytest.raises(Waiting):
        record_batch(["a", "b"])
    assert [kind for kind, _ in RecordReader(str(path)).events()] == [*["batch"] * count, "stopped"]


def test_what_has_no_fingerprint_is_refused(path):
    with pytest.raises(ConfigError, match=r"found builtins\.object as `batch`"):
        record_batch(object())


def test_a_line_is_read_once_it_is_whole(tmp_path):
    reader = RecordReader(str(tmp_path / "events"))
    assert reader.events() == []
    assert not reader.has_more()
    RecordWriter(str(tmp_path / "events")).write("batch", [["f", "words"]])
    with open(tmp_path / "events", "ab") as stream:
        stream.write(b'["batch", [["g", ')
    assert reader.events() == [("batch", [["f", "words"]])]
    assert reader.events() == []
    assert not reader.has_more()
    with open(tmp_path / "events", "ab") as stream:
        stream.write(b'"words"]]]\n')
    assert reader.has_more()
    assert reader.events() == [("batch", [["g", "words"]])]
