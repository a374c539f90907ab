import hashlib
import os
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter, methodcaller

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.indexed.pairs import write_pair
from tests.support import write_corpus

from tokenloom import IndexedDataset, build_catalogue, merge_datasets
from tokenloom.errors import ChangedFileError, DatasetFormatError, DatasetNotFoundError, StorageError
from tokenloom.indexed import dataset as identity
from tokenloom.indexed.dataset import dataset_identity, pin_inputs
from tokenloom.indexed.roles import read_roles
from tokenloom.indexed.writing import concatenate
from tokenloom.megatron.core.datasets import indexed_dataset as reference
from tokenloom.storage.local import sampled_hash, spread_evenly

OLD = [[1, 2, 3, 9], [4, 5, 6, 7, 8, 9], [10, 11, 9]]
OTHERS = {"same size": [[21, 22, 23, 29, 30], [24, 25, 26, 27, 28], [31, 32, 33]], "other size": [[21], [22, 23]]}


@pytest.fixture
def prefix(tmp_path):
    return write_corpus(tmp_path / "corpus", OLD)


@pytest.fixture(params=["same size", "other size"])
def other(request, tmp_path):
    return write_corpus(tmp_path / "other", OTHERS[request.param])


def replace(prefix, other, *suffixes, how="by rename"):
    for suffix in suffixes or (".bin", ".idx"):
        if how == "by rename":
            shutil.copy2(other + suffix, f"{prefix}{suffix}.new")
            os.utime(f"{prefix}{suffix}.new", ns=(0, os.stat(prefix + suffix).st_mtime_ns))  # nothing but the inode
            os.replace(f"{prefix}{suffix}.new", prefix + suffix)
        else:
            modified = os.stat(prefix + suffix).st_mtime_ns
            shutil.copyfile(other + suffix, prefix + suffix)
            os.utime(prefix + suffix, ns=(modified + 1, modified + 1))


def lists(dataset):
    return [tokens.tolist() for tokens in dataset]


@pytest.mark.parametrize("how", ["by rename", "in place"])
@pytest.mark.parametrize("mmap", [True, False])
def test_tokens_replaced_before_their_first_read_are_refused(prefix, other, mmap, how):
    dataset = IndexedDataset(prefix, mmap=mmap)
    replace(prefix, other, ".bin", how=how)
    one = np.array([0]), np.array([0]), np.array([1])
    for read in (lambda: dataset[0], lambda: dataset[:], lambda: dataset.gather(*one)):
        with pytest.raises(ChangedFileError, match=rf"`{prefix}.bin` was replaced after it was opened"):
            read()


@pytest.mark.parametrize("mmap", [True, False])
def test_what_was_read_before_keeps_its_content(prefix, other, mmap):
    dataset = IndexedDataset(prefix, mmap=mmap)
    assert lists(dataset) == OLD
    replace(prefix, other)
    assert lists(dataset) == OLD
    assert dataset.index_source().read(0, 9).tobytes() == b"MMIDIDX\x00\x00"
    assert dataset.index_source().num_bytes == 34 + 12 * 3 + 8 * 4


@pytest.mark.parametrize("suffixes", [[".bin"], [".idx"], [".bin", ".idx"]])
@pytest.mark.parametrize("how", ["by rename", "in place"])
def test_after_pickling_other_files_are_refused(prefix, other, suffixes, how):
    state = pickle.dumps(IndexedDataset(prefix, mmap=(how == "by rename") == (".bin" in suffixes)))
    assert lists(pickle.loads(state)) == OLD
    replace(prefix, other, *suffixes, how=how)
    with pytest.raises((ChangedFileError, DatasetFormatError), match=rf"`{prefix}\.(bin|idx)`"):
        pickle.loads(state)


def catalogue_of_two(tmp_path):
    pairs = [write_corpus(tmp_path / name, OLD) for name in ("a", "b")]
    return pairs, build_catalogue(pairs, f"{tmp_path}/all").path_prefix


