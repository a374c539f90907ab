"""Batches read ahead by threads: the sampler's, in its order, whatever happens in between."""

from __future__ import annotations

import time

import pytest
from tests.loading.batches import CHANGES, assert_equal_batches, stacked
from tests.loading.threads import Slow, loader_threads
from tests.support import make_dataset, write_corpus

from tokenloom import BlendedDataset, ConfigError, ThreadLoader
from tokenloom.loading.random_sampler import MegatronPretrainingRandomSampler
from tokenloom.loading.samplers import MegatronFullValidationSampler, MegatronPretrainingSampler


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("num_threads", "read_ahead"), [(1, 1), (1, 4), (3, 5)])
def test_batches_are_the_samples_in_order(prefix, change, num_threads, read_ahead):
    dataset = make_dataset(prefix, num_samples=40, **CHANGES[change])
    sampler = MegatronPretrainingSampler(len(dataset), 3, 4, 1, 2)
    loader = ThreadLoader(dataset, sampler, num_threads=num_threads, read_ahead=read_ahead)
    assert len(loader) == len(sampler)
    for _ in range(2):
        assert_equal_batches(loader, stacked(dataset, sampler))
    assert loader.wait.num_batches == 2 * len(sampler)
    assert loader.wait.total_seconds >= loader.wait.longest_seconds >= loader.wait.last_seconds > 0


def test_threads_work_at_once_and_order_stays(prefix):
    dataset = make_dataset(prefix, num_samples=40)
    slow = Slow(dataset)
    sampler = MegatronPretrainingSampler(32, 0, 2, 0, 1)
    loader = ThreadLoader(slow, sampler, num_threads=4, read_ahead=4)
    assert_equal_batches(loader, stacked(dataset, sampler))
    assert 1 < slow.most_under_way <= 4


def test_no_more_is_read_ahead_than_asked(prefix):
    dataset = make_dataset(prefix, num_samples=40)
    asked = []

    class Noting:
        def batch(self, positions):
            asked.append(positions)
            return dataset.batch(positions)

    batches = iter(ThreadLoader(Noting(), [[k] for k in range(20)], read_ahead=3))
    next(batches)
    time.sleep(0.05)
    assert len(asked) == 4  # one handed out, three ahead
    batches.close()


def test_leaving_the_loop_ends_the_threads(prefix):
    dataset = make_dataset(prefix, num_samples=40)
    for batch in ThreadLoader(dataset, MegatronPretrainingSampler(40, 0, 2, 0, 1), num_threads=3):
        assert batch["tokens"].shape[0] == 2
        break
    assert loader_threads() == []


def test_an_error_comes_in_its_turn_and_says_where(prefix):
    dataset = make_dataset(prefix, num_samples=40)
    sampler = MegatronPretrainingSampler(40, 0, 2, 0, 1)
    seen = []
    with pytest.raises(ValueError, match="broken data") as caught:
        seen.extend(ThreadLoader(Slow(dataset, fails_at=7), sampler, num_threads=2))
    assert len(seen) == 3
    assert caught.value.__notes__ == ["in batch 3 of the sampler, at positions [6, 7]"]
    assert loader_threads() == []


@pytest.mark.parametrize("stop", [0, 1, 5, 10])
def test_a_state_resumes_after_the_last_batch_handed_out(prefix, stop):
    dataset = make_dataset(prefix, num_samples=40)

    def make():
        return ThreadLoader(dataset, MegatronPretrainingSampler(40, 0, 4, 0, 1), read_ahead=3)

    whole = list(make())
    first = make()
    batches = iter(first)
    head = [next(batches) for _ in range(stop)]
    state = first.state_dict()
    batches.close()
    second = make()
    second.load_state_dict(state)
    assert second.state_dict() == state
    assert_equal_batches([*head, *second], whole)
    assert_equal_batches(second, whole)  # the next pass is whole again


def test_the_state_of_a_random_order_resumes_within_its_epoch(prefix):
    dataset = make_dataset(prefix, num_samples=40)

    def make():
        return ThreadLoader(dataset, MegatronPretrainingRandomSampler(dataset, 40, 0, 4, 0, 1, True), read_ahead=8)

    whole = list(make())
    first = make()
    batches = iter(first)
    head = [next(batches) for _ in range(len(whole) - 2)]  # all of the epoch is read ahead by now
    second = make()
    second.load_state_dict(first.state_dict())
    assert_equal_batches([*head, *second], whole)


def test_the_state_of_another_sampler_is_refused(prefix):
    dataset = make_dataset(prefix, num_samples=40)
    state = ThreadLoader(dataset, MegatronPretrainingSampler(40, 0, 4, 0, 1)).state_dict()
    other = ThreadLoader(dataset, MegatronPretrainingSampler(40, 8, 4, 0, 1))
    with pytest.raises(
        ConfigError, match=r"expected the sampler that the state was taken with, .*'consumed_samples': 0"
    ):
        other.load_state_dict(state)
    with pytest.raises(ConfigError, match="expected the state of a ThreadLoader"):
        other.load_state_dict({"num_yielded": 3})


def test_blends_and_fillers_work(prefix, tmp_path):
    other = write_corpus(tmp_path / "other", [[7] * 9] * 30)
    datasets = [make_dataset(path, num_samples=30) for path in (prefix, other)]
    blend = BlendedDataset(datasets, [1.0, 2.0], 31, datasets[0].config)
    sampler = MegatronFullValidationSampler(31, 1, 2)
    found = list(ThreadLoader(blend, sampler, num_threads=2))
    assert [int(batch["dataset_id"][0]) for batch in found[:-1]] == [
        int(blend.dataset_index[position]) for (position,) in list(sampler)[:-1]
    ]
    assert float(found[-1]["loss_mask"].sum()) == 0


@pytest.mark.parametrize("setting", ["num_threads", "read_ahead"])
def test_numbers_are_checked(prefix, setting):
    with pytest.raises(ConfigError, match=f"expected {setting} of at least 1, found 0"):
        ThreadLoader(make_dataset(prefix), [[0]], **{setting: 0})
