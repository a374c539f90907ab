"""Blocks of rows as a job makes them: in order, once, and as files."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
from retro_blocks import SquaresTask, squares_task

from tokenloom.errors import ConfigError
from tokenloom_retro.block_job import make_output
from tokenloom_retro.hdf5 import open_array
from tokenloom_retro.output import OutputManifest

pytestmark = pytest.mark.slow


def make(task: SquaresTask, **options) -> OutputManifest:
    return make_output(task, num_processes=1, **options)


@pytest.fixture
def task(tmp_path: Path) -> SquaresTask:
    return squares_task(tmp_path)


@pytest.fixture
def stopped(task: SquaresTask, tmp_path: Path) -> list[Path]:
    """The parts of a job that failed at its last block."""
    with pytest.raises(ConfigError, match="row 9 cannot be squared"):
        make(replace(task, wrong_at=9))
    return sorted((tmp_path / "out.job").glob("*_0.hdf5"))


def squares(folder: Path) -> list[int]:
    paths = sorted((folder / "out").glob("*.hdf5"))
    return [square for path in paths for square in open_array(str(path), "squares", shape=(None,)).tolist()]


def test_each_block_is_a_file_and_the_folder_of_the_job_goes(task: SquaresTask, tmp_path: Path):
    manifest = make(task)
    assert task.made == ["0-4", "4-8", "8-10"]
    assert sorted(os.listdir(tmp_path)) == ["log", "out"]
    assert sorted(os.listdir(tmp_path / "out")) == ["00-04.hdf5", "04-08.hdf5", "08-10.hdf5", "manifest.json"]
    assert squares(tmp_path) == [row * row for row in range(10)]
    assert manifest.identity == {"power": 2}
    assert manifest.counts == {"numbers": 10}
    assert [record.name for record in manifest.files] == ["00-04.hdf5", "04-08.hdf5", "08-10.hdf5"]
    assert make(task) == manifest
    assert len(task.made) == 3


def test_what_is_made_is_not_made_again(task: SquaresTask, stopped: list[Path], tmp_path: Path):
    assert len(stopped) == 2
    make(task)
    assert squares(tmp_path) == [row * row for row in range(10)]
    assert task.made == ["0-4", "4-8", "8-10"]


def test_a_part_that_is_damaged_or_gone_is_made_again(
    task: SquaresTask, stopped: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    data = stopped[0].read_bytes()
    stopped[0].write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    stopped[1].unlink()
    with caplog.at_level(logging.WARNING):
        make(task)
    assert squares(tmp_path) == [row * row for row in range(10)]
    assert caplog.text.count("is missing, truncated or damaged") == 2
    assert sorted(task.made) == ["0-4", "0-4", "4-8", "4-8", "8-10"]
