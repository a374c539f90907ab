"""Files of blocks: named as the reference names them, and complete, or told why not."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import ConfigError, StorageError
from tokenloom.retro.block_files import Block, BlockPathMap, planned_blocks


def make_files(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch()
    return os.fspath(folder)


def test_a_range_is_cut_into_blocks():
    assert planned_blocks("q", 25, 10) == [
        Block(0, 10, "q/000-010.hdf5"),
        Block(10, 20, "q/010-020.hdf5"),
        Block(20, 25, "q/020-025.hdf5"),
    ]
    assert planned_blocks("q", 0, 10) == []


@pytest.mark.parametrize(
    ("num_items", "name"),
    [(1, "0-1"), (2, "00-02"), (10, "00-10"), (100, "000-100"), (101, "0000-0101"), (1000, "0000-1000")],
)
def test_names_have_the_zeros_of_the_reference(num_items, name):
    assert planned_blocks("q", num_items, num_items)[0].path == f"q/{name}.hdf5"


@given(num_items=st.integers(1, 2000), block_size=st.integers(1, 300))
def test_planned_blocks_are_complete(num_items, block_size):
    blocks = planned_blocks("q", num_items, block_size)
    found = BlockPathMap([block.path for block in blocks], block_size)
    found.check(num_items)
    assert list(found.blocks()) == blocks
    assert sorted(block.path for block in blocks) == [block.path for block in blocks]
    for item in {0, num_items // 2, num_items - 1}:
        assert found[item] == next(block.path for block in blocks if block.start <= item < block.stop)


def test_a_folder_is_read(tmp_path):
    folder = make_files(tmp_path / "q", "000-100.hdf5", "100-150.hdf5", "notes.txt", ".100-150.hdf5.tmp", ".x.hdf5")
    blocks = BlockPathMap.from_dir(folder, 100)
    assert (str(blocks), len(blocks), blocks.max_idx, blocks[99], blocks[149]) == (
        "2 paths",
        2,
        150,
        f"{folder}/000-100.hdf5",
        f"{folder}/100-150.hdf5",
    )
    assert blocks.block_path_map == {0: f"{folder}/000-100.hdf5", 100: f"{folder}/100-150.hdf5"}
    blocks.check(150)
    with pytest.raises(StorageError, match=r"expected a block from 200 on, which has item 200, found none"):
        blocks[200]
    assert BlockPathMap.from_dir(folder, 100, ext="txt.gz").max_idx == 0


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["100-200"], "expected a block from 0 on (a block is missing), found `100-200.hdf5`"),
        (["000-100", "200-250"], "expected a block from 100 on (a block is missing), found `200-250.hdf5`"),
        (["000-150", "100-200"], "expected blocks of 100 items, found `000-150.hdf5`"),
        (["000-050", "050-100"], "expected blocks of 100 items, found `000-050.hdf5`"),
        (["000-100", "050-200"], "expected a block from 100 on (blocks overlap), found `050-200.hdf5`"),
        (["000-200"], "expected blocks of 100 items, found `000-200.hdf5`"),
        (["000-100", "0000-0100"], "expected blocks beside each other, found `000-100.hdf5` and `0000-0100.hdf5`"),
        (["000-100", "100-150"], "expected blocks of 200 items, found those of 150"),
    ],
)
def test_blocks_that_are_missing_or_overlap_are_told(tmp_path, names, said):
    folder = make_files(tmp_path / "q", *(f"{name}.hdf5" for name in names))
    with pytest.raises(StorageError, match=f"^{re.escape(f'`{folder}`: {said}')}\n"):
        BlockPathMap.from_dir(folder, 100).check(200)


@pytest.mark.parametrize("name", ["train.hdf5", "0-1-2.hdf5", "5-5.hdf5", "9-5.hdf5", "-5.hdf5", "0x1-0x2.hdf5"])
def test_files_of_other_names_are_told(tmp_path, name):
    folder = make_files(tmp_path / "q", "000-100.hdf5", name)
    with pytest.raises(StorageError, match=re.escape(f"to be called `START-STOP`, found `{folder}/{name}`")):
        BlockPathMap.from_dir(folder, 100)


def test_wrong_settings_are_told(tmp_path):
    with pytest.raises(ConfigError, match=r"expected a folder of blocks at `.*/absent`, found none"):
        BlockPathMap.from_dir(os.fspath(tmp_path / "absent"), 100)
    with pytest.raises(ConfigError, match="expected a block size above 0, found 0"):
        BlockPathMap([], 0)
