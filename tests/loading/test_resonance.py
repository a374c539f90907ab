"""Detection of ranks that read another mixture than the blend."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from tests.support import make_config, write_corpus

from tokenloom import BlendedMegatronDatasetBuilder, GPTDataset, MegatronPretrainingSampler, ThreadLoader
from tokenloom.errors import ResonanceWarning
from tokenloom.kernels.order import build_blending_indices
from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.resonance import resonance_of_weights
from tokenloom.samplers import BalancedSampler

pytest.importorskip("torch")


def found(weights, micro, ranks, **more):
    names = [f"data-{number}" for number in range(len(weights))]
    return resonance_of_weights(weights, micro_batch_size=micro, data_parallel_size=ranks, names=names, **more)


@pytest.mark.parametrize(
    ("weights", "micro", "ranks", "numbers"),
    [
        ([1, 1], 1, 2, (0.5, 0.0, 1.0)),
        ([1, 1, 1, 1], 2, 6, (0.25, 0.0, 0.5)),
        ([0.5, 0.25, 0.25], 1, 4, (0.25, 0.0, 1.0)),
        ([1, 1], 2, 2, None),
        ([1, 1], 1, 3, None),
        ([0.6180339, 0.3819661], 1, 8, None),
    ],
)
def test_shares_per_rank(weights, micro, ranks, numbers):
    resonance = found(weights, micro, ranks)
    if numbers is None:
        assert resonance is None
    else:
        share, least, most = numbers
        assert resonance is not None
        assert resonance.share == pytest.approx(share, abs=1e-3)
        assert resonance.least == pytest.approx(least, abs=1e-3)
        assert resonance.most == pytest.approx(most, abs=1e-3)
        assert resonance.period == micro * ranks


def test_the_numbers_are_those_of_the_sampler(rng):
    for _ in range(20):
        weights = rng.integers(1, 8, size=rng.integers(2, 5)).tolist()
        micro, ranks = int(rng.integers(1, 4)), int(rng.integers(2, 9))
        num_samples = 400 * micro * ranks  # all positions count: shares of other positions may differ
        resonance = found(weights, micro, ranks, num_samples=num_samples)
        if resonance is None:
            continue
        numbers = build_blending_indices(np.array(weights) / np.sum(weights), size=num_samples)[0]
        for rank, expected in ((resonance.least_rank, resonance.least), (resonance.most_rank, resonance.most)):
            sampler = MegatronPretrainingSampler(num_samples, 0, micro, rank, ranks)
            mine = numbers[np.concatenate([np.array(batch) for batch in sampler])]
            assert np.mean(mine == resonance.dataset) == pytest.approx(expected)


@pytest.fixture
def blend(tmp_path, rng):
    prefixes = [write_corpus(tmp_path / name, [rng.integers(0, 90, size=400)]) for name in ("books", "web")]
    config = make_config(None, blend=(prefixes, [1.0, 1.0]), split="1,0,0", path_to_cache=str(tmp_path / "cache"))
    return BlendedMegatronDatasetBuilder(GPTDataset, [160, None, None], lambda: True, config).build()[0]


@pytest.mark.parametrize("make", [build_dataloader, ThreadLoader])
def test_loaders_warn_on_the_first_rank(blend, make):
    said = r"`.*books` is 50.0% of the blend, but during the whole run 0.0% of the samples of rank 1 of 2 and "
    said += r"100.0% of the samples of rank 0: micro_batch_size \* data_parallel_size = 2 matches the period"
    with pytest.warns(ResonanceWarning, match=said) as record:
        make(blend, MegatronPretrainingSampler(len(blend), 0, 1, 0, 2))
    assert record[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(blend, MegatronPretrainingSampler(len(blend), 0, 1, 1, 2))
        make(blend, MegatronPretrainingSampler(len(blend), 0, 2, 0, 2))
        make(blend, MegatronPretrainingSampler(len(blend), 0, 1, 0, 1))
        make(blend.datasets[0], MegatronPretrainingSampler(80, 0, 1, 0, 2))
        loader = make(blend, BalancedSampler(blend, len(blend), 0, 1, 4, 0, 2))
    shares = [batch["dataset_id"].item() for batch in loader]
    assert np.bincount(shares).tolist() == [len(shares) // 2] * 2