@pytest.mark.parametrize("mmap", [True, False])
def test_a_pair_of_a_catalogue_that_was_read_is_the_same_after_pickling(tmp_path, mmap):
    pairs, prefix = catalogue_of_two(tmp_path)
    other = write_corpus(tmp_path / "other", OTHERS["same size"])
    dataset = IndexedDataset(prefix, mmap=mmap)
    assert lists(dataset) == OLD * 2
    state = pickle.dumps(dataset)
    assert lists(pickle.loads(state)) == OLD * 2
    replace(pairs[1], other)
    os.utime(f"{pairs[1]}.bin")  # by its size and the recorded time of change it would be the same
    assert lists(dataset) == OLD * 2
    with pytest.raises(StorageError, match=rf"`{pairs[1]}.bin` is not the file that"):
        lists(pickle.loads(state))


def test_a_catalogue_that_is_written_anew_is_another_one(tmp_path):
    _, prefix = catalogue_of_two(tmp_path)
    state = pickle.dumps(IndexedDataset(prefix))
    pairs = [write_corpus(tmp_path / name, OTHERS["other size"]) for name in ("c", "d")]
    build_catalogue(pairs, prefix, overwrite=True)
    with pytest.raises((ChangedFileError, DatasetFormatError), match=rf"`{prefix}\.(idx|catalogue)`"):
        pickle.loads(state)


@pytest.mark.parametrize("mmap", [True, False])
def test_a_pointer_into_a_gap_of_a_catalogue_is_an_error(tmp_path, mmap):
    _, prefix = catalogue_of_two(tmp_path)
    with open(f"{prefix}.idx", "r+b") as stream:
        stream.seek(34 + 4 * 6 + 8 * 1)
        stream.write((1000).to_bytes(8, "little"))
    dataset = IndexedDataset(prefix, mmap=mmap)
    with pytest.raises(DatasetFormatError, match=r"\[1000, 1012\) lie in no file that `.*all\.catalogue` lists"):
        dataset[1]
    with pytest.raises(DatasetFormatError, match="lie in no file"):
        dataset[0:3]
    if mmap:
        with pytest.raises(IndexError, match=r"bytes \[1000, 1012\) lie in no file"):
            dataset.gather(np.array([1]), np.array([0]), np.array([6]))


@pytest.mark.parametrize("mmap", [True, False])
def test_slices_follow_the_pointer_of_each_row(prefix, mmap):
    with open(f"{prefix}.idx", "r+b") as stream:  # rows 0 and 1 change places
        stream.seek(34 + 4 * 3)
        stream.write(np.array([12, 0, 20], dtype=np.int64).tobytes())
    dataset = IndexedDataset(prefix, mmap=mmap)
    assert lists(dataset[:]) == lists(dataset) == [[6, 7, 8, 9], [1, 2, 3, 9, 4, 5], [10, 11, 9]]


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
@pytest.mark.parametrize("mmap", [True, False])
def test_a_truncated_file_is_named_whatever_is_read(tmp_path, suffix, mmap):
    prefix = write_corpus(tmp_path / "corpus", [np.arange(1, 3000)] * 50)
    dataset = IndexedDataset(prefix, mmap=mmap)
    assert dataset[49].tolist() == list(range(1, 3000))
    os.truncate(prefix + suffix, 100)
    span = np.array([40]), np.array([0]), np.array([10])
    for read in (
        lambda: dataset[40],
        lambda: dataset[:45],
        lambda: dataset.get(40, 5, 10),
        lambda: dataset.gather(*span),
    ):
        with pytest.raises(StorageError, match=rf"`{prefix}\{suffix}`( was truncated while|: ended at byte \d+)"):
            read()


