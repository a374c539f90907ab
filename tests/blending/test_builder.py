"""Datasets for train, valid and test, built from a configuration; thousands of them, or opened later."""

import pickle
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.support import assert_same, make_config, write_corpus

import tokenloom
from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder, describe_settings
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.mock import MockGPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, DatasetNotFoundError, IndexCacheError, ShortDatasetWarning
from tokenloom.indexed.prefixes import sequence_counts
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.megatron.core.datasets import gpt_dataset
from tokenloom.megatron.core.datasets.blended_megatron_dataset_builder import (
    BlendedMegatronDatasetBuilder as ReferenceBuilder,
)


def build(config, sizes=(None, None, None), *, cls=GPTDataset, here=True):
    return BlendedMegatronDatasetBuilder(cls, sizes, lambda: here, config).build()


@pytest.fixture
def prefix(tmp_path):
    return write_corpus(tmp_path / "corpus", [[i] * 10 for i in range(20)])


def documents_in(dataset):
    return sorted(set(dataset.document_index.tolist()))


def test_a_split_divides_the_documents_and_sizes_are_met_by_more_epochs(prefix):
    train, valid, test = build(make_config(prefix, split="70,20,10"))
    assert documents_in(train) == list(range(14))
    assert documents_in(valid) == list(range(14, 18))
    assert documents_in(test) == [18, 19]
    assert [dataset.index_split for dataset in (train, valid, test)] == list(Split)
    assert train.dataset is valid.dataset
    train, valid, test = build(make_config(prefix, split="70,20,10"), (100, 30, None))
    assert [len(dataset) >= size for dataset, size in ((train, 100), (valid, 30))] == [True, True]
    assert (train.num_samples, valid.num_samples, test.num_samples) == (100, 30, None)
    assert len(test) == 4
    train, valid, test = build(make_config(prefix, split="1,0,0"), (5, 5, 5))
    assert len(train) == 49
    assert valid is None
    assert test is None


def test_a_split_too_small_for_a_document_holds_nothing(tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[1] * 10] * 3)
    config = make_config(prefix, split="99,1,0")
    with pytest.warns(ShortDatasetWarning) as caught:
        train, valid, test = build(config)
    assert [str(warning.message) for warning in caught] == [
        f"`{prefix}` (valid) has 0 tokens, too few for one sample of 5 tokens"
    ]
    assert (len(train), len(valid), test) == (7, 0, None)
    with pytest.raises(ConfigError) as refused:
        build(config, (None, 8, None))
    assert str(refused.value) == (
        f"`{prefix}` (valid): the documents of the split have no tokens, but 8 samples are requested\n"
        "hint: raise the weight of this split, or request 0 samples from it"
    )


@pytest.mark.parametrize("num_threads", [1, 3])
def test_all_datasets_without_samples_are_one_warning(tmp_path, num_threads):
    prefixes = [write_corpus(tmp_path / f"corpus{number}", [[1] * 3]) for number in range(6)]
    config = make_config(None, blend=(prefixes, None), split="1", num_dataset_builder_threads=num_threads)
    for _ in range(2):  # built, and from the cache
        with pytest.warns(ShortDatasetWarning) as caught, pytest.raises(ConfigError):
            build(config)
        (warning,) = caught
        first = "; ".join(f"`{each}` (train) has 3 tokens, too few for one sample of 5 tokens" for each in prefixes[:4])
        text = str(warning.message)
        assert text.startswith("6 datasets have no samples: ")
        assert text.endswith("; and 2 more")
        assert num_threads > 1 or text == f"6 datasets have no samples: {first}; and 2 more"
        assert warning.filename == __file__


def test_each_split_may_have_its_own_data(tmp_path, prefix):
    other = write_corpus(tmp_path / "other", [[7] * 30])
    train, valid, test = build(make_config(None, blend_per_split=[([prefix], None), None, ([other], [3.0])]))
    assert documents_in(train) == list(range(20))
    assert valid is None
    assert test.dataset_path == other
    assert test.index_split is Split.test
    assert len(test) == 7


