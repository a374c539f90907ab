"""Index files, readers and the builder of `tokenloom.megatron.core.datasets.indexed_dataset`."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from tests.indexed.pairs import write_pair

import tokenloom
from tokenloom.errors import ConfigError, DatasetFormatError, TokenRangeError
from tokenloom.indexed.manifests import manifest_path
from tokenloom.megatron.core.datasets.indexed_dataset import (
    IndexedDatasetBuilder,
    _FileBinReader,
    _IndexReader,
    _IndexWriter,
    _MMapBinReader,
    _settings_of,
)
from tokenloom.storage.settings import ObjectStorageSettings


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
        *((([1], None, ends), "`document_indices` must be 0 to 1 sequences") for ends in ([0], [1, 1], [])),
        (([1], [1, 2], [0, 1]), "expected 1 modes, found 2"),
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


# --- readers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    np.arange(10, dtype=np.int32).tofile(tmp_path / "a.bin")
    return str(tmp_path / "a.bin")


@pytest.mark.parametrize("kind", [_MMapBinReader, _FileBinReader])
def test_readers_give_numbers(path, kind):
    reader = kind(path)
    assert reader.read(np.int32, 3, 8).tolist() == [2, 3, 4]
    assert reader.read(dtype=np.dtype("int64"), count=np.int32(1), offset=np.int64(0)).tolist() == [1 << 32]
    assert reader.read(np.int32, -1, 32).tolist() == [8, 9]
    assert reader.read(np.int32, 0, 40).tolist() == []
    for count, offset in ((11, 0), (1, 40), (1, -4)):
        with pytest.raises(ValueError, match=r"out of range: .* has 40"):
            reader.read(np.int32, count, offset)


def test_settings_come_from_those_of_the_reference():
    ours = ObjectStorageSettings(cache_path="/tmp/x")
    assert _settings_of(ours) is ours
    assert _settings_of(None) is None
    given = SimpleNamespace(path_to_idx_cache="/tmp/x", bin_chunk_nbytes=256 << 20)
    assert _settings_of(given) == ours
    given.bin_chunk_nbytes = 16 << 30
    assert _settings_of(given) == ObjectStorageSettings(cache_path="/tmp/x", block_bytes=16 << 30, cache_bytes=16 << 30)
    given.bin_chunk_nbytes = 0
    with pytest.raises(ConfigError):
        _settings_of(given)


# --- the builder ------------------------------------------------------------------------------------------------------


def contents(prefix):
    dataset = tokenloom.IndexedDataset(prefix)
    return [tokens.tolist() for tokens in dataset[:]], dataset.document_indices.tolist()


@pytest.fixture
def builder(tmp_path):
    builder = IndexedDatasetBuilder(str(tmp_path / "a.bin"), np.uint16)
    yield builder
    builder.data_file.close()


def test_tokens_are_there_while_they_are_written(tmp_path, builder):
    builder.add_item(np.array([1, 2]))
    builder.data_file.flush()
    assert (tmp_path / "a.bin").read_bytes() == b"\1\0\2\0"
    assert not (tmp_path / "a.idx").exists()
    builder.add_item([3])
    builder.end_document()
    builder.finalize(str(tmp_path / "a.idx"))
    assert contents(tmp_path / "a") == ([[1, 2], [3]], [0, 2])


def test_rows_are_added_in_chunks(tmp_path, builder):
    builder.add_documents([[1, 2], [], np.array([3])], eod_token=9, chunk_size=2)
    builder.add_documents([[], []])
    builder.finalize(str(tmp_path / "a.idx"))
    assert contents(tmp_path / "a") == ([[1, 2, 9], [9], [3, 9], [], []], [0, 1, 2, 3, 4, 5])


def test_rows_of_awkward_are_added(tmp_path):
    awkward = pytest.importorskip("awkward")
    builder = IndexedDatasetBuilder(str(tmp_path / "a.bin"), np.uint16, multimodal=True)
    builder.add_documents(awkward.Array([[1, 2], [], [3]]), modes=[0, 1, 2], eod_token=9, chunk_size=2)
    builder.add_documents(awkward.Array([[4]]))
    builder.finalize(str(tmp_path / "a.idx"))
    assert contents(tmp_path / "a") == ([[1, 2, 9], [9], [3, 9], [4]], [0, 1, 2, 3, 4])
    assert tokenloom.IndexedDataset(tmp_path / "a", multimodal=True).sequence_modes.tolist() == [0, 1, 2, 0]


def test_a_dataset_is_appended_between_documents(tmp_path, builder):
    with tokenloom.IndexedDatasetBuilder(tmp_path / "b.bin", np.uint16) as other:
        other.add_document([5, 6, 7], [2, 1])
        other.finalize(tmp_path / "b.idx")
    builder.add_document([1], [1])
    for _ in range(2):
        builder.add_index(str(tmp_path / "b"))
    builder.add_document([2], [1])
    builder.finalize(str(tmp_path / "a.idx"))
    assert contents(tmp_path / "a") == ([[1], [5, 6], [7], [5, 6], [7], [2]], [0, 1, 3, 5, 6])


def test_what_lay_beside_an_earlier_pair_goes(tmp_path, builder):
    path = manifest_path(str(tmp_path / "a"))
    with open(path, "w") as stream:
        stream.write("{}")
    builder.add_document([1], [1])
    builder.finalize(str(tmp_path / "a.idx"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx"]


@pytest.mark.parametrize("tokens", [[70000], [1, -1], np.array([70000]), [np.int64(70000)], [1 << 70], (1, 65536)])
def test_ids_that_have_no_room_are_refused(tmp_path, builder, tokens):
    with pytest.raises(TokenRangeError, match="document 0: "):
        builder.add_document(tokens, [len(tokens)])
    with pytest.raises(TokenRangeError):
        builder.add_documents([tokens])
    assert builder.sequence_lengths == []
    assert builder.data_file.tell() == 0


def test_lengths_have_to_add_up(builder):
    with pytest.raises(ValueError, match="`lengths`: must sum to 2 tokens, got 5"):
        builder.add_document([1, 2], [5])
