"""Arrays of HDF5 files: contiguous ones are mapped, and damaged ones are errors."""

from __future__ import annotations

import os
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from tokenloom.errors import StorageError
from tokenloom_retro.hdf5 import open_array

ROWS = np.arange(20, dtype=np.int64).reshape(4, 5)


@pytest.fixture
def path(tmp_path):
    path = os.fspath(tmp_path / "rows.hdf5")
    with h5py.File(path, "w") as file:
        file.create_dataset("rows", data=ROWS)
    return path


def test_contiguous_arrays_are_views_of_the_file(path):
    array = open_array(path, "rows", shape=(None, 5))
    assert array.tolist() == ROWS.tolist()
    assert not array.flags.writeable
    assert not array.flags.owndata
    with open(path, "r+b") as stream:  # shows that no copy was made
        stream.seek(stream.read().index(ROWS.tobytes()))
        stream.write(np.int64(77).tobytes())
    assert array[0, 0] == 77


@pytest.mark.parametrize(
    ("name", "shape", "problem"),
    [
        ("other", (None, 5), "expected an array `other`, found `rows`"),
        ("rows", (None, 4), r"expected `rows` to be integers[n, 4], found int64[4, 5]"),
        ("rows", (None,), r"expected `rows` to be integers[n], found int64[4, 5]"),
    ],
)
def test_another_array_is_an_error(path, name, shape, problem):
    with pytest.raises(StorageError, match=f"^{re.escape(f'`{path}`: {problem}')}\nhint: "):
        open_array(path, name, shape=shape)


def test_a_truncated_file_is_an_error_wherever_it_ends(path, rng):
    whole = Path(path).read_bytes()
    with h5py.File(path) as file:
        last = file["rows"].id.get_offset() + ROWS.nbytes
    for size in {0, 1, 8, 100, last - 1, *rng.integers(0, last, size=20).tolist()}:
        Path(path).write_bytes(whole[:size])
        with pytest.raises(StorageError, match=re.escape(f"`{path}`")):
            open_array(path, "rows", shape=(None, 5))