@pytest.mark.parametrize(
    ("weights", "size", "length"), [(None, None, 9), (None, 1000, 1009), ([1.0], 12, 12), ([0.5, 0.5], 12, 12)]
)
def test_full_validation_keeps_a_size_that_is_given(tmp_path, weights, size, length):
    prefixes = [write_corpus(tmp_path / f"{i}", [[i] * 10 for i in range(20)]) for i in range(len(weights or "a"))]
    config = make_config(None, blend=(prefixes, weights), split="70,20,10", full_validation=True)
    assert len(build(config, (5, size, 5))[1]) == length


def test_several_full_validation_sets_have_no_size(prefix):
    blends = [None, ([prefix, f"{prefix}_2"], None), None]
    config = make_config(None, blend_per_split=blends, multiple_validation_sets=True, full_validation=True)
    with pytest.raises(ConfigError, match=r"^the size for valid: must be None with `full_validation`, got 5\n"):
        build(config, (5, 5, None))


def test_without_data_it_is_made_up_and_on_a_rank_that_needs_none_nothing_is_built(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        datasets = build(make_config(None), (8, 8, 8), cls=MockGPTDataset)
    assert [type(dataset) for dataset in datasets] == [MockGPTDataset] * 3
    assert [len(dataset.indices) for dataset in datasets] == [33333, 33334, 33333]
    assert build(make_config(f"{tmp_path}/absent"), here=False) == [None, None, None]


def test_counts_recorded_before_are_checked(prefix):
    assert len(build(make_config(prefix, sequences_per_dataset={prefix: [20, 21]}))[0]) == 49
    with pytest.raises(ConfigError) as caught:
        build(make_config(prefix, sequences_per_dataset={"other": [20, 21]}))
    assert str(caught.value) == (
        f"`sequences_per_dataset`: no entry for `{prefix}`\nhint: add an entry for each dataset of the blend"
    )
    with pytest.raises(ValueError, match="record `sequences_per_dataset` again"):
        build(make_config(prefix, sequences_per_dataset={prefix: [19, 20]}))


BLENDS = [{"blend": (["a", "b"], [1.0, 2.0]), "split": "1"}, {"blend": (["a"], [1.0]), "split": "1"}]


@pytest.mark.parametrize("changes", [*BLENDS, {"blend_per_split": [(["a", "b"], [1.0, 2.0]), None, None]}])
def test_weights_without_a_size_are_refused(changes):
    with pytest.raises(ConfigError) as caught:
        build(make_config(None, **changes))
    assert str(caught.value) == (
        "the size for train: must be a number for a blend with weights, got None\n"
        "hint: pass the number of samples to blend, or remove the weights"
    )


@dataclass
class OwnConfig(GPTDatasetConfig):
    """A user's configuration, with a setting that is in no cache key."""

    colour: str = "red"


def test_settings_of_ours_count_and_those_of_a_user_that_decide_no_samples_do_not():
    config = make_config(None, kind=OwnConfig, blend=(["/data/books"], None), split="1,0,0", sequence_length=7)
    found = describe_settings(GPTDataset, [5, None, None], config)
    assert (found["sequence_length"], found["blend"], found["sizes"]) == ("7", '[ "books" ]', "[5, None, None]")
    assert not {"colour", "mmap_bin_files"} & set(found)


# --- thousands of datasets in a process that may open few files -----------------------------------------------------
MANY = """
import os, resource, sys
import numpy as np
import tokenloom
from tests.support import make_config
from tokenloom.indexed.layout import Header

folder, count, mmap_bin_files = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "mapped"
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
lengths, pointers = np.full(6, 30, dtype=np.int32), np.arange(6, dtype=np.int64) * 60
index = Header(dtype_code=8, num_sequences=6, num_boundaries=7).pack()
index += lengths.tobytes() + pointers.tobytes() + np.arange(7, dtype=np.int64).tobytes()
for number in range(count):
    with open(f"{folder}/{number}.idx", "wb") as stream:
        stream.write(index)
    with open(f"{folder}/{number}.bin", "wb") as stream:
        stream.write(np.full(180, number, dtype=np.uint16).tobytes())
config = make_config(
    None,
    sequence_length=16,
    path_to_cache=f"{folder}/cache",
    mmap_bin_files=mmap_bin_files,
    blend_per_split=[([f"{folder}/{number}" for number in range(count)], [1.0] * count), None, None],
)
for _ in range(2):  # cold, warm
    sizes = [2 * count, None, None]
    train = tokenloom.BlendedMegatronDatasetBuilder(tokenloom.GPTDataset, sizes, lambda: True, config).build()[0]
    for position in range(count):
        sample = train.sample(position)
        assert sample["tokens"].tolist() == [int(sample["dataset_id"])] * 16
mappings = sum(folder in line for line in open("/proc/self/maps"))
print(len(train), len(os.listdir("/proc/self/fd")) < 300, mappings <= 2 * count + 2)
"""


@pytest.mark.parametrize(
    ("count", "mode"), [(400, "mapped"), (400, "positional"), pytest.param(2000, "mapped", marks=pytest.mark.slow)]
)
def test_more_datasets_than_files_may_be_open(tmp_path, count, mode):
    command = [sys.executable, "-c", MANY, str(tmp_path), str(count), mode]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.stderr, done.stdout) == ("", f"{2 * count} True True\n")


