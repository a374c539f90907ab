"""`tokenloom.megatron.core.datasets.indexed_dataset`; `tests/peer` compares it with Megatron's."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from tests.support import equal_samples, make_config, write_corpus

from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ChangedFileError, ConfigError
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.megatron.core.datasets import indexed_dataset
from tokenloom.megatron.core.datasets.indexed_dataset import (
    IndexedDataset,
    _FileBinReader,
    _MMapBinReader,
    get_bin_path,
)
from tokenloom.storage.settings import ObjectStorageSettings

DOCUMENTS = [list(range(1, 30)), [31, 32, 9], list(range(40, 60)), [9]]
RAISED = [[token + 1 for token in document] for document in DOCUMENTS]


@pytest.fixture
def prefix(tmp_path):
    return write_corpus(tmp_path / "corpus", DOCUMENTS)


@pytest.fixture
def expected(tmp_path):
    return samples_of(IndexedDataset(write_corpus(tmp_path / "raised", RAISED)))


def samples_of(source):
    return GPTDataset(source, None, np.arange(len(DOCUMENTS), dtype=np.int32), 8, Split.train, make_config(None))


def assert_all_paths_return(dataset, expected):
    positions = list(range(len(expected)))
    blend = BlendedDataset([dataset, dataset], [0.5, 0.5], 6, dataset.config)
    wanted = [expected.sample(k) for k in positions]
    batches = {
        "batch": dataset.batch(positions),
        "threads": next(iter(ThreadLoader(dataset, [positions], reuse_after=1))),
        "loader": next(iter(torch.utils.data.DataLoader(dataset, batch_size=len(positions)))),
    }
    for name, batch in batches.items():
        assert np.asarray(batch["tokens"]).tolist() == [sample["tokens"].tolist() for sample in wanted], name
    assert all(equal_samples(dataset.sample(k), wanted[k]) for k in positions)
    numbers = blend.dataset_sample_index.tolist()
    assert [row.tolist() for row in blend.batch(range(6))["tokens"]] == [wanted[k]["tokens"].tolist() for k in numbers]
    assert [blend[k]["tokens"].tolist() for k in range(6)] == [wanted[k]["tokens"].tolist() for k in numbers]


class ByGet(IndexedDataset):
    def get(self, idx, offset=0, length=None):
        return super().get(idx, offset, length) + 1


class ByBoth(ByGet):
    def __getitem__(self, idx):
        return super().__getitem__(idx) + 1


class Doubling(_MMapBinReader):
    def read(self, dtype, count, offset):
        return super().read(dtype, count, offset) + np.dtype(dtype).type(1)


class Foreign:
    def __init__(self, path):
        self.bytes = np.fromfile(path, dtype=np.uint8)

    def read(self, dtype, count, offset):
        return np.frombuffer(self.bytes, dtype=dtype, count=count, offset=offset) + 1


@pytest.mark.parametrize("mmap", [True, False])
def test_overridden_methods_and_assigned_readers_are_called_by_all_paths(prefix, expected, mmap):
    assert_all_paths_return(samples_of(ByGet(prefix, False, mmap)), expected)
    assert_all_paths_return(samples_of(ByBoth(prefix, mmap=mmap)), expected)
    for reader in (Doubling, Foreign):
        dataset = IndexedDataset(prefix, mmap=mmap)
        samples = samples_of(dataset)
        assert not equal_samples(samples.sample(0), expected.sample(0))
        dataset.bin_reader = reader(get_bin_path(prefix))
        assert_all_paths_return(samples, expected)
        assert dataset[0].tolist() == dataset.get(0).tolist() == RAISED[0]


def test_patched_readers_are_called_by_all_paths(prefix, expected, monkeypatch):
    dataset = IndexedDataset(prefix)
    reader, read = dataset.bin_reader, dataset.bin_reader.read
    reader.read = lambda dtype, count, offset: read(dtype, count, offset) + np.dtype(dtype).type(1)
    dataset.bin_reader = reader
    assert_all_paths_return(samples_of(dataset), expected)
    del reader.read
    dataset.bin_reader = reader
    assert dataset[0].tolist() == DOCUMENTS[0]
    monkeypatch.setattr(indexed_dataset, "_MMapBinReader", Foreign)
    assert_all_paths_return(samples_of(IndexedDataset(prefix)), expected)


def test_a_registered_reader_is_called_for_its_scheme(prefix, tmp_path, monkeypatch):
    class Elsewhere(IndexedDataset):
        is_remote = True

        @property
        def tokens_path(self):
            return f"s3://bucket/{super().tokens_path}"

    config = ObjectStorageSettings(cache_path=str(tmp_path))

    def make(path, given):
        assert (path, given) == (f"s3://bucket/{prefix}.bin", config)
        return Foreign(path.removeprefix("s3://bucket/"))

    monkeypatch.setitem(indexed_dataset.OBJECT_STORAGE_BIN_READERS, "s3", make)
    assert Elsewhere(prefix, False, False, config)[1].tolist() == RAISED[1]


def test_boundaries_may_be_replaced_in_one_object(prefix):
    dataset = IndexedDataset(prefix)
    assert dataset.num_documents == (before := IndexedDataset(prefix).num_documents) > 2
    dataset.set_document_indices(np.array([0, 2, 4]))
    assert (dataset.document_indices.tolist(), dataset.num_documents) == ([0, 2, 4], 2)
    assert IndexedDataset(prefix).num_documents == before


def test_states_of_all_versions_open_the_pair(prefix):
    dataset = IndexedDataset(prefix, False, False)
    for again in (pickle.loads(pickle.dumps(dataset)), copy.copy(dataset)):
        assert again[2].tolist() == DOCUMENTS[2]
        assert isinstance(again.bin_reader, _FileBinReader)
    older = IndexedDataset.__new__(IndexedDataset)
    older.__setstate__((prefix, False, True, None))
    assert older[2].tolist() == DOCUMENTS[2]


def test_a_pickle_opens_the_same_files_only(prefix, tmp_path):
    pickled = pickle.dumps(IndexedDataset(prefix))
    write_corpus(tmp_path / "corpus", [[1], [2], [3], [4]])
    with pytest.raises(ChangedFileError):
        pickle.loads(pickled)
    assert len(pickle.loads(pickle.dumps(IndexedDataset(prefix)))) == 4
    with pytest.raises(ConfigError, match="`mmap`: must be False with `object_storage_config`"):
        IndexedDataset(prefix, s3_config=ObjectStorageSettings())