@pytest.mark.parametrize("how", ["by rename", "in place"])
def test_a_merge_copies_the_inputs_that_it_checked(tmp_path, how, monkeypatch):
    prefixes = [write_corpus(tmp_path / name, OLD) for name in ("a", "b")]
    other, put_piece = write_corpus(tmp_path / "other", OTHERS["same size"]), concatenate.put_piece

    def put(piece, target, **options):
        put_piece(piece, target, **options)
        replace(prefixes[1], other, how=how)

    monkeypatch.setattr(concatenate, "put_piece", put)

    with pytest.raises(ChangedFileError, match=rf"`{prefixes[1]}\.(bin|idx)` was replaced"):
        merge_datasets(prefixes, f"{tmp_path}/out")
    assert not os.path.exists(f"{tmp_path}/out.idx")
    assert not os.path.exists(f"{tmp_path}/out.bin")


@pytest.mark.parametrize("suffix", [".bin", ".idx", ".manifest.json", ".catalogue", ".columns.json"])
def test_a_pipe_in_place_of_a_file_is_named_at_once(tmp_path, suffix):
    prefix = write_corpus(tmp_path / "corpus", OLD)
    if suffix == ".catalogue":
        os.unlink(f"{prefix}.bin")
    elif os.path.exists(prefix + suffix):
        os.unlink(prefix + suffix)
    os.mkfifo(prefix + suffix)
    with pytest.raises(StorageError, match=f"cannot open `{prefix}{suffix}`: it is a pipe"):  # noqa: PT012
        dataset = IndexedDataset(prefix)
        assert dataset.manifest_head is None
        read_roles(dataset)


def test_inputs_stay_only_within_the_context(prefix, other):
    with pin_inputs([prefix]):
        IndexedDataset(prefix)
        with pin_inputs([prefix, other]):
            assert lists(IndexedDataset(prefix)) == OLD
    replace(prefix, other)
    assert lists(IndexedDataset(prefix)) == lists(IndexedDataset(other))


LATER = [[[5, 6, 7], [8]], [], [[9]]]


@pytest.fixture(params=[IndexedDataset, reference.IndexedDataset], ids=["plain", "reference"])
def open_later(request, tmp_path):
    """Opens a pair whose counts are given; these need not be its own."""
    prefix = write_pair(tmp_path / "corpus", LATER)

    def open_pair(counts=(3, 4), prefix=prefix, **named):
        return request.param(prefix, fast_cache_load=True, sequences_per_dataset=counts, **named)

    return open_pair


def test_counts_are_known_without_the_files(open_later, tmp_path):
    dataset = open_later(prefix=f"{tmp_path}/none")
    again = pickle.loads(pickle.dumps(dataset))
    for each in (dataset, again):
        assert (len(each), each.num_documents, each.remote_paths, each.is_open) == (3, 3, [], False)
        with pytest.raises(DatasetNotFoundError):
            each.get(0)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = each.nothing


ATTRIBUTES = ["dtype", "sequence_lengths", "bin_reader", "num_tokens"]
USES = {"row": lambda dataset: dataset[0], "slice": lambda dataset: dataset[0:1], "repr": repr}
USES |= {name: methodcaller(name) for name in ("check_tokens", "check_index", "index_source")}
USES |= {"get": methodcaller("get", 0)} | {name: attrgetter(name) for name in ATTRIBUTES}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_any_use_opens_the_files(open_later, use):
    dataset = open_later()
    assert not dataset.is_open
    use(dataset)
    assert dataset.is_open
    assert lists(dataset[:]) == [[5, 6, 7], [8], [9]]


def test_data_of_other_counts_are_refused_then(open_later):
    dataset = open_later((2, 4))
    with pytest.raises(DatasetFormatError, match=r"expected \(2, 4\) sequences and boundaries, found \(3, 4\)"):
        dataset.get(0)


def test_what_was_opened_is_what_others_open(open_later, tmp_path):
    opened, unopened = open_later(), open_later()
    opened.get(0)
    pickled = [pickle.dumps(dataset) for dataset in (opened, unopened)]
    write_pair(tmp_path / "corpus", [[[1, 2, 3], [4]], [], [[5]]])
    with pytest.raises(ChangedFileError):
        pickle.loads(pickled[0]).get(0)
    assert pickle.loads(pickled[1])[2].tolist() == [5]


