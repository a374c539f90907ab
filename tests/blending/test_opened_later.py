"""With recorded counts and caches, a build opens no data files: here they are moved away during the build."""

from __future__ import annotations

import pickle

import pytest
import torch
from tests.support import assert_same, make_config, write_corpus

import tokenloom
from tokenloom.errors import DatasetNotFoundError, IndexCacheError
from tokenloom.indexed.prefixes import sequence_counts
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.megatron.core.datasets import gpt_dataset
from tokenloom.megatron.core.datasets.blended_megatron_dataset_builder import (
    BlendedMegatronDatasetBuilder as ReferenceBuilder,
)

KINDS = {
    "plain": (tokenloom.BlendedMegatronDatasetBuilder, tokenloom.GPTDataset, tokenloom.GPTDatasetConfig),
    "reference": (ReferenceBuilder, gpt_dataset.GPTDataset, gpt_dataset.GPTDatasetConfig),
}
WEIGHTS = [3.0, 2.0, 1.0]


@pytest.fixture(params=KINDS)
def build(request, tmp_path):
    """Builds the train and valid datasets of a blend; the first call writes the caches."""
    (tmp_path / "data").mkdir()
    corpora = [[[10 * n + i] * (7 + i) for i in range(12)] for n in range(1, 4)]
    prefixes = [write_corpus(tmp_path / "data" / f"p{n}", corpus) for n, corpus in enumerate(corpora)]
    builder, cls, config_class = KINDS[request.param]

    def build(sizes=(30, 8, 0), weights=WEIGHTS, **changes):
        blends = [(prefixes, weights), (prefixes[::-1], WEIGHTS), None]
        folder = str(tmp_path / "cache")
        config = make_config(None, kind=config_class, blend_per_split=blends, path_to_cache=folder, **changes)
        return builder(cls, list(sizes), lambda: True, config).build()[:2]

    build.counts = sequence_counts(prefixes)
    build.folder = tmp_path / "data"
    return build


@pytest.mark.parametrize("deferred", [False, True])
def test_no_data_are_opened_before_the_first_sample(build, deferred):
    expected = [[each.sample(k) for k in range(len(each))] for each in build()]
    build.folder.rename(build.folder.with_name("elsewhere"))
    datasets = build(fast_cache_load=True, defer_npy_index_mmap=deferred, sequences_per_dataset=build.counts)
    assert [len(each) for each in datasets] == [len(samples) for samples in expected]
    loaders = [torch.utils.data.DataLoader(each, batch_size=5) for each in datasets]
    threads = [ThreadLoader(each, [list(range(len(each)))], reuse_after=1) for each in datasets]
    again = [pickle.loads(pickle.dumps(each)) for each in datasets]
    with pytest.raises(DatasetNotFoundError):
        datasets[0].sample(0)
    build.folder.with_name("elsewhere").rename(build.folder)
    for opened in (datasets, again):
        for each, samples in zip(opened, expected, strict=True):
            assert_same([each.sample(k) for k in range(len(each))], samples)
    for loader, ways, samples in zip(loaders, threads, expected, strict=True):
        wanted = [sample["tokens"].tolist() for sample in samples]
        assert [row.tolist() for batch in loader for row in batch["tokens"]] == wanted
        assert next(iter(ways))["tokens"].tolist() == wanted


def test_only_what_a_sample_needs_is_opened(build):
    build()
    train, valid = build(fast_cache_load=True, sequences_per_dataset=build.counts)
    train.sample(0)
    number = train.locate(0)[0]
    assert [each.dataset.is_open for each in train.datasets] == [n == number for n in range(3)]
    other = valid.datasets[2 - number]  # a split may share a file that is already open
    assert other.dataset is train.datasets[number].dataset
    assert len(other) > 0


def test_a_cache_that_is_not_there_is_told_at_the_start(build):
    with pytest.raises(IndexCacheError):
        build(fast_cache_load=True, sequences_per_dataset=build.counts)
