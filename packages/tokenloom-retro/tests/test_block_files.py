"""Block files: Megatron's names, and errors for missing or overlapping blocks."""

from __future__ import annotations

import os
import re

import pytest

from tokenloom.errors import StorageError
from tokenloom_retro.block_files import Block, BlockPathMap, planned_blocks


def make_files(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch()
    return os.fspath(folder)


def test_a_range_is_cut_into_blocks():
    bounds = [(0, 10, "q/000-010.hdf5"), (10, 20, "q/010-020.hdf5"), (20, 25, "q/020-025.hdf5")]
    assert planned_blocks("q", 25, 10) == [Block(*bound) for bound in bounds]
    assert planned_blocks("q", 0, 10) == []


def test_a_folder_is_read(tmp_path):
    folder = make_files(tmp_path / "q", "000-100.hdf5", "100-150.hdf5", "notes.txt", ".100-150.hdf5.tmp", ".x.hdf5")
    blocks = BlockPathMap.from_dir(folder, 100)
    assert (str(blocks), len(blocks), blocks.max_idx) == ("2 paths", 2, 150)
    assert (blocks[99], blocks[149]) == (f"{folder}/000-100.hdf5", f"{folder}/100-150.hdf5")
    assert blocks.block_path_map == {0: f"{folder}/000-100.hdf5", 100: f"{folder}/100-150.hdf5"}
    blocks.check(150)
    with pytest.raises(StorageError, match="no block has item 200: none starts at 200"):
        blocks[200]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["000-100", "200-250"], "expected a block that starts at 100 (a block is missing), found `200-250.hdf5`"),
        (["000-150", "100-200"], "expected blocks of 100 items, found `000-150.hdf5`"),
        (["000-100", "050-200"], "expected a block that starts at 100 (blocks overlap), found `050-200.hdf5`"),
        (["000-100", "100-150"], "expected blocks with 200 items in all, found 150"),
    ],
)
def test_missing_or_overlapping_blocks_are_errors(tmp_path, names, problem):
    folder = make_files(tmp_path / "q", *(f"{name}.hdf5" for name in names))
    with pytest.raises(StorageError, match=f"^{re.escape(f'`{folder}`: {problem}')}\n"):
        BlockPathMap.from_dir(folder, 100).check(200)
