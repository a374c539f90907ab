from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.faults import dies_at
from tests.jobs.numbers import NumberPlan

from tokenloom.errors import ConfigError
from tokenloom.preprocess.folder import FolderGoneError, JobFolder

PLAN = NumberPlan(3)


def folder_at(path: Path, plan: NumberPlan = PLAN) -> JobFolder:
    return JobFolder(os.fspath(path / "job"), plan)


def do(folder: JobFolder, number: int) -> None:
    PLAN.square(PLAN.shards[number], folder.part_prefix(PLAN.shards[number]))


def test_a_shard_is_for_one_process_until_it_lets_go(tmp_path: Path):
    one, two = folder_at(tmp_path), folder_at(tmp_path)
    shard = PLAN.shards[0]
    with one.joined():
        with two.joined():
            pass
        assert sorted(os.listdir(one.path)) == ["job.json", "job.lock"]
    assert list(tmp_path.iterdir()) == []  # the last member removes a folder in which nothing is done
    with one.joined(), two.joined():
        with one.claimed(shard, wait=False) as is_ours, two.claimed(shard, wait=False) as is_theirs:
            assert (is_ours, is_theirs) == (True, False)
        with two.claimed(shard, wait=False) as is_theirs:
            assert is_theirs
            do(two, 0)
        with one.claimed(shard, wait=True) as is_ours:
            assert not is_ours
        assert one.report(shard) == {"value": 0}
        one.forget(shard)
        with one.claimed(shard, wait=False) as is_ours:
            assert is_ours


def test_whoever_is_late_finds_the_folder_gone(tmp_path: Path):
    folder, late = folder_at(tmp_path), folder_at(tmp_path)
    with pytest.raises(FolderGoneError), late.joined(makes=False):
        raise AssertionError
    with folder.joined(), late.joined():
        folder.remove()
        with pytest.raises(FolderGoneError), late.claimed(PLAN.shards[0], wait=True):
            raise AssertionError
        assert late.is_gone
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_part_of_a_job_is_neither_joined_nor_removed(tmp_path: Path):
    folder = folder_at(tmp_path)
    with folder.joined():
        do(folder, 0)
        (tmp_path / "job" / "mine.txt").write_text("mine")
        folder.remove()
    assert os.listdir(folder.path) == ["mine.txt"]
    with pytest.raises(ConfigError, match=r"cannot be a job folder: it contains `mine\.txt`"):
        folder_at(tmp_path).joined().__enter__()


def test_other_settings_go_on_with_nothing_and_are_refused_where_something_is_done(tmp_path: Path):
    folder, other = folder_at(tmp_path), folder_at(tmp_path, NumberPlan(3, settings="product"))
    with folder.joined():
        with pytest.raises(ConfigError, match="another process is running a different job"):
            other.joined().__enter__()
        with pytest.raises(ConfigError, match="another process is running this job"):
            other.restart()
        do(folder, 0)
    with pytest.raises(ConfigError, match="unfinished job with other settings: what was 'sum', is 'product'"):
        other.joined().__enter__()
    with pytest.raises(ConfigError, match="unfinished job with other inputs: 1 of its inputs are missing"):
        folder_at(tmp_path, NumberPlan(2)).joined().__enter__()
    other.restart()
    with other.joined():
        assert sorted(os.listdir(other.path)) == ["job.json", "job.lock"]


def test_a_death_at_any_call_keeps_what_is_done_and_nobody_from_going_on(tmp_path: Path):
    number = 0
    while True:
        at = tmp_path / str(number)
        at.mkdir()

        def work(at: Path = at) -> None:
            folder = folder_at(at)
            with folder.joined():
                for shard in PLAN.shards[:2]:
                    with folder.claimed(shard, wait=True):
                        do(folder, shard.number)
                folder.remove()

        died = dies_at(at, number, work)
        folder = folder_at(at)
        with folder.joined():
            for shard in PLAN.shards:
                with folder.claimed(shard, wait=True) as is_ours:
                    assert is_ours == (folder.report(shard) is None)
                    if is_ours:
                        do(folder, shard.number)
            assert [folder.report(shard) for shard in PLAN.shards] == [{"value": 0}, {"value": 1}, {"value": 4}]
            folder.remove()
        assert list(at.iterdir()) == []
        if not died:
            break
        number += 1
    assert number > 5
