"""Blocks made by whoever is free: what goes on, what is made again, what is refused."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.retro.blocks import SquaresTask

from tokenloom.errors import ConfigError
from tokenloom.jobs.folder import JobFolder
from tokenloom.retro.block_job import MadeBlock, differing_blocks, local_blocks, make_blocks
from tokenloom.retro.block_plan import BlockPlan, crc32_of_arrays
from tokenloom.retro.hdf5 import open_array


def squares(made: Sequence[MadeBlock]) -> list[int]:
    return [square for block in made for square in open_array(block.path, "squares", shape=(None,)).tolist()]


def make(task: SquaresTask, folder: Path, **options) -> list[int]:
    settings = {"finished": lambda: None, "runner": local_blocks(num_processes=1)}
    return make_blocks(task, os.fspath(folder / "out.job"), squares, **(settings | options))


@pytest.fixture
def task(tmp_path: Path) -> SquaresTask:
    return SquaresTask(os.fspath(tmp_path / "log"))


@pytest.fixture
def stopped(task: SquaresTask, tmp_path: Path) -> list[Path]:
    """The parts of a job that failed at its last block."""
    with pytest.raises(ConfigError, match="row 9 cannot be squared"):
        make(replace(task, wrong_at=9), tmp_path)
    return [tmp_path / "out.job" / f"{block.key}_0.hdf5" for block in BlockPlan(task).shards[:2]]


SQUARES = [row * row for row in range(10)]


def test_blocks_are_put_together_in_order_and_the_folder_goes(task: SquaresTask, tmp_path: Path):
    assert make(task, tmp_path) == SQUARES
    assert task.made == ["0-4", "4-8", "8-10"]
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_task_without_rows(task: SquaresTask, tmp_path: Path):
    assert make(replace(task, num_rows=0), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_what_is_made_is_not_made_again(task: SquaresTask, stopped: list[Path], tmp_path: Path):
    assert all(path.exists() for path in stopped)
    assert make(task, tmp_path) == SQUARES
    assert task.made == ["0-4", "4-8", "8-10"]
    assert make(task, tmp_path, finished=lambda: [1]) == [1]
    assert len(task.made) == 3


def test_a_part_that_is_truncated_or_gone_is_made_again(
    task: SquaresTask, stopped: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    stopped[0].write_bytes(stopped[0].read_bytes()[:-1])
    stopped[1].unlink()
    with caplog.at_level(logging.WARNING):
        assert make(task, tmp_path) == SQUARES
    assert caplog.text.count("is missing or truncated") == 2
    assert sorted(task.made) == ["0-4", "0-4", "4-8", "4-8", "8-10"]


def test_a_report_that_is_damaged_or_of_another_block_does_not_count(
    task: SquaresTask, stopped: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    first, second = (path.with_name(path.name.replace("_0.hdf5", ".json")) for path in stopped)
    shutil.copy(stopped[0], stopped[1])  # both are of four numbers, and files of one size
    shutil.copy(first, second)
    first.write_text("{}")
    with caplog.at_level(logging.WARNING):
        assert make(task, tmp_path) == SQUARES
    assert "is the report of another block" in caplog.text
    assert "is not the report of a block" in caplog.text


def test_bytes_that_another_machine_wrote_are_compared(
    task: SquaresTask, stopped: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    for part in stopped:
        report = part.with_name(part.name.replace("_0.hdf5", ".json"))
        report.write_text(report.read_text().replace('"boot_id": "', '"boot_id": "not '))
    part = stopped[1]
    part.write_bytes(part.read_bytes()[:-1] + b"\xff")
    with caplog.at_level(logging.WARNING):
        assert make(task, tmp_path) == SQUARES
    assert "shard 1 is done again" in caplog.text
    assert task.made.count("0-4") == 1
    assert task.made.count("4-8") == 2


def test_other_settings_do_not_go_on_with_it_unless_it_is_given_up(
    task: SquaresTask, stopped: list[Path], tmp_path: Path
):
    other = replace(task, factor=2)
    with pytest.raises(ConfigError, match="unfinished job with other settings: factor was 1, and is 2"):
        make(other, tmp_path)
    assert all(path.exists() for path in stopped)
    assert make(other, tmp_path, restart=True) == [2 * square for square in SQUARES]


def test_other_settings_are_refused_while_somebody_is_at_work(task: SquaresTask, tmp_path: Path):
    folder = tmp_path / "out.job"
    with JobFolder(os.fspath(folder), BlockPlan(task)).joined():
        with pytest.raises(ConfigError, match=r"another process works on another job in .*: factor was 1, and is 2"):
            make(replace(task, factor=2), tmp_path)
        with pytest.raises(ConfigError, match="another process is working on this job"):
            make(task, tmp_path, restart=True)
        assert make(task, tmp_path) == SQUARES  # the same may be shared


def test_blocks_that_come_out_otherwise_are_found(task: SquaresTask):
    right = [crc32_of_arrays({"squares": np.arange(block.start, block.stop) ** 2}) for block in BlockPlan(task).shards]
    assert differing_blocks(task, right, fraction=1.0) == []
    found = differing_blocks(replace(task, factor=3), right, fraction=1.0)
    assert [(block.start, block.stop) for block in found] == [(0, 4), (4, 8), (8, 10)]
    chosen = differing_blocks(replace(task, factor=3), right, fraction=0.5, seed=4)
    assert len(chosen) == 2
    assert chosen == differing_blocks(replace(task, factor=3), right, fraction=0.5, seed=4)
    assert len(differing_blocks(replace(task, factor=3), right, fraction=1e-9)) == 1
    assert differing_blocks(replace(task, num_rows=0), [], fraction=1.0) == []


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, float("nan")])
def test_a_fraction_out_of_range_is_refused(task: SquaresTask, fraction: float):
    with pytest.raises(ConfigError, match="expected a fraction above 0 and at most 1"):
        differing_blocks(task, [1, 2, 3], fraction=fraction)
