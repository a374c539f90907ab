import os
import pickle
import shutil

import numpy as np
import pytest
from tests.support import write_corpus

from tokenloom import IndexedDataset, build_catalogue, merge_datasets
from tokenloom.errors import ChangedFileError, DatasetFormatError, StorageError
from tokenloom.indexed.dataset import pin_inputs
from tokenloom.indexed.roles import read_roles
from tokenloom.indexed.writing import concatenate

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
    with pytest.raises(ChangedFileError, match=rf"`{prefix}.bin` was replaced after it was opened"):
        dataset[0]
    with pytest.raises(ChangedFileError):
        dataset[:]
    with pytest.raises(ChangedFileError):
        dataset.gather(np.array([0]), np.array([0]), np.array([1]))


@pytest.mark.parametrize("mmap", [True, False])
def test_what_was_read_before_keeps_its_content(prefix, other, mmap):
    dataset = IndexedDataset(prefix, mmap=mmap)
    assert lists(dataset) == OLD
    replace(prefix, other)
    assert lists(dataset) == OLD
    assert dataset.index_source().read(0, 9).tobytes() == b"MMIDIDX\x00\x00"
    assert dataset.index_source().num_bytes == 34 + 12 * 3 + 8 * 4


@pytest.mark.parametrize(
    ("how", "suffixes", "mmap"),
    [
        ("by rename", (".bin",), True),
        ("in place", (".bin",), False),
        ("by rename", (".idx",), False),
        ("in place", (".idx",), True),
        ("by rename", (".bin", ".idx"), True),
        ("in place", (".bin", ".idx"), False),
    ],
)
def test_after_pickling_other_files_are_refused(prefix, other, mmap, suffixes, how):
    state = pickle.dumps(IndexedDataset(prefix, mmap=mmap))
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
    with pytest.raises(DatasetFormatError, match=r"bytes \[1000, 1012\) of `.*all\.catalogue` lie in no file"):
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
    assert (
        [tokens.tolist() for tokens in dataset[:]] == lists(dataset) == [[6, 7, 8, 9], [1, 2, 3, 9, 4, 5], [10, 11, 9]]
    )


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
@pytest.mark.parametrize("mmap", [True, False])
def test_a_truncated_file_is_named_whatever_is_read(tmp_path, suffix, mmap):
    prefix = write_corpus(tmp_path / "corpus", [np.arange(1, 3000)] * 50)
    dataset = IndexedDataset(prefix, mmap=mmap)
    assert dataset[49].tolist() == list(range(1, 3000))
    os.truncate(prefix + suffix, 100)
    reads = [lambda: dataset[40], lambda: dataset[0:45], lambda: dataset.get(40, 5, 10)]
    reads.append(lambda: dataset.gather(np.array([40]), np.array([0]), np.array([10])))
    for read in reads:
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


def read_all_of(prefix):
    dataset = IndexedDataset(prefix)
    assert dataset.manifest_head is None
    read_roles(dataset)


@pytest.mark.parametrize("suffix", [".bin", ".idx", ".manifest.json", ".catalogue", ".columns.json"])
def test_a_pipe_in_place_of_a_file_is_named_at_once(tmp_path, suffix):
    prefix = write_corpus(tmp_path / "corpus", OLD)
    if suffix == ".catalogue":
        os.unlink(f"{prefix}.bin")
    elif os.path.exists(prefix + suffix):
        os.unlink(prefix + suffix)
    os.mkfifo(prefix + suffix)
    with pytest.raises(StorageError, match=f"cannot open `{prefix}{suffix}`: it is a pipe"):
        read_all_of(prefix)


def test_inputs_stay_only_within_the_context(prefix, other):
    with pin_inputs([prefix]):
        IndexedDataset(prefix)
        with pin_inputs([prefix, other]):
            assert lists(IndexedDataset(prefix)) == OLD
    replace(prefix, other)
    assert lists(IndexedDataset(prefix)) == lists(IndexedDataset(other))
