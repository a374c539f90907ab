"""Positions that are read again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.loading.fake_run import FakeRun
from tests.loading.reading import conversations_of, dataset_of, megatron_dataset_of, write_run
from tests.support import make_dataset

from tokenloom import MegatronPretrainingSampler, build_dataloader
from tokenloom.errors import ConfigError
from tokenloom.loading.batch_digest import ReadingDigest
from tokenloom.loading.read_batches import DigestedBatches
from tokenloom.loading.replay import digest_of_positions, digests_of_batches
from tokenloom.run.run import Run


def of(dataset, positions):
    total = ReadingDigest()
    for position in positions:
        total.add([position], dataset.sample(position)["tokens"][np.newaxis])
    return total


@pytest.mark.parametrize("make", [dataset_of, megatron_dataset_of])
def test_positions_in_any_order_by_any_number_of_threads(make, tmp_path, rng):
    dataset = make(tmp_path)
    positions = rng.permutation(300)[:100].tolist()
    expected = of(dataset, positions)
    assert digest_of_positions(dataset, positions) == expected
    assert digest_of_positions(dataset, np.array(positions), num_threads=3) == expected
    assert digest_of_positions(dataset, range(0)) == ReadingDigest()


def test_stages_of_different_lengths(tmp_path):
    path = write_run(tmp_path, tail="[[stages]]\nsequence_length = 8\nsamples = 40\nweights = { web = 1 }\n")
    dataset = Run.open(path).dataset()
    assert digest_of_positions(dataset, range(280, 340)) == of(dataset, range(280, 340))


def test_datasets_that_are_no_runs(prefix):
    dataset = make_dataset(prefix, in_memory=True, num_samples=50)
    assert digest_of_positions(dataset, range(50)) == of(dataset, range(50))


@pytest.mark.parametrize("kind", ["sft", "varlen"])
def test_conversations(kind, tmp_path):
    dataset = conversations_of(tmp_path, kind)
    expected = ReadingDigest()
    for position in range(20):
        expected.add([position], [dataset[position]["tokens"]])
    assert digest_of_positions(dataset, range(20)) == expected
    sampler = MegatronPretrainingSampler(40, 0, 4, 0, 1)
    kept = DigestedBatches(build_dataloader(dataset, sampler), dataset, sampler)
    assert len(list(itertools.islice(kept, 5))) == 5
    assert kept.read.total == expected


def test_batches_each_for_itself(tmp_path):
    dataset = dataset_of(tmp_path)
    found = digests_of_batches(dataset, [[3, 4], [5], [], [6, None, 9]], num_threads=2)
    sums = [of(dataset, positions) for positions in ([3, 4], [5], [], [6, 9])]
    assert found.tolist() == [[each.low, each.high] for each in sums]
    assert digests_of_batches(dataset, []).shape == (0, 2)


def test_samples_without_tokens_are_refused():
    with pytest.raises(ConfigError, match="expected samples with `tokens` for a digest, found none"):
        digest_of_positions(FakeRun(100), range(5))
    with pytest.raises(ConfigError, match="expected num_threads"):
        digest_of_positions(FakeRun(100), range(5), num_threads=0)
