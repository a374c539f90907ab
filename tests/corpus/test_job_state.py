"""How far a job is, for those who look on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.corpus.jobs import preprocess
from tests.corpus.shard_reports import key_of, write_report

from tokenloom import load_tokenizer
from tokenloom.errors import DatasetNotFoundError, InputError, StorageError
from tokenloom.machine import boot_id
from tokenloom.preprocess.job_state import SILENT_SECONDS, job_state

NOW = 10_000.0
GONE = 2**22 + 1
"""Number that no process has."""


def add_lock(folder: Path, name: str, machine: str, process: int, *, touched: float) -> None:
    path = folder / f"{name}.lock"
    path.write_text(f"{machine} {process}")
    os.utime(path, (touched, touched))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    description = {"settings": {}, "inputs": "", "files": ["a", "b"], "num_shards": 5}
    (tmp_path / "job.json").write_text(json.dumps(description))
    (tmp_path / "job.lock").write_text("")
    return tmp_path


def test_shards_are_counted_and_the_rest_is_estimated(folder: Path):
    write_report(folder, 1, written=NOW - 30)
    write_report(folder, 2, written=NOW - 20)
    add_lock(folder, key_of(2), "elsewhere", 7, touched=NOW - 20)  # of a shard that is done
    add_lock(folder, key_of(3), "elsewhere", 8, touched=NOW - 1)
    found = job_state(str(folder), now=NOW)
    assert (found.num_files, found.num_shards, found.num_shards_done) == (2, 5, 2)
    counts = found.num_documents, found.num_tokens, found.num_rejected, found.num_blank_lines, found.num_text_bytes
    assert counts == (6, 80, 2, 2, 200)
    assert (found.began, found.ended, found.busy_seconds) == (NOW - 40, NOW - 20, 20.0)
    assert (found.tokens_per_second, found.seconds_left) == (2.0, 60.0)
    assert [(each.process, each.shard, each.silent_seconds) for each in found.workers] == [(8, key_of(3), 1.0)]
    assert (found.is_alive, found.is_assembling, found.machines) == (True, False, ("elsewhere",))


def test_where_nobody_works_no_time_is_told(folder: Path):
    write_report(folder, 1, written=NOW - 30)
    add_lock(folder, key_of(3), "elsewhere", 8, touched=NOW - SILENT_SECONDS - 1)
    add_lock(folder, key_of(4), boot_id(), GONE, touched=NOW)
    found = job_state(str(folder), now=NOW)
    assert [each.is_alive for each in found.workers] == [False, False]
    assert (found.is_alive, found.tokens_per_second, found.seconds_left) == (False, None, None)


def test_a_folder_that_is_gone_is_named(folder: Path):
    (folder / "job.json").unlink()
    with pytest.raises(DatasetNotFoundError, match=r"folder of a job.*\nhint: the job is done"):
        job_state(str(folder))
    (folder / "job.json").write_text("{")
    with pytest.raises(StorageError, match="cannot read"):
        job_state(str(folder))


def test_a_job_that_failed_tells_how_far_it_came_and_looking_leaves_no_trace(tmp_path: Path):
    lines = [json.dumps({"text": "word " * 40}) + "\n" for _ in range(40)]
    (tmp_path / "in.jsonl").write_text("".join(lines) + "{broken\n")
    with pytest.raises(InputError):
        preprocess(tmp_path / "in.jsonl", tmp_path / "out", load_tokenizer("byte"), shard_bytes=2000, num_workers=1)
    folder = tmp_path / "out.job"
    before = sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())
    found = job_state(str(folder))
    assert found.num_shards is not None
    assert 0 < found.num_shards_done < found.num_shards
    assert found.num_tokens == 200 * found.num_documents
    assert not found.is_alive or found.workers[0].process == os.getpid()
    assert sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir()) == before
