"""A job that knows no corpus, in this process and in several, killed, damaged, refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.jobs.numbers import NumberBook, NumberPlan, sum_of

from tokenloom.errors import ConfigError, WorkerError
from tokenloom.preprocess.processes import local_runner
from tokenloom.preprocess.sharded import Runner


def runner(num_processes: int) -> Runner:
    return local_runner(most_processes=8, num_processes=num_processes, num_workers=1)


@pytest.mark.parametrize("num_processes", [1, 2])
def test_all_shards_are_done_and_the_folder_goes(tmp_path: Path, num_processes: int):
    book = NumberBook()
    assert sum_of(NumberPlan(5), tmp_path / "job", runner(num_processes), book=book) == 0 + 1 + 4 + 9 + 16
    assert set(book.done) == {0, 1, 2, 3, 4}  # each process tells of those that others did, too
    assert set(map(str, book.told.values())) == {"{'written': 1}"}
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_killed_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    plan = NumberPlan(3, folder=str(tmp_path), dies_at=1, deaths=2)
    with caplog.at_level(logging.WARNING):
        assert sum_of(plan, tmp_path / "job", runner(2)) == 5
    assert "a process that worked on shard 1 (the number 1) died (signal 9)" in caplog.text


def test_a_shard_that_kills_everybody_ends_the_job_and_keeps_the_others(tmp_path: Path):
    plan = NumberPlan(3, folder=str(tmp_path), dies_at=2, deaths=100)
    with pytest.raises(WorkerError, match=r"shard 2 \(the number 2\) died \(signal 9\), as did 2 before it"):
        sum_of(plan, tmp_path / "job", runner(2))
    assert {path.name for path in (tmp_path / "job").glob("*.json")} == {"job.json", f"{0:024x}.json", f"{1:024x}.json"}
    (tmp_path / "deaths").write_text("x" * 100)
    book = NumberBook()
    assert sum_of(plan, tmp_path / "job", runner(1), book=book) == 5


@pytest.mark.parametrize("num_processes", [1, 2])
def test_what_a_shard_raises_reaches_the_caller_with_its_hint(tmp_path: Path, num_processes: int):
    with pytest.raises(ConfigError, match="the number 1 cannot be squared") as caught:
        sum_of(NumberPlan(2, wrong_at=1), tmp_path / "job", runner(num_processes))
    assert caught.value.hint == "leave it out"


def test_a_damaged_part_is_done_again(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    plan, path = NumberPlan(3), tmp_path / "job"
    with pytest.raises(ConfigError):
        sum_of(NumberPlan(3, wrong_at=2), path, runner(1))
    part = path / f"{1:024x}_0.bin"
    assert part.read_text() == "1"
    part.write_text("7")
    with caplog.at_level(logging.WARNING):
        assert sum_of(plan, path, runner(1)) == 5
    assert "shard 1 is done again: its part is not what was written" in caplog.text


@pytest.mark.parametrize("setting", ["num_processes", "num_workers"])
def test_a_number_below_one_is_refused(setting: str):
    settings = {"num_processes": 1, "num_workers": 1, setting: 0}
    with pytest.raises(ConfigError, match="of at least 1, found"):
        local_runner(most_processes=3, **settings)
