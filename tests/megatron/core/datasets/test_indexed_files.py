"""Index files, readers and the builder of `tokenloom.megatron.core.datasets.indexed_dataset`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
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


def test_an_index_is_the_one_of_the_plain_builder(tmp_path):
    prefix = write_pair(tmp_path / "a", [[[1, 2], [3]], [], [[4]]], multimodal=True)
    write(tmp_path / "b.idx", [2, 1, 1], [0, 1, 0], [0, 2, 2, 3], dtype=np.int32)
    assert (tmp_path / "b.idx").read_bytes() == (tmp_path / "a.idx").read_bytes()
    reader = _IndexReader(f"{prefix}.idx", True)
    assert reader.document_indices.tolist() == [0, 2, 2, 3]
    assert [reader[i] for i in range(3)] == [(0, 2, 0), (8, 1, 1), (12, 1, 0)]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        *(
            (([1], None, ends), ConfigError, "`document_indices` must run from 0 to 1 sequences")
            for ends in ([0], [1, 1], [])
        ),
        (([1], [1, 2], [0, 1]), ConfigError, "expected 1 modes, found 2"),
        (([1 << 31], None, [0, 1]), OverflowError, None),
        (([1], [128], [0, 1]), OverflowError, None),
    ],
)
def test_wrong_lists_leave_no_file(tmp_path, arguments, kind, message):
    with pytest.raises(kind, match=message):
        write(tmp_path / "a.idx", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_wrong_counts_of_sequences(tmp_path):
    write(tmp_path / "a.idx", [3], None, [0, 1])
    with pytest.raises(DatasetFormatError, match=r"expected \(sequences, boundaries, dtype code\) \(2, 2, 8\)"):
        _IndexReader(str(tmp_path / "a.idx"), False, (2, 2))
    with pytest.raises(DatasetFormatError, match=r"found \(1, 2, 8\)"):
        _IndexReader(str(tmp_path / "a.idx"), False, (1, 2), 4)


# --- readers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [_MMapBinReader, _FileBinReader])
def test_readers_return_numbers(tmp_path, kind):
    np.arange(10, dtype=np.int32).tofile(tmp_path / "a.bin")
    reader = kind(str(tmp_path / "a.bin"))
    assert reader.read(np.int32, 3, 8).tolist() == [2, 3, 4]
    assert reader.read(np.int32, -1, 32).tolist() == [8, 9]
    assert reader.read(np.int32, 0, 40).tolist() == []
    for count, offset in ((11, 0), (1, 40), (1, -4)):
        with pytest.raises(ValueError, match=r"out of range: .* has 40"):
            reader.read(np.int32, count, offset)


def test_megatrons_storage_settings_are_converted():
    ours = ObjectStorageSettings(cache_path="/tmp/x")
    assert _settings_of(ours) is ours
    assert _settings_of(None) is None
    theirs = SimpleNamespace(path_to_idx_cache="/tmp/x", bin_chunk_nbytes=256 << 20)
    assert _settings_of(theirs) == ours
    theirs.bin_chunk_nbytes = 16 << 30
    assert _settings_of(theirs) == replace(ours, block_bytes=16 << 30, cache_bytes=16 << 30)


# --- the builder ------------------------------------------------------------------------------------------------------


def contents(prefix):
    dataset = tokenloom.IndexedDataset(prefix)
    return [tokens.tolist() for tokens in dataset[:]], dataset.document_indices.tolist()


@pytest.fixture
def builder(tmp_path):
    builder = IndexedDatasetBuilder(str(tmp_path / "a.bin"), np.uint16)
    yield builder
    builder.data_file.close()


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


def test_finalize_removes_the_manifest_of_an_earlier_pair(tmp_path, builder):
    Path(manifest_path(str(tmp_path / "a"))).write_text("{}")
    builder.add_document([1], [1])
    builder.finalize(str(tmp_path / "a.idx"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx"]


@pytest.mark.parametrize("tokens", [[70000], [1, -1], np.array([70000]), [np.int64(70000)], [1 << 70], (1, 65536)])
def test_tokens_that_do_not_fit_the_dtype(builder, tokens):
    with pytest.raises(TokenRangeError, match="document 0: "):
        builder.add_document(tokens, [len(tokens)])
    with pytest.raises(TokenRangeError):
        builder.add_documents([tokens])
    assert builder.sequence_lengths == []
    assert builder.data_file.tell() == 0


def test_lengths_must_sum_to_the_tokens(builder):
    with pytest.raises(ValueError, match="`lengths`: must sum to 2 tokens, got 5"):
        builder.add_document([1, 2], [5])
