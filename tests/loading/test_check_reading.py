"""Checks of one process at checkpoints; `tests/distributed` has several processes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.loading.fake_run import FakeRun
from tests.loading.reading import Lying, dataset_of, loader_of

from tokenloom import MegatronPretrainingSampler, build_dataloader
from tokenloom.errors import ConfigError, DivergenceError
from tokenloom.loading.check_reading import BatchRange, DigestedBatches, check_reading
from tokenloom.loading.digest import digest_of_positions


@pytest.fixture
def run(tmp_path):
    return dataset_of(tmp_path)


def once(dataset, position):
    class Once(Lying):  # only when the position is read first
        def batch(self, positions):
            batch = super().batch(positions)
            if self.position in list(positions):
                self.position = -1
            return batch

    return Once(dataset, position)


def test_a_check_returns_what_was_read_since_the_start(run):
    loader = loader_of(run)
    batches = iter(loader)
    assert check_reading(loader).digest == digest_of_positions(run, range(0))
    for stop, num_batches, when in ((8, 2, "never"), (32, 6, "now")):
        assert len(list(itertools.islice(batches, num_batches))) == num_batches
        found = check_reading(loader, reread=when)
        assert (found.start, found.stop) == (0, stop)
        assert found.digest == digest_of_positions(run, range(stop))
        assert loader.state_dict()["read"] == str(found)
    resumed = loader_of(run)
    resumed.load_state_dict(loader.state_dict())
    list(itertools.islice(resumed, 3))
    assert check_reading(resumed).digest == digest_of_positions(run, range(44))


@pytest.mark.parametrize(("position", "size", "num_batches"), [(0, 4, 20), (21, 4, 20), (79, 4, 20), (201, 1, 300)])
def test_a_flipped_bit_is_found(run, position, size, num_batches):
    loader = loader_of(once(run, position), batch=size)
    assert len(list(itertools.islice(loader, num_batches))) == num_batches
    batch = position // size
    positions = ", ".join(map(str, range(batch * size, batch * size + size)))
    expected = rf"data-parallel rank 0: rank 0 read tokens that differ from the data at positions \[{positions}\], "
    expected += f"batch {batch} since the last check: expected digest [0-9a-f]+"
    with pytest.raises(DivergenceError, match=expected):
        check_reading(loader)


def test_data_that_change_during_the_check_are_reported(run):
    lying = once(run, 5)
    loader = loader_of(run)
    list(itertools.islice(loader, 3))
    loader.read.dataset = lying
    with pytest.raises(DivergenceError, match="batches differed in the comparison, but not when they were read again"):
        check_reading(loader)


def test_other_loaders_are_wrapped(run):
    sampler = MegatronPretrainingSampler(len(run), 0, 4, 0, 1)
    loader = build_dataloader(run, sampler)
    with pytest.raises(ConfigError, match="DataLoader has no digests of its batches\nhint: pass `Dig"):
        check_reading(loader)
    kept = DigestedBatches(loader, run, sampler)
    list(itertools.islice(kept, 6))
    assert check_reading(kept).digest == digest_of_positions(run, range(24))


def test_loaders_that_cannot_be_checked_are_refused(run):
    with pytest.raises(ConfigError, match="the loader has no digest"):
        check_reading(loader_of(run, digest=False))
    loader = loader_of(FakeRun(20))
    next(iter(loader))
    with pytest.raises(ConfigError, match="batches of FakeRun have no digest: they need integer `tokens`"):
        check_reading(loader)
    with pytest.raises(ConfigError, match='`reread`: must be "now" or "never", got'):
        check_reading(None, reread="soon")
    with pytest.raises(DivergenceError, match="no loader for data-parallel rank 1 of 2"):
        check_reading(loader_of(run, size=2))


def test_a_batch_range_has_the_batches_of_any_rank():
    sampler = MegatronPretrainingSampler(80, 0, 4, 0, 2)
    unchecked = BatchRange(sampler=sampler, start=16, stop=32, sums=np.zeros((2, 2), dtype=np.uint64))
    assert [list(batch) for batch in unchecked.batches(1)] == [[20, 21, 22, 23], [28, 29, 30, 31]]
    assert sampler.data_parallel_rank == 0
