"""Runs in blocks: how many bytes they take, and directories that contradict themselves."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from tests.indexed.origins import random_runs, records_of

from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.origin_blocks import BlockEncoder, Blocks, OriginRuns


def packed(runs: OriginRuns, *, num_at_once: int = 1 << 30) -> tuple[np.ndarray, bytes, BlockEncoder]:
    data = bytearray()
    encoder = BlockEncoder(data.extend)
    for begin in range(0, len(runs), num_at_once):
        encoder.append(runs[begin : begin + num_at_once])
    return encoder.finish(), bytes(data), encoder


def opened(directory: np.ndarray, data: bytes, encoder: BlockEncoder, *, num_files: int = 3) -> Blocks:
    return Blocks(
        directory,
        np.frombuffer(data, dtype=np.uint8),
        num_documents=encoder.num_documents,
        num_runs=encoder.num_runs,
        num_files=num_files,
        name="some.origins",
    )


def test_the_bytes_are_those_of_the_format():
    directory, data, _ = packed(OriginRuns.of([(0, 2, 3), (1, 300, 2), (-1, 0, 1)]))
    numbers = [0, 1, -302, 1, 2, 301]  # first document, record before it, least gap and length, records from and to
    gaps = np.array([1 + 302, 295 + 302, -302 + 302], dtype="<u2")  # left out before each run, beyond the least
    assert data == bytes([1, 2, 0]) + gaps.tobytes() + bytes([2, 1, 0])
    assert directory.tobytes() == struct.pack("<6q2iI4B", *numbers, -1, 1, zlib.crc32(data), 1, 2, 1, 0)


def test_how_runs_come_makes_no_difference(rng):
    runs = random_runs(rng, 2000, 3)
    directory, data, _ = packed(runs)
    again, same, _ = packed(runs, num_at_once=int(rng.integers(1, 700)))
    assert (again.tobytes(), same) == (directory.tobytes(), data)


def test_the_last_of_many_runs_may_go_on():
    data = bytearray()
    encoder = BlockEncoder(data.extend)
    firsts = np.arange(1, 2 << 16, 2, dtype=np.int64)  # as many as are packed at once, each after a gap
    lengths = np.ones(len(firsts), dtype=np.int64)
    encoder.append(OriginRuns(file_numbers=lengths.astype(np.int32), first_records=firsts, num_documents=lengths))
    encoder.append(OriginRuns.of([(1, int(firsts[-1]) + 1, 3)]))
    directory = encoder.finish()
    found, _ = opened(directory, bytes(data), encoder).unpack(np.array([len(directory) - 1]))
    assert (encoder.num_runs, found.num_documents[-1]) == (len(firsts), 4)


def test_blocks_are_unpacked_without_those_before_them(rng):
    runs = random_runs(rng, 2000, 3)
    parts = packed(runs)
    blocks, expected = opened(*parts), records_of(runs)
    for number in rng.permutation(len(parts[0])).tolist():
        found, starts = blocks.unpack(np.array([number]))
        first = int(starts[0])
        assert records_of(found) == expected[first : first + int(found.num_documents.sum())]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("first_document", 1, "blocks of documents from 0 to 3, in order"),
        ("base_gap", -(1 << 62), "base_gap from -"),
        ("base_length", -1, "base_length from 0"),
        ("max_record", 1 << 60, "max_record from 0"),
        ("base_file", -2, "files from -1 to 2"),
        ("max_file", 3, "files from -1 to 2"),
        ("widths", 3, "columns of "),
        ("widths", 8, "blocks of 24 bytes"),
    ],
)
def test_directories_that_contradict_themselves_are_refused(name, value, message):
    directory, data, encoder = packed(OriginRuns.of([(0, 1, 3)]))
    damaged = directory.copy()
    damaged[name] = value
    with pytest.raises(DatasetFormatError, match=f"`some.origins`: expected {message}"):
        opened(damaged, data, encoder)


@pytest.mark.parametrize(
    ("name", "value"),
    [("base_length", 4), ("record_before", 9), ("max_record", 2), ("min_record", 2), ("max_file", -1)],
)
def test_blocks_that_are_not_what_the_directory_says_are_refused(name, value):
    directory, data, encoder = packed(OriginRuns.of([(0, 1, 3)]))
    damaged = directory.copy()
    damaged[name] = value
    with pytest.raises(DatasetFormatError, match="the documents of block 0 as the directory has them"):
        opened(damaged, data, encoder).unpack(np.array([0]))
