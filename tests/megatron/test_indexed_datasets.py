"""Pairs of `tokenloom.megatron.core.datasets`: readers, the builder and object storage; `tests/peer` compares them."""

import copy
import inspect
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.indexed.pairs import write_pair
from tests.support import equal_samples, make_config, write_corpus
from torch.utils.data import DataLoader

import tokenloom
from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ChangedFileError, ConfigError, DatasetFormatError, DatasetNotFoundError, TokenRangeError
from tokenloom.indexed.manifests import manifest_path
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.megatron.core.datasets import indexed_dataset
from tokenloom.megatron.core.datasets import object_storage_utils as ours
from tokenloom.megatron.core.datasets.indexed_dataset import (
    IndexedDataset,
    IndexedDatasetBuilder,
    _FileBinReader,
    _IndexReader,
    _IndexWriter,
    _MMapBinReader,
    _settings_of,
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
    tokens = [expected.sample(k)["tokens"].tolist() for k in positions]
    loaders = (ThreadLoader(dataset, [positions], reuse_after=1), DataLoader(dataset, batch_size=len(positions)))
    for batch in (dataset.batch(positions), *(next(iter(loader)) for loader in loaders)):
        assert np.asarray(batch["tokens"]).tolist() == tokens
    assert all(equal_samples(dataset.sample(k), expected.sample(k)) for k in positions)
    mixed = [tokens[k] for k in blend.dataset_sample_index.tolist()]
    assert [row.tolist() for row in blend.batch(range(6))["tokens"]] == mixed
    assert [blend[k]["tokens"].tolist() for k in range(6)] == mixed


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


def write(path, *arguments, dtype=np.uint16):
    with _IndexWriter(str(path), dtype) as writer:
        writer.write(*arguments)


def test_an_index_is_the_one_of_the_plain_builder_and_its_counts_are_checked(tmp_path):
    prefix = write_pair(tmp_path / "a", [[[1, 2], [3]], [], [[4]]], multimodal=True)
    write(tmp_path / "b.idx", [2, 1, 1], [0, 1, 0], [0, 2, 2, 3], dtype=np.int32)
    assert (tmp_path / "b.idx").read_bytes() == (tmp_path / "a.idx").read_bytes()
    reader = _IndexReader(f"{prefix}.idx", True)
    assert reader.document_indices.tolist() == [0, 2, 2, 3]
    assert [reader[i] for i in range(3)] == [(0, 2, 0), (8, 1, 1), (12, 1, 0)]
    write(tmp_path / "c.idx", [3], None, [0, 1])
    with pytest.raises(DatasetFormatError, match=r"expected num_sequences, num_boundaries, dtype_code \(2, 2, 8\)"):
        _IndexReader(str(tmp_path / "c.idx"), False, (2, 2))
    with pytest.raises(DatasetFormatError, match=r"found \(1, 2, 8\)"):
        _IndexReader(str(tmp_path / "c.idx"), False, (1, 2), 4)


RUN = "`document_indices` must run from 0 to 1 sequences"


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        *((([1], None, ends), ConfigError, RUN) for ends in ([0], [1, 1], [])),
        (([1], [1, 2], [0, 1]), ConfigError, "expected 1 modes, one per sequence, found 2"),
        (([1 << 31], None, [0, 1]), OverflowError, None),
        (([1], [128], [0, 1]), OverflowError, None),
    ],
)
def test_wrong_lists_leave_no_file(tmp_path, arguments, kind, message):
    with pytest.raises(kind, match=message):
        write(tmp_path / "a.idx", *arguments)
    assert list(tmp_path.iterdir()) == []


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


def contents(prefix):
    dataset = tokenloom.IndexedDataset(prefix)
    return [tokens.tolist() for tokens in dataset[:]], dataset.document_indices.tolist()


@pytest.fixture
def builder(tmp_path):
    builder = IndexedDatasetBuilder(str(tmp_path / "a.bin"), np.uint16)
    yield builder
    builder.data_file.close()


def test_rows_are_added_in_chunks(tmp_path, builder):
    with pytest.raises(ValueError, match="`lengths`: must sum to 2 tokens, got 5"):
        builder.add_document([1, 2], [5])
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


CONFIG = ours.ObjectStorageConfig("/cache")

CASES = [
    *(("is_object_storage_path", path) for path in ("s3://b/k", "msc://p/k", "/local/s3://")),
    *(("parse_s3_path", path) for path in ("s3://b/k/l", "s3://b", "s3://b/", "msc://b/k", "s3://b/s3://k")),
    *(("get_object_storage_access", path) for path in ("s3://b/k", "msc://b/k")),
    *(("get_index_cache_path", path, CONFIG) for path in ("s3://b/k.idx", "msc://b/k.idx", "/b/k.idx")),
    ("dataset_exists", "/b/k", "/b/k.idx", "/b/k.bin"),
    ("cache_index_file", "/b/k.idx", "/c"),
]


def outcome(function, arguments):
    try:
        return function(*arguments)
    except (ValueError, AssertionError) as error:
        return tuple(kind for kind in (ValueError, AssertionError) if isinstance(error, kind))


@pytest.mark.peer
def test_paths_are_parsed_as_in_megatron():
    theirs = pytest.importorskip("megatron.core.datasets.object_storage_utils")
    for name, *arguments in CASES:
        expected, actual = (outcome(getattr(module, name), arguments) for module in (theirs, ours))
        if isinstance(expected, tuple) and expected and isinstance(expected[0], type):
            assert set(expected) <= set(actual), name
        else:
            assert actual == expected, name
        names = [[*inspect.signature(getattr(module, name)).parameters] for module in (ours, theirs)]
        assert names[0] == names[1]
    assert theirs.ObjectStorageConfig("/cache").__dict__ == CONFIG.__dict__ == {**vars(ours.S3Config("/cache"))}


def test_index_files_are_copied(bucket, tmp_path):
    bucket.put("data/train.idx", b"index")
    bucket.put("data/train.bin", b"tokens")
    address = f"s3://{bucket.name}/data/train"
    assert ours.dataset_exists(address, f"{address}.idx", f"{address}.bin")
    assert not ours.dataset_exists(address, f"{address}.idx", f"{address}.ban")
    local = ours.get_index_cache_path(f"{address}.idx", ours.S3Config(str(tmp_path)))
    ours.cache_index_file(f"{address}.idx", local)
    assert (tmp_path / bucket.name / "data" / "train.idx").read_bytes() == b"index"


def test_other_ranks_need_the_copy(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    with pytest.raises(DatasetNotFoundError, match=r"rank 0 has not copied `s3://bucket/train.idx`"):
        ours.cache_index_file("s3://bucket/train.idx", str(tmp_path / "train.idx"))
    with pytest.raises(ConfigError, match=r"must start with `s3://` or `msc://`, got `/train\.idx`"):
        ours.cache_index_file("/train.idx", str(tmp_path / "train.idx"))
