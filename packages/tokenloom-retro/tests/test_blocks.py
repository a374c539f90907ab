"""Blocks of rows as a job makes them: in order, once, and as files."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from retro_blocks import SquaresTask

from tokenloom.errors import ConfigError
from tokenloom_retro.block_job import MadeBlock, local_blocks, make_blocks
from tokenloom_retro.block_output import make_block_files
from tokenloom_retro.block_plan import BlockPlan
from tokenloom_retro.hdf5 import open_array
from tokenloom_retro.output import OutputManifest

pytestmark = pytest.mark.slow


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


def make_files(task: SquaresTask, folder: Path, **options) -> OutputManifest:
    return make_block_files(task, os.fspath(folder), runner=local_blocks(num_processes=1), **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_each_block_is_a_file(task: SquaresTask, tmp_path: Path):
    folder = tmp_path / "out"
    manifest = make_files(task, folder)
    assert names(folder) == ["00-04.hdf5", "04-08.hdf5", "08-10.hdf5", "manifest.json"]
    assert open_array(os.fspath(folder / "08-10.hdf5"), "squares", shape=(2,)).tolist() == [64, 81]
    assert manifest.identity == {"factor": 1, "block_size": 4, "num_rows": 10}
    assert manifest.counts == {"numbers": 10}
    assert [record.name for record in manifest.files] == names(folder)[:3]
    assert make_files(task, folder) == manifest
    assert len(task.made) == 3
