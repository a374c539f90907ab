"""Cached indices: shared between processes and validated when opened."""

import itertools
import json
import logging
import multiprocessing
import os
import pickle
import re
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.faults import dies_at
from tests.support import contents, equal_samples, make_config, write_corpus
from tests.support import make_dataset as make_unopened_dataset

from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import CacheNotWrittenWarning, IndexCacheError

# Newer versions of Python warn about forking a process with threads; the children here use no threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

DOCUMENTS = [[1, 2, 3, 9], [4, 5, 6, 7, 8, 9], [10, 11, 9], [], [12] * 30]
ARRAYS = ["document_index", "sample_index", "shuffle_index"]


def make_dataset(prefix, **settings):
    """Makes a dataset and opens its indices, which otherwise open with the first sample."""
    dataset = make_unopened_dataset(prefix, **settings)
    if not settings.get("defer_npy_index_mmap"):
        assert len(dataset.shuffle_index) == len(dataset)
    return dataset


@pytest.fixture
def prefix(tmp_path):
    return write_corpus(tmp_path / "corpus", DOCUMENTS)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def cached_file(cache, name):
    (path,) = cache.glob(f"*-{name}.npy")
    return path


def damage_by_truncation(path):
    path.write_bytes(path.read_bytes()[:-1])


