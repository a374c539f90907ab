"""Blocks as files of one folder: their names, what they replace, and files of others between them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.retro.blocks import SquaresTask

from tokenloom.errors import OutputExistsError
from tokenloom.retro.block_files import BlockPathMap
from tokenloom.retro.block_job import local_blocks
from tokenloom.retro.block_output import make_block_files
from tokenloom.retro.hdf5 import open_array, write_arrays
from tokenloom.retro.output import OutputManifest


def make(task: SquaresTask, folder: Path, **options) -> OutputManifest:
    return make_block_files(task, os.fspath(folder), runner=local_blocks(num_processes=1), **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def task(tmp_path: Path) -> SquaresTask:
    return SquaresTask(os.fspath(tmp_path / "log"))


def test_each_block_is_a_file(task: SquaresTask, tmp_path: Path):
    folder = tmp_path / "out"
    manifest = make(task, folder)
    assert names(folder) == ["00-04.hdf5", "04-08.hdf5", "08-10.hdf5", "manifest.json"]
    assert open_array(os.fspath(folder / "08-10.hdf5"), "squares", shape=(2,)).tolist() == [64, 81]
    assert manifest.identity == {"factor": 1, "block_size": 4, "num_rows": 10}
    assert manifest.counts == {"numbers": 10}
    assert [record.name for record in manifest.files] == names(folder)[:3]
    assert make(task, folder) == manifest
    assert len(task.made) == 3


def test_no_rows_are_no_files_but_a_manifest(task: SquaresTask, tmp_path: Path):
    manifest = make(replace(task, num_rows=0), tmp_path / "out")
    assert names(tmp_path / "out") == ["manifest.json"]
    assert manifest.files == ()


def test_blocks_of_another_size_go_with_what_they_belong_to(task: SquaresTask, tmp_path: Path):
    folder = tmp_path / "out"
    make(task, folder)
    other = replace(task, block_size=5)
    with pytest.raises(OutputExistsError, match="exists, and was made with other settings"):
        make(other, folder)
    assert names(folder) == ["00-04.hdf5", "04-08.hdf5", "08-10.hdf5", "manifest.json"]
    make(other, folder, overwrite=True)
    assert names(folder) == ["00-05.hdf5", "05-10.hdf5", "manifest.json"]


def test_files_that_something_else_made_are_no_part_of_it(task: SquaresTask, tmp_path: Path):
    folder = tmp_path / "out"
    folder.mkdir()
    write_arrays(os.fspath(folder / "00-07.hdf5"), {"squares": np.arange(7)})  # blocks of another size, and no manifest
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(OutputExistsError, match=r"`.*00-07\.hdf5` exists, and was made .* by something else"):
        make(task, folder)
    assert names(folder) == ["00-07.hdf5", "notes.txt"]
    make(task, folder, overwrite=True)
    assert names(folder) == ["00-04.hdf5", "04-08.hdf5", "08-10.hdf5", "manifest.json", "notes.txt"]
    BlockPathMap.from_dir(os.fspath(folder), 4).check(10)


def test_what_is_missing_of_it_is_made_again_when_it_may_be_replaced(task: SquaresTask, tmp_path: Path):
    folder = tmp_path / "out"
    make(task, folder)
    (folder / "04-08.hdf5").unlink()
    with pytest.raises(OutputExistsError):
        make(task, folder)
    make(task, folder, overwrite=True)
    assert names(folder) == ["00-04.hdf5", "04-08.hdf5", "08-10.hdf5", "manifest.json"]
    assert not (tmp_path / "out.job").exists()
