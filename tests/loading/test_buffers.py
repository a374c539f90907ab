"""Batches in a ring of reused arrays."""

from __future__ import annotations

import pytest
from tests.loading.batches import CHANGES, assert_equal_batches, stacked
from tests.loading.threads import Slow
from tests.support import make_dataset

from tokenloom import ConfigError, ThreadLoader
from tokenloom.loading.samplers import MegatronPretrainingSampler

SAMPLER = MegatronPretrainingSampler(60, 0, 3, 0, 1)


@pytest.fixture
def dataset(prefix):
    return make_dataset(prefix, num_samples=60)


@pytest.mark.parametrize(
    ("change", "num_threads", "read_ahead", "reuse_after"),
    [("plain", 1, 1, 1), ("masks", 1, 4, 1), ("resets", 3, 5, 2), ("document masking", 2, 2, 7)],
)
def test_a_batch_is_valid_until_reuse_after_more_batches_are_requested(
    prefix, change, num_threads, read_ahead, reuse_after
):
    dataset = make_dataset(prefix, num_samples=60, **CHANGES[change])
    loader = ThreadLoader(
        dataset, SAMPLER, num_threads=num_threads, read_ahead=read_ahead, reuse_after=reuse_after, pin_memory=False
    )
    expected = list(stacked(dataset, SAMPLER))
    for _ in range(2):
        kept = []
        for number, batch in enumerate(loader):
            kept = [*kept, (number, batch)][-reuse_after:]
            assert_equal_batches([held for _, held in kept], [expected[k] for k, _ in kept])
        assert number == len(expected) - 1


def test_no_new_memory_is_used_once_the_ring_is_full(dataset):
    loader = ThreadLoader(dataset, SAMPLER, read_ahead=2, reuse_after=2, pin_memory=False)
    found = [tuple(tensor.data_ptr() for tensor in batch.values()) for batch in loader]
    assert found[4:] == found[:-4]
    assert len(set(found)) == 4


def test_changing_a_batch_does_not_change_later_batches(dataset):
    expected = list(stacked(dataset, SAMPLER))
    for number, batch in enumerate(ThreadLoader(dataset, SAMPLER, reuse_after=1, pin_memory=False)):
        assert_equal_batches([batch], [expected[number]])
        for tensor in batch.values():
            tensor.fill_(5)
        batch.clear()


def test_batches_of_an_abandoned_iteration_stay_valid(dataset):
    loader = ThreadLoader(dataset, SAMPLER, read_ahead=1, reuse_after=1, pin_memory=False)
    pass_over = iter(loader)
    held = next(pass_over)
    pass_over.close()
    before = {name: tensor.clone() for name, tensor in held.items()}
    assert len(list(loader)) == 20
    assert_equal_batches([held], [before])


@pytest.mark.parametrize("setting", [{"reuse_after": 1}, {"integer_dtype": "int32"}])
def test_settings_that_need_a_dataset_to_fill_arrays_are_refused(prefix, setting):
    name = next(iter(setting))
    with pytest.raises(ConfigError, match=f"`{name}` needs a dataset that fills given arrays, which Slow does not"):
        ThreadLoader(Slow(make_dataset(prefix)), [[0]], pin_memory=False, **setting)
    for wrong in ({"reuse_after": 0}, {"integer_dtype": "int16"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            ThreadLoader(make_dataset(prefix), [[0]], **wrong)
