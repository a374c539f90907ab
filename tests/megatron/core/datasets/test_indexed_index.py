"""Index files by `tokenloom.megatron.core.datasets.indexed_dataset`."""

from __future__ import annotations

import numpy as np
import pytest
from tests.indexed.pairs import write_pair

from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.megatron.core.datasets.indexed_dataset import _IndexReader, _IndexWriter


def write(path, *arguments, dtype=np.uint16):
    with _IndexWriter(str(path), dtype) as writer:
        writer.write(*arguments)


def test_what_is_written_is_read(tmp_path):
    write(tmp_path / "a.idx", [3, 0, 4], None, [0, 2, 2, 3])
    reader = _IndexReader(str(tmp_path / "a.idx"), False)
    assert [reader[i] for i in range(3)] == [(0, 3, None), (6, 0, None), (6, 4, None)]
    assert (len(reader), reader.sequence_count, reader.document_count) == (3, 3, 4)
    assert (reader.dtype, reader.dtype_size, reader.sequence_modes) == (np.uint16, 2, None)
    write(tmp_path / "b.idx", np.array([1]), np.array([-1]), np.array([0, 1]), dtype=np.float32)
    reader = _IndexReader(str(tmp_path / "b.idx"), True, (1, 2), 7)
    assert reader[0] == (0, 1, -1)


def test_an_index_is_the_one_of_the_plain_builder(tmp_path):
    prefix = write_pair(tmp_path / "a", [[[1, 2], [3]], [], [[4]]], multimodal=True)
    write(tmp_path / "b.idx", [2, 1, 1], [0, 1, 0], [0, 2, 2, 3], dtype=np.int32)
    assert (tmp_path / "b.idx").read_bytes() == (tmp_path / "a.idx").read_bytes()
    assert _IndexReader(f"{prefix}.idx", True).document_indices.tolist() == [0, 2, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], None, [0]), "expected document indices from 0 to 1"),
        (([1], None, [1, 1]), "expected document indices from 0 to 1"),
        (([1], None, []), "expected document indices from 0 to 1"),
        (([1], [1, 2], [0, 1]), "expected a mode for each of 1 sequences, found 2"),
    ],
)
def test_lists_that_do_not_fit_leave_no_file(tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message):
        write(tmp_path / "a.idx", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_numbers_without_room_leave_no_file(tmp_path):
    for arguments in (([1 << 31], None, [0, 1]), ([1], [128], [0, 1])):
        with pytest.raises(OverflowError):
            write(tmp_path / "a.idx", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_counts_that_are_not_those_of_the_file_are_refused(tmp_path):
    write(tmp_path / "a.idx", [3], None, [0, 1])
    with pytest.raises(DatasetFormatError, match=r"expected sequences, documents and dtype code \(2, 2, 8\)"):
        _IndexReader(str(tmp_path / "a.idx"), False, (2, 2))
    with pytest.raises(DatasetFormatError, match=r"found \(1, 2, 8\)"):
        _IndexReader(str(tmp_path / "a.idx"), False, (1, 2), 4)