def test_threads_may_open_at_once(open_later):
    def ask(dataset, begin):
        begin.wait()
        return dataset.get(0).tolist()

    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            assert [*pool.map(ask, [open_later()] * 4, [threading.Barrier(4)] * 4)] == [[5, 6, 7]] * 4


def test_a_pair_is_opened_at_once_where_either_is_missing(tmp_path):
    prefix = write_pair(tmp_path / "corpus", LATER)
    os.unlink(f"{prefix}.bin")
    for named in ({"fast_cache_load": True}, {"sequences_per_dataset": (3, 4)}):
        with pytest.raises(DatasetNotFoundError):
            IndexedDataset(prefix, **named)


LONG_AGO = (1, 1)


@pytest.fixture
def settled(prefix):
    for suffix in (".bin", ".idx"):
        os.utime(prefix + suffix, ns=LONG_AGO)
    return prefix


@pytest.fixture
def hashed(monkeypatch):
    sources = []
    real = identity.sampled_hash
    monkeypatch.setattr(identity, "sampled_hash", lambda source: sources.append(source) or real(source))
    return sources


@pytest.mark.parametrize("mmap", [True, False])
def test_files_that_stay_as_they_are_are_read_once(settled, hashed, mmap):
    dataset = IndexedDataset(settled, mmap=mmap)
    before = dataset_identity(dataset)
    before["added"] = 1
    assert dataset_identity(dataset) == dataset_identity(IndexedDataset(settled))
    assert len(hashed) == 4
    assert dataset_identity(pickle.loads(pickle.dumps(dataset)))["bin_sample"] == before["bin_sample"]
    assert len(hashed) == 6


def test_a_file_that_is_overwritten_in_place_is_another_one_whatever_its_times_say(settled):
    dataset = IndexedDataset(settled, mmap=False)
    before = dataset_identity(dataset)
    with open(f"{settled}.bin", "r+b") as file:
        file.write(b"\x07\x00")
    os.utime(f"{settled}.bin", ns=LONG_AGO)
    assert dataset_identity(dataset) != before


def test_a_file_that_was_changed_just_now_is_read_again(settled, hashed):
    os.utime(f"{settled}.bin")
    dataset = IndexedDataset(settled)
    assert dataset_identity(dataset) == dataset_identity(dataset)
    assert len(hashed) == 4


def test_of_files_that_were_replaced_or_are_gone_those_that_are_open_count(settled, hashed):
    dataset = IndexedDataset(settled)
    before = dataset_identity(dataset)
    os.unlink(f"{settled}.bin")
    assert dataset_identity(dataset) == before
    write_corpus(settled, [[7], [8]])
    assert dataset_identity(dataset) == before
    assert len(hashed) == 6


def test_what_is_small_is_hashed_as_a_whole_and_of_what_is_large_32_pieces_from_the_first_byte_to_the_last(rng):
    data = rng.integers(0, 256, size=(63, 512), dtype=np.uint8)  # rows are pieces, every other of which is read
    for small in (data[:0], data[0, :1], data[:32]):
        assert sampled_hash(small.ravel()) == hashlib.sha256(small.tobytes()).hexdigest()
    assert sampled_hash(data.ravel()) == hashlib.sha256(data[::2].tobytes()).hexdigest()


@given(count=st.integers(0, 1 << 45), most=st.integers(1, 200))
def test_numbers_spread_evenly_are_as_many_as_wanted_and_rise_to_the_last(count, most):
    numbers = spread_evenly(count, most).tolist()
    assert len(numbers) == min(count, most)
    assert numbers == sorted(set(numbers))
    assert numbers[:1] == [0] * bool(count)
    assert most == 1 or numbers[-1:] == [count - 1] * bool(count)
