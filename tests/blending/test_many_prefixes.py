"""Thousands of datasets in one process that may open few files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MANY = """
import os, resource, sys
import numpy as np
import tokenloom
from tests.support import make_config
from tokenloom.indexed.layout import Header

folder, count, mmap_bin_files = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "mapped"
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
lengths, pointers = np.full(6, 30, dtype=np.int32), np.arange(6, dtype=np.int64) * 60
index = Header(dtype_code=8, num_sequences=6, num_boundaries=7).pack()
index += lengths.tobytes() + pointers.tobytes() + np.arange(7, dtype=np.int64).tobytes()
for number in range(count):
    with open(f"{folder}/{number}.idx", "wb") as stream:
        stream.write(index)
    with open(f"{folder}/{number}.bin", "wb") as stream:
        stream.write(np.full(180, number, dtype=np.uint16).tobytes())
config = make_config(
    None,
    sequence_length=16,
    path_to_cache=f"{folder}/cache",
    mmap_bin_files=mmap_bin_files,
    blend_per_split=[([f"{folder}/{number}" for number in range(count)], [1.0] * count), None, None],
)
for _ in range(2):  # cold, warm
    sizes = [2 * count, None, None]
    train = tokenloom.BlendedMegatronDatasetBuilder(tokenloom.GPTDataset, sizes, lambda: True, config).build()[0]
    for position in range(count):
        sample = train.sample(position)
        assert sample["tokens"].tolist() == [int(sample["dataset_id"])] * 16
mappings = sum(folder in line for line in open("/proc/self/maps"))
print(len(train), len(os.listdir("/proc/self/fd")) < 300, mappings <= 2 * count + 2)
"""


@pytest.mark.parametrize(
    ("count", "mode"), [(400, "mapped"), (400, "positional"), pytest.param(2000, "mapped", marks=pytest.mark.slow)]
)
def test_more_datasets_than_files_may_be_open(tmp_path, count, mode):
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(tmp_path), str(count), mode],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stderr == ""
    assert done.stdout == f"{2 * count} True True\n"
