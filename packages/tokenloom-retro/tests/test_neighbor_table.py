"""Neighbors of chunks, from the files of blocks."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
from retro_projects import write_neighbors

from tokenloom.errors import DatasetFormatError
from tokenloom_retro.block_files import BlockPathMap
from tokenloom_retro.neighbor_table import NeighborTable

NEIGHBORS = np.array([[3, 1, 2], [0, -1, -1], [5, 6, 7], [-1, -1, -1], [7, 0, 4]], dtype=np.int64)


def open_table(folder, *, block_size=2, num_neighbors=2, num_database_chunks=8):
    blocks = BlockPathMap.from_dir(os.fspath(folder), block_size)
    return NeighborTable(blocks, num_neighbors=num_neighbors, num_database_chunks=num_database_chunks)


@pytest.mark.parametrize("number", [5, -1])
def test_chunks_without_neighbors_are_errors(tmp_path, number):
    write_neighbors(tmp_path / "train_x", NEIGHBORS, block_size=2)
    with pytest.raises(DatasetFormatError, match=f"chunk {number} out of range: 5 chunks have neighbors\n"):
        open_table(tmp_path / "train_x").rows([0, number])


@pytest.mark.parametrize("wrong", [8, 2**40, -2])
def test_neighbors_outside_the_database_are_errors(tmp_path, wrong):
    neighbors = NEIGHBORS.copy()
    neighbors[3] = [2, wrong, 1]
    folder = tmp_path / "train_x"
    write_neighbors(folder, neighbors, block_size=2)
    table = open_table(folder)
    table.rows([0, 1, 2, 4])
    message = f"`{folder}/00002-00004.hdf5`: neighbors [2, {wrong}] of chunk 3 out of range"
    with pytest.raises(DatasetFormatError, match=f"^{re.escape(message)}: the database has 8 chunks\n"):
        table.rows([0, 3])
