"""The builder of `tokenloom.megatron.core.datasets.indexed_dataset`."""

from __future__ import annotations

import numpy as np
import pytest

import tokenloom
from tokenloom.errors import TokenRangeError
from tokenloom.indexed.manifests import manifest_path
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder


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
    with pytest.raises(TokenRangeError, match="in document 0"):
        builder.add_document(tokens, [len(tokens)])
    with pytest.raises(TokenRangeError):
        builder.add_documents([tokens])
    assert builder.sequence_lengths == []
    assert builder.data_file.tell() == 0


def test_lengths_have_to_add_up(builder):
    with pytest.raises(ValueError, match="lengths add up to 5 tokens, but 2 were given"):
        builder.add_document([1, 2], [5])