# --- with recorded counts and caches a build opens no data files: they are moved away meanwhile ---------------------
KINDS = {
    "plain": (tokenloom.BlendedMegatronDatasetBuilder, tokenloom.GPTDataset, tokenloom.GPTDatasetConfig),
    "reference": (ReferenceBuilder, gpt_dataset.GPTDataset, gpt_dataset.GPTDatasetConfig),
}
WEIGHTS = [3.0, 2.0, 1.0]


@pytest.fixture(params=KINDS)
def build_later(request, tmp_path):
    """Builds the train and valid datasets of a blend; the first call writes the caches."""
    (tmp_path / "data").mkdir()
    corpora = [[[10 * n + i] * (7 + i) for i in range(12)] for n in range(1, 4)]
    prefixes = [write_corpus(tmp_path / "data" / f"p{n}", corpus) for n, corpus in enumerate(corpora)]
    builder, cls, config_class = KINDS[request.param]

    def build_later(sizes=(30, 8, 0), weights=WEIGHTS, **changes):
        blends = [(prefixes, weights), (prefixes[::-1], WEIGHTS), None]
        folder = str(tmp_path / "cache")
        config = make_config(None, kind=config_class, blend_per_split=blends, path_to_cache=folder, **changes)
        return builder(cls, list(sizes), lambda: True, config).build()[:2]

    build_later.counts = sequence_counts(prefixes)
    build_later.folder = tmp_path / "data"
    return build_later


@pytest.mark.parametrize("deferred", [False, True])
def test_no_data_are_opened_before_the_first_sample(build_later, deferred):
    expected = [[each.sample(k) for k in range(len(each))] for each in build_later()]
    build_later.folder.rename(build_later.folder.with_name("elsewhere"))
    counts = build_later.counts
    datasets = build_later(fast_cache_load=True, defer_npy_index_mmap=deferred, sequences_per_dataset=counts)
    assert [len(each) for each in datasets] == [len(samples) for samples in expected]
    loaders = [torch.utils.data.DataLoader(each, batch_size=5) for each in datasets]
    threads = [ThreadLoader(each, [list(range(len(each)))], reuse_after=1) for each in datasets]
    again = [pickle.loads(pickle.dumps(each)) for each in datasets]
    with pytest.raises(DatasetNotFoundError):
        datasets[0].sample(0)
    build_later.folder.with_name("elsewhere").rename(build_later.folder)
    for opened in (datasets, again):
        for each, samples in zip(opened, expected, strict=True):
            assert_same([each.sample(k) for k in range(len(each))], samples)
    for loader, ways, samples in zip(loaders, threads, expected, strict=True):
        wanted = [sample["tokens"].tolist() for sample in samples]
        assert [row.tolist() for batch in loader for row in batch["tokens"]] == wanted
        assert next(iter(ways))["tokens"].tolist() == wanted


def test_only_what_a_sample_needs_is_opened_and_a_missing_cache_told_at_the_start(build_later):
    with pytest.raises(IndexCacheError):
        build_later(fast_cache_load=True, sequences_per_dataset=build_later.counts)
    build_later()
    train, valid = build_later(fast_cache_load=True, sequences_per_dataset=build_later.counts)
    train.sample(0)
    number = train.locate(0)[0]
    assert [each.dataset.is_open for each in train.datasets] == [n == number for n in range(3)]
    other = valid.datasets[2 - number]  # a split may share a file that is already open
    assert other.dataset is train.datasets[number].dataset
    assert len(other) > 0
