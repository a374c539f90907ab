"""Batches in a ring of arrays that are used again."""

from __future__ import annotations

import numpy as np
import pytest
from tests.loading.batches import CHANGES, assert_equal_batches, stacked
from tests.loading.threads import Slow, loader_threads
from tests.support import make_dataset, write_corpus

from tokenloom import BlendedDataset, ConfigError, ThreadLoader
from tokenloom.loading.samplers import MegatronFullValidationSampler, MegatronPretrainingSampler


def addresses(batch):
    return {name: tensor.data_ptr() for name, tensor in batch.items()}


def copied(batch):
    return {name: tensor.clone() for name, tensor in batch.items()}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("num_threads", "read_ahead", "reuse_after"), [(1, 1, 1), (1, 4, 1), (3, 5, 2), (2, 2, 7)])
def test_a_batch_stays_until_so_many_more_were_asked_for(prefix, change, num_threads, read_ahead, reuse_after):
    dataset = make_dataset(prefix, num_samples=60, **CHANGES[change])
    sampler = MegatronPretrainingSampler(60, 0, 3, 0, 1)
    loader = ThreadLoader(
        dataset, sampler, num_threads=num_threads, read_ahead=read_ahead, reuse_after=reuse_after, pin_memory=False
    )
    expected = list(stacked(dataset, sampler))
    for _ in range(2):
        kept = []
        for number, batch in enumerate(loader):
            kept = [*kept, (number, batch)][-reuse_after:]
            assert_equal_batches([held for _, held in kept], [expected[k] for k, _ in kept])
        assert number == len(expected) - 1


def test_no_new_memory_is_used_once_the_ring_is_full(prefix):
    dataset = make_dataset(prefix, num_samples=60)
    sampler = MegatronPretrainingSampler(60, 0, 3, 0, 1)
    found = [
        addresses(batch) for batch in ThreadLoader(dataset, sampler, read_ahead=2, reuse_after=2, pin_memory=False)
    ]
    assert found[4:] == found[:-4]
    assert len({tuple(batch.values()) for batch in found}) == 4


def test_batches_are_new_unless_asked_otherwise(prefix):
    dataset = make_dataset(prefix, num_samples=60)
    sampler = MegatronPretrainingSampler(60, 0, 3, 0, 1)
    batches = list(ThreadLoader(dataset, sampler, pin_memory=False))
    assert len({batch["tokens"].data_ptr() for batch in batches}) == len(batches)
    assert_equal_batches(batches, stacked(dataset, sampler))


def test_batches_of_any_size_fit_into_the_ring(prefix):
    dataset = make_dataset(prefix, num_samples=60)
    batches = [list(range(size)) for size in (2, 2, 5, 1, 5, 3, 6, 1, 1)]
    loader = ThreadLoader(dataset, batches, read_ahead=2, reuse_after=1, pin_memory=False)
    expected = list(stacked(dataset, batches))
    for number, batch in enumerate(loader):
        assert_equal_batches([batch], [expected[number]])


def test_what_is_done_to_a_batch_does_not_reach_later_ones(prefix):
    dataset = make_dataset(prefix, num_samples=60)
    sampler = MegatronPretrainingSampler(60, 0, 3, 0, 1)
    expected = list(stacked(dataset, sampler))
    for number, batch in enumerate(ThreadLoader(dataset, sampler, reuse_after=1, pin_memory=False)):
        assert_equal_batches([batch], [expected[number]])
        for tensor in batch.values():
            tensor.fill_(5)
        batch.clear()


def test_an_abandoned_pass_leaves_its_batches_alone(prefix):
    dataset = make_dataset(prefix, num_samples=60)
    loader = ThreadLoader(
        dataset, MegatronPretrainingSampler(60, 0, 3, 0, 1), read_ahead=1, reuse_after=1, pin_memory=False
    )
    pass_over = iter(loader)
    held = next(pass_over)
    pass_over.close()
    before = copied(held)
    assert len(list(loader)) == 20
    assert_equal_batches([held], [before])


def test_integers_can_be_narrow_in_a_ring_and_out_of_it(prefix, tmp_path):
    other = write_corpus(tmp_path / "other", [[7] * 9] * 30)
    datasets = [make_dataset(path, num_samples=30) for path in (prefix, other)]
    blend = BlendedDataset(datasets, [1.0, 2.0], 31, datasets[0].config)
    sampler = MegatronFullValidationSampler(31, 1, 2)
    expected = list(ThreadLoader(blend, sampler, pin_memory=False))
    for reuse_after in (None, 20):
        loader = ThreadLoader(blend, sampler, pin_memory=False, reuse_after=reuse_after, integer_dtype=np.int32)
        for found, wanted in zip(loader, expected, strict=True):
            assert {name: str(found[name].dtype).removeprefix("torch.") for name in found} == {
                "dataset_id": "int16",
                "tokens": "int32",
                "labels": "int32",
                "loss_mask": "float32",
                "position_ids": "int32",
            }
            assert all((found[name] == wanted[name]).all() for name in found)


def test_an_error_in_a_ring_comes_in_its_turn(prefix):
    class Failing:
        fills_batches = True

        def __init__(self, dataset):
            self.allocate_batch = dataset.allocate_batch
            self.dataset = dataset

        def batch(self, positions, *, out):
            if 7 in positions:
                raise ValueError("broken data")
            return self.dataset.batch(positions, out=out)

    dataset = make_dataset(prefix, num_samples=40)
    sampler = MegatronPretrainingSampler(40, 0, 2, 0, 1)
    seen = []
    with pytest.raises(ValueError, match="broken data") as caught:
        seen.extend(ThreadLoader(Failing(dataset), sampler, reuse_after=4, pin_memory=False))
    assert_equal_batches(seen, list(stacked(dataset, sampler))[:3])
    assert caught.value.__notes__ == ["in batch 3 of the sampler, at positions [6, 7]"]
    assert loader_threads() == []


@pytest.mark.parametrize("setting", [{"reuse_after": 1}, {"integer_dtype": "int32"}])
def test_settings_that_need_a_dataset_to_fill_arrays_are_refused(prefix, setting):
    name = next(iter(setting))
    with pytest.raises(ConfigError, match=f"expected a dataset that fills given arrays, for `{name}`, found Slow"):
        ThreadLoader(Slow(make_dataset(prefix)), [[0]], pin_memory=False, **setting)
    with pytest.raises(ConfigError, match="expected reuse_after of at least 1, found 0"):
        ThreadLoader(make_dataset(prefix), [[0]], reuse_after=0)
    with pytest.raises(ConfigError, match="expected int64 or int32 as integer_dtype, found 'int16'"):
        ThreadLoader(make_dataset(prefix), [[0]], integer_dtype="int16")
