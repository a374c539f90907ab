"""Tasks as blocks: their keys, their reports, and what counts as the same arrays."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.retro.blocks import SquaresTask

from tokenloom.errors import StorageError
from tokenloom.retro.block_plan import BlockPlan, BlockReport, BlockWork, crc32_of_arrays, part_path
from tokenloom.retro.hdf5 import open_array

TASK = SquaresTask("unused")
REPORT = BlockReport(key="a" * 24, num_bytes=10, crc32=1, arrays_crc32=2, seconds=0.5, boot_id="here")


def test_rows_are_cut_into_blocks_and_keys_follow_from_what_decides_them():
    plan = BlockPlan(TASK)
    assert [(block.number, block.start, block.stop) for block in plan.shards] == [(0, 0, 4), (1, 4, 8), (2, 8, 10)]
    keys = [block.key for block in plan.shards]
    assert len(set(keys)) == 3
    assert keys == [block.key for block in pickle.loads(pickle.dumps(BlockPlan(replace(TASK, log="elsewhere")))).shards]
    assert not set(keys) & {block.key for block in BlockPlan(replace(TASK, factor=2)).shards}
    assert [block.key for block in BlockPlan(replace(TASK, num_rows=12)).shards][:2] == keys[:2]
    assert plan.fingerprint != BlockPlan(replace(TASK, num_rows=12)).fingerprint
    assert BlockPlan(replace(TASK, num_rows=0)).shards == ()
    assert plan.description() == {"version": 1, "task": "squares", "factor": 1, "block_size": 4}


def test_a_block_becomes_a_file_and_a_report(tmp_path: Path):
    plan = BlockPlan(SquaresTask(os.fspath(tmp_path / "log")))
    block, told = plan.shards[1], []
    prefix = os.fspath(tmp_path / block.key)
    with BlockWork(plan).worker(1) as worker:
        report = worker.run(block, prefix, progress=told.append)
    assert [counts.num_rows for counts in told] == [4]
    path = part_path(prefix)
    assert open_array(path, "squares", shape=(4,)).tolist() == [16, 25, 36, 49]
    assert report.num_bytes == os.path.getsize(path)
    assert report.arrays_crc32 == crc32_of_arrays({"squares": np.array([16, 25, 36, 49])})
    assert plan.read_report(Path(f"{prefix}.json").read_bytes(), path=f"{prefix}.json") == report
    assert BlockWork(plan).whereabouts(block) == "numbers 4 to 8 of squares"


def test_a_report_says_what_it_is():
    assert json.loads(REPORT.to_json()) == {
        "version": 1,
        "key": "a" * 24,
        "num_bytes": 10,
        "crc32": "00000001",
        "arrays_crc32": "00000002",
        "seconds": 0.5,
        "boot_id": "here",
    }
    path = "a" * 24 + ".json"
    assert BlockPlan(TASK).read_report(REPORT.to_json(), path=path) == REPORT


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "`k.json` is not the report of a block"),
        (b"[]", "`k.json` is not the report of a block"),
        (REPORT.to_json()[:-9], "`k.json` is not the report of a block"),
        (REPORT.to_json().replace(b'"version": 1', b'"version": 2'), "block: expected `version` to be 1, found 2"),
        (REPORT.to_json().replace(b'"num_bytes": 10', b'"num_bytes": "10"'), "is not the report of a block"),
        (REPORT.to_json(), "`k.json` is the report of another block, aaaaaaaaaaaaaaaaaaaaaaaa"),
    ],
)
def test_what_is_no_report_of_the_block_is_told(data: bytes, message: str):
    with pytest.raises(StorageError, match=message):
        BlockPlan(TASK).read_report(data, path="k.json")


def test_arrays_are_the_same_by_names_dtypes_shapes_and_bytes():
    array = np.arange(6, dtype=np.int64)
    checksums = {
        crc32_of_arrays(arrays)
        for arrays in (
            {},
            {"a": array},
            {"b": array},
            {"a": array.reshape(2, 3)},
            {"a": array.astype(np.uint64)},
            {"a": array + 1},
            {"a": array[:0]},
            {"a": array, "b": array[:0]},
        )
    }
    assert len(checksums) == 8
    assert crc32_of_arrays({"a": array, "b": array}) == crc32_of_arrays({"b": array, "a": array})
    assert crc32_of_arrays({"a": np.arange(12)[::2] // 2}) == crc32_of_arrays({"a": array})