class Bomb:
    """Creates a file when unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


DAMAGES = [
    damage_by_truncation,
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(path.read_bytes().replace(b"{", b"z", 1)),
    lambda path: np.save(path, np.load(path).astype(np.int16)),
    lambda path: np.save(path, np.load(path)[:-1]),
    lambda path: path.write_bytes(pickle.dumps(Bomb(path.parent / "executed"))),
    lambda path: np.save(path, np.array([Bomb(path.parent / "executed")], dtype=object), allow_pickle=True),
    lambda path: np.save(path, np.asfortranarray(np.load(path))),
]


def test_an_entry_is_written_once_and_then_opened_with_the_first_sample(prefix, cache, caplog):
    caplog.set_level(logging.INFO, logger="tokenloom")
    first = make_dataset(prefix, path_to_cache=str(cache))
    names = ["description.txt", "document_index.npy", "identity.json", "sample_index.npy", "shuffle_index.npy"]
    assert sorted(path.name.rsplit("-", 1)[1] for path in cache.iterdir()) == names
    assert caplog.messages == [f"built the indices of `{prefix}` (train)"]
    before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    caplog.clear()
    second = make_dataset(prefix, path_to_cache=str(cache))
    assert caplog.messages == [f"loaded the indices of `{prefix}` (train) from {cache}"]
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == before
    assert all(equal_samples(first.sample(k), second.sample(k)) for k in range(len(first)))
    path = cached_file(cache, "shuffle_index")
    hidden = path.rename(cache / "hidden")
    dataset = make_unopened_dataset(prefix, path_to_cache=str(cache))
    hidden.rename(path)
    assert equal_samples(dataset.sample(3), first.sample(3))


def test_the_names_carry_a_hash_of_the_settings(prefix, cache):
    dataset = make_dataset(prefix, path_to_cache=str(cache), num_samples=5)
    base = f"{dataset.unique_description_hash}-GPTDataset-train"
    assert (cache / f"{base}-description.txt").read_text() == dataset.unique_description
    expected = {"class": "GPTDataset", "dataset_path": prefix, "num_samples": 5, "index_split": "train"}
    expected |= {"random_seed": 57, "sequence_length": 4, "split": "1,0,0", "split_matrix": [[0, 1.0], None, None]}
    expected["tokenizer"] = {"class": "StandInTokenizer", "vocab_size": 100}
    assert dataset.unique_description == json.dumps(expected, indent=4)


OTHERS = [(name, damage) for name in ("document_index", "shuffle_index") for damage in DAMAGES[:5:2]]


@pytest.mark.parametrize(("name", "damage"), [*(("sample_index", damage) for damage in DAMAGES), *OTHERS])
def test_a_damaged_file_is_named_and_built_again(prefix, cache, caplog, name, damage):
    make_dataset(prefix, path_to_cache=str(cache))
    expected = make_dataset(prefix, in_memory=True)
    before = contents(cache)
    path = cached_file(cache, name)
    damage(path)
    rebuilt = make_dataset(prefix, path_to_cache=str(cache))
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage().startswith(f"rebuilding an invalid cached index: `{path}`")
    assert contents(cache) == before
    assert all(equal_samples(expected.sample(k), rebuilt.sample(k)) for k in range(len(expected)))


def test_an_entry_of_other_data_under_the_same_path_is_built_again(prefix, cache, caplog):
    make_dataset(prefix, path_to_cache=str(cache))
    # The numbers of documents and tokens stay the same; only the contents differ.
    write_corpus(prefix, [[20] * 4, [21] * 3, [22] * 6, [], [23] * 30])
    rebuilt = make_dataset(prefix, path_to_cache=str(cache))
    (message,) = caplog.messages
    place = f"{cache}/{rebuilt.unique_description_hash}-GPTDataset-train-"
    assert message.startswith(f"rebuilding an invalid cached index: `{place}")
    assert "does not match the data: " in message
    fresh = make_dataset(prefix, in_memory=True)
    assert all(equal_samples(rebuilt.sample(k), fresh.sample(k)) for k in range(len(fresh)))


@pytest.mark.parametrize("option", ["drop_last_partial_validation_sequence", "add_extra_token_to_sequence"])
def test_an_option_that_the_key_forgets_is_a_miss(tmp_path, cache, caplog, option):
    prefix = write_corpus(tmp_path / "whole", [[1, 2, 3, 9], [4, 5, 6, 7, 8, 9], [3] * 7])  # 17 tokens: no difference
    settings = {"path_to_cache": str(cache), "split": Split.valid}
    first, second = (make_dataset(prefix, **settings, **{option: value}) for value in (True, False))
    assert first.unique_description_hash == second.unique_description_hash
    fresh = make_dataset(prefix, in_memory=True, split=Split.valid, **{option: False})
    assert equal_samples(second.batch(range(4)), fresh.batch(range(4)))
    (message,) = caplog.messages
    assert message.startswith(f"rebuilding an invalid cached index: `{cache}/")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"arrays": 1, "data": null}'])
def test_a_damaged_record_of_the_data_is_named_and_the_entry_built_again(prefix, cache, caplog, text):
    make_dataset(prefix, path_to_cache=str(cache))
    before = contents(cache)
    (path,) = cache.glob("*-identity.json")
    path.write_text(text)
    make_dataset(prefix, path_to_cache=str(cache))
    (message,) = caplog.messages
    assert message.startswith(f"rebuilding an invalid cached index: `{path}`")
    assert contents(cache) == before
    next(cache.glob("*-description.txt")).unlink()  # without it an entry is incomplete
    cached_file(cache, "document_index").write_bytes(b"half")
    make_dataset(prefix, path_to_cache=str(cache))
    assert contents(cache) == before


@pytest.mark.parametrize("option", ["fast_cache_load", "defer_npy_index_mmap"])
def test_without_a_cache_fast_and_deferred_loading_name_the_file(prefix, cache, option):
    with pytest.raises(IndexCacheError) as caught:
        make_dataset(prefix, path_to_cache=str(cache), **{option: True}).sample(0)
    hint = "build the index first, without `defer_npy_index_mmap` and `fast_cache_load`"
    assert re.fullmatch(rf"no file `{cache}/.*-document_index.npy`\nhint: {hint}", str(caught.value))
    assert not cache.exists()


FAST = [("fast_cache_load", damage) for damage in DAMAGES]


@pytest.mark.parametrize(("option", "damage"), [*FAST, ("defer_npy_index_mmap", damage_by_truncation)])
def test_fast_and_deferred_loading_refuse_a_damaged_file_and_other_data(prefix, cache, option, damage):
    make_dataset(prefix, path_to_cache=str(cache))
    path = cached_file(cache, "sample_index")
    whole = path.read_bytes()
    damage(path)
    with pytest.raises(IndexCacheError) as caught:
        make_dataset(prefix, path_to_cache=str(cache), **{option: True}).sample(0)
    assert f"`{path}`" in caught.value.message
    assert caught.value.hint == "delete the files of this index; the next start builds the index again"
    assert not (cache / "executed").exists()
    path.write_bytes(whole)
    write_corpus(prefix, [[20] * 4, [21] * 3, [22] * 6, [], [23] * 30])
    with pytest.raises(IndexCacheError, match="does not match the data: "):
        make_dataset(prefix, path_to_cache=str(cache), **{option: True}).sample(0)


SIZES = [(Split.train, None), (Split.train, 40), (Split.valid, 0), (Split.valid, 3), (Split.test, 3)]


@pytest.mark.parametrize(("split", "num_samples"), SIZES)
def test_a_deferred_dataset_knows_its_length_before_anything_is_opened(prefix, cache, split, num_samples):
    settings = {"num_samples": num_samples, "split": split, "drop_last_partial_validation_sequence": False}
    built = make_dataset(prefix, path_to_cache=str(cache), **settings)
    hidden = cache.rename(cache.with_name("hidden"))
    deferred = make_dataset(prefix, path_to_cache=str(cache), defer_npy_index_mmap=True, **settings)
    assert len(deferred) == len(built) == len(built.shuffle_index)
    hidden.rename(cache)
    assert equal_samples(deferred.sample(2), built.sample(2))


@pytest.mark.parametrize("num_documents", [3, 9000], ids=["in memory", "mapped"])
def test_indices_are_read_only_and_mapped_unless_small(tmp_path, cache, num_documents):
    prefix = write_corpus(tmp_path / "corpus", [[1] * 9] * num_documents)
    for _ in range(2):
        dataset = make_dataset(prefix, path_to_cache=str(cache))
        for array in (dataset.document_index, dataset.sample_index, dataset.shuffle_index):
            assert not array.flags.writeable
            assert num_documents == 3 or not array.flags.owndata


def overwrite_shuffles(cache, change):
    """Changes the shuffle index in its file, which may be mapped."""
    path = cached_file(cache, "shuffle_index")
    shuffled = np.load(path)
    change(shuffled)
    with open(path, "r+b") as stream:
        stream.seek(-shuffled.nbytes, os.SEEK_END)
        stream.write(shuffled.tobytes())


def test_a_damaged_index_never_ends_a_loop_quietly(tmp_path, cache):
    prefix = write_corpus(tmp_path / "long", [[1] * 9] * 2500)  # small arrays are not mapped
    dataset = make_dataset(prefix, path_to_cache=str(cache))
    expected = len(dataset)
    # Opening checks only a few samples, not this one.
    overwrite_shuffles(cache, lambda shuffled: shuffled.__setitem__(3, 100_000))
    for look in (list, lambda dataset: dataset.spans(3), lambda dataset: dataset.batch([3])):
        with pytest.raises(IndexCacheError) as caught:
            look(dataset)  # the mapped file shows the change
        assert caught.value.message == (
            f"the indices of `{prefix}` (train) do not match the data: shuffle index names window 100000 of {expected}"
        )
        assert caught.value.hint == "delete these indices from the cache; the next start builds them again"


def test_any_flipped_entry_is_found_by_building_again(tmp_path, cache, rng):
    prefix = write_corpus(tmp_path / "long", [[1] * 9] * 9000)
    dataset = make_dataset(prefix, path_to_cache=str(cache))
    assert dataset.verify_indices() == []
    row = int(rng.integers(1000, len(dataset) - 1000))
    first, second = dataset.shuffle_index[row : row + 2].tolist()
    overwrite_shuffles(cache, lambda shuffled: shuffled.__setitem__(row, second))  # one window twice, another missing
    assert dataset.verify_indices() == [
        f"the shuffle_index of `{prefix}` (train) differs in 1 rows: expected {first} in row {row}, found {second}"
    ]


# --- folders that cannot be written -----------------------------------------------------------------------------


def test_a_cache_folder_that_cannot_be_made_is_an_error_with_a_remedy(prefix, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(IndexCacheError) as caught:
        make_dataset(prefix, path_to_cache=str(tmp_path / "file" / "cache"))
    assert str(caught.value) == (
        f"cannot create `{tmp_path}/file/cache`: Not a directory\nhint: set `path_to_cache` to a writable folder"
    )


def test_beside_the_data_a_cache_that_cannot_be_written_is_done_without(prefix):
    cached = make_dataset(prefix)
    assert os.listdir(f"{prefix}/cache") == ["GPTDataset_indices"]
    other = write_corpus(f"{prefix}-other", DOCUMENTS)
    open(other, "w").close()  # PREFIX/cache cannot be made
    with pytest.warns(CacheNotWrittenWarning) as caught:
        dataset = make_dataset(other)
    assert str(caught[0].message) == (
        f"the indices of `{other}` (train) cannot be cached, so every start builds them: "
        f"cannot create `{other}/cache/GPTDataset_indices`: Not a directory; "
        "set `path_to_cache` to a writable folder"
    )
    assert all(equal_samples(dataset.sample(k), cached.sample(k)) for k in range(len(cached)))
    copy = pickle.loads(pickle.dumps(dataset))
    assert equal_samples(copy.sample(1), cached.sample(1))


def build_with_small_files(prefix, cache, results):
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
    try:
        make_dataset(prefix, path_to_cache=cache)
    except IndexCacheError as error:
        results.put(error.message)


def test_a_file_that_cannot_be_written_to_its_end_says_why_and_leaves_nothing_that_opens(tmp_path, cache):
    prefix = write_corpus(tmp_path / "corpus", [[1] * 10] * 5000)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=build_with_small_files, args=(prefix, str(cache), results))
    process.start()
    message = results.get(timeout=60)
    process.join()
    assert message.startswith(f"cannot write `{cache}/")
    assert message.endswith("-sample_index.npy`: File too large")
    assert [path.name.rsplit("-", 1)[1] for path in cache.iterdir()] == ["document_index.npy"]
    assert len(make_dataset(prefix, path_to_cache=str(cache))) == 12_499


# --- one changed number ------------------------------------------------------------------------------------------


def change_a_number(path, array):
    """Flips a bit in the middle of an array in its file, outside the hashed pieces."""
    data, numbers = bytearray(path.read_bytes()), array.tobytes()
    data[data.index(numbers) + len(numbers) // 2 + 4] ^= 1
    path.unlink()  # it may be mapped
    path.write_bytes(data)


def train(prefixes, cache, num_samples=30, **settings):
    blend = (prefixes, [1.0] * len(prefixes))
    config = make_config(None, blend=blend, split="1,0,0", path_to_cache=str(cache), **settings)
    return BlendedMegatronDatasetBuilder(GPTDataset, (num_samples, 0, 0), lambda: True, config).build()[0]


@pytest.mark.parametrize("name", [*ARRAYS, "dataset_index", "dataset_sample_index"])
def test_one_changed_number_is_named_and_the_entry_built_again(tmp_path, cache, caplog, name):
    if name in ARRAYS:  # arrays larger than the hashed pieces
        corpora, num_samples = [[[number % 90, 1, 2, 3] for number in range(9_000)]], 30
    else:
        corpora, num_samples = [[[n * 10 + i] * (5 + i) for i in range(10)] for n in range(4)], 20_000
    prefixes = [write_corpus(tmp_path / f"c{n}", documents) for n, documents in enumerate(corpora)]
    dataset = train(prefixes, cache, num_samples)
    positions = range(0, num_samples, 7)
    expected = dataset.batch(positions)
    order = dataset.datasets[0].order if name in ARRAYS else dataset.order
    change_a_number(cached_file(cache, name), order.arrays[name])
    assert equal_samples(train(prefixes, cache, num_samples).batch(positions), expected)
    assert f"expected {name} '" in caplog.text


def test_large_arrays_are_on_the_disk_at_once_and_compared_in_pieces_or_as_a_whole(tmp_path, cache, caplog):
    prefix = write_corpus(tmp_path / "large", [np.arange(10_000) % 90] * 60)
    settings = {"path_to_cache": str(cache), "sequence_length": 1}
    dataset = make_dataset(prefix, **settings)
    assert cached_file(cache, "sample_index").stat().st_size > 4 << 20
    loaded = make_dataset(prefix, **settings, fast_cache_load=True)
    assert loaded.order.verify() == []
    positions = range(0, len(dataset), 9973)
    expected = make_dataset(prefix, in_memory=True, sequence_length=1).batch(positions)
    assert equal_samples(loaded.batch(positions), expected)
    change_a_number(cached_file(cache, "sample_index"), loaded.sample_index)
    assert len(make_dataset(prefix, **settings).order.verify()) == 1
    assert not caplog.records
    with pytest.raises(IndexCacheError, match="expected sample_index '"):
        make_dataset(prefix, **settings, verify="full", fast_cache_load=True)
    assert make_dataset(prefix, **settings, verify="full").order.verify() == []
    assert "expected sample_index '" in caplog.text


# --- several processes -------------------------------------------------------------------------------------------


def build_at_once(prefix, cache, barrier, results):
    barrier.wait()
    dataset = make_dataset(prefix, path_to_cache=cache, num_samples=20_000)
    results.put(np.asarray(dataset.batch(range(0, 20_000, 7))["tokens"]).sum().item())


def test_processes_that_build_the_same_entry_at_once_all_succeed(tmp_path, cache):
    prefix = write_corpus(tmp_path / "corpus", [[i % 90] * (i % 7) for i in range(2000)])
    expected = make_dataset(prefix, in_memory=True, num_samples=20_000).batch(range(0, 20_000, 7))["tokens"].sum()
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    processes = [context.Process(target=build_at_once, args=(prefix, str(cache), barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [expected] * 4
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    alone = tmp_path / "alone"
    make_dataset(prefix, path_to_cache=str(alone), num_samples=20_000)
    assert contents(cache) == contents(alone)  # no temporary files are left


def inodes(folder):
    """Returns the inode of each file name, without hidden files."""
    entries = os.scandir(folder) if folder.exists() else ()
    return {entry.name: entry.inode() for entry in entries if not entry.name.startswith(".")}


@pytest.mark.parametrize("stale", [False, True])
def test_a_killed_builder_leaves_nothing_that_opens_wrongly(prefix, tmp_path, cache, stale):
    before = tmp_path / "before"
    if stale:  # the folder has a complete entry of other data
        make_dataset(prefix, path_to_cache=str(before))
        write_corpus(prefix, [[20] * 4, [21] * 3, [22] * 6, [], [23] * 30])
    fresh = make_dataset(prefix, path_to_cache=str(tmp_path / "fresh"))
    expected = fresh.batch(range(len(fresh)))
    stages = set()
    for number in itertools.count():
        if stale:
            shutil.copytree(before, cache)
        old = inodes(cache)
        if not dies_at(cache, number, lambda: make_dataset(prefix, path_to_cache=str(cache))):
            break
        placed = {name for name, inode in inodes(cache).items() if old.get(name) != inode}
        stages.add(len(placed))
        # The identity record of the other data is replaced after the arrays.
        if any(name.endswith("identity.json") for name in placed) or (
            not stale and sum(name.endswith(".npy") for name in placed) == 3
        ):
            loaded = make_dataset(prefix, path_to_cache=str(cache), fast_cache_load=True)
            assert equal_samples(loaded.batch(range(len(fresh))), expected)
        else:
            with pytest.raises(IndexCacheError):
                make_dataset(prefix, path_to_cache=str(cache), fast_cache_load=True)
        dataset = make_dataset(prefix, path_to_cache=str(cache))
        assert equal_samples(dataset.batch(range(len(fresh))), expected)
        named = {name: data for name, data in contents(cache).items() if not name.startswith(".")}
        assert named == contents(tmp_path / "fresh")
        shutil.rmtree(cache)
    assert stages >= set(range(5))  # it was killed before the rename of each of the five files
    assert contents(cache) == contents(tmp_path / "fresh")
