"""Random epochs: Megatron's order, equal counts on all ranks, seeds, and resuming."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support import flat

from tokenloom.errors import ConfigError
from tokenloom.loading.samplers import MegatronPretrainingRandomSampler

torch = pytest.importorskip("torch")

SIZES = st.integers(1, 4)


def permutation(length, seed):
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed)).tolist()


def in_step(batches):
    """Returns the samples of all ranks in turn: the first of each rank, the second of each rank, and so on."""
    return flat(flat(zip(*micro_batches, strict=True)) for micro_batches in zip(*batches, strict=True))


def make(total, consumed, micro, rank, ranks, *, sharding=False, dataset=None, **options):
    return MegatronPretrainingRandomSampler(dataset, total, consumed, micro, rank, ranks, sharding, **options)


def of_all(total, consumed, micro, ranks, **options):
    samplers = [make(total, consumed, micro, rank, ranks, **options) for rank in range(ranks)]
    batches = [list(sampler) for sampler in samplers]
    assert all(len(batch) == micro for batch in flat(batches))
    return batches


# Recorded from Megatron: total, consumed, micro-batch size, ranks, sharding -> rank 1, this epoch and the next.
RECORDED = [
    ((10, 0, 2, 2, False), [[[1, 5], [9, 8]], [[6, 2], [8, 3]]]),
    ((10, 4, 2, 2, True), [[[7, 6]], [[5, 7], [6, 4]]]),
    ((23, 48, 3, 2, False), [[[5, 1, 13]], [[9, 6, 13], [2, 16, 12], [11, 1, 4]]]),
    ((23, 48, 3, 2, True), [[[11, 14, 13]], [[13, 10, 14], [15, 9, 11], [12, 17, 16]]]),
]


@pytest.mark.parametrize(("settings", "epochs"), RECORDED)
def test_the_order_is_that_of_megatron(settings, epochs):
    total, consumed, micro, ranks, sharding = settings
    sampler = make(total, consumed, micro, 1, ranks, sharding=sharding)
    assert [list(sampler), list(sampler)] == epochs


@given(total=st.integers(1, 60), micro=SIZES, ranks=SIZES, epoch=st.integers(0, 3), data=st.data())
def test_without_sharding_the_ranks_together_yield_one_permutation(total, micro, ranks, epoch, data):
    chunk = micro * ranks
    assume(total >= chunk)
    active = total - total % chunk
    offset = data.draw(st.integers(0, active // chunk - 1)) * chunk
    batches = of_all(total, epoch * active + offset, micro, ranks)
    assert in_step(batches) == permutation(total - total % micro, epoch)[offset:active]


@given(total=st.integers(1, 60), micro=SIZES, ranks=SIZES, epoch=st.integers(0, 3), seed=st.none() | st.integers(0, 9))
def test_with_sharding_each_rank_shuffles_its_own_range(total, micro, ranks, epoch, seed):
    chunk = micro * ranks
    assume(total >= chunk)
    active = total - total % chunk
    share = active // ranks
    for rank, batches in enumerate(of_all(total, epoch * active, micro, ranks, sharding=True, seed=seed)):
        assert sorted(flat(batches)) == list(range(rank * share, (rank + 1) * share))


@given(
    total=st.integers(1, 60),
    micro=SIZES,
    ranks=SIZES,
    sharding=st.booleans(),
    num_steps=st.integers(0, 40),
    seed=st.none() | st.integers(0, 2**64),
)
def test_resuming_continues_like_an_uninterrupted_run(total, micro, ranks, sharding, num_steps, seed):
    chunk = micro * ranks
    assume(total >= chunk)
    unbroken = make(total, 0, micro, ranks - 1, ranks, sharding=sharding, seed=seed)
    whole = flat(list(unbroken) for _ in range(num_steps // (total // chunk) + 3))
    resumed = make(total, num_steps * chunk, micro, ranks - 1, ranks, sharding=sharding, seed=seed)
    left = len(resumed)
    rest = list(resumed)
    assert len(rest) == left > 0
    rest += list(resumed)  # the next epoch is complete
    assert rest == whole[num_steps : num_steps + len(rest)]
    assert len(rest) == left + total // chunk


LAYOUTS = [
    (micro, ranks) for micro in (1, 2, 3, 4, 6, 12) for ranks in (1, 2, 3, 4, 6, 12) if 12 % (micro * ranks) == 0
]


@given(
    total=st.integers(12, 80),
    seed=st.none() | st.integers(0, 100),
    legs=st.lists(st.tuples(st.sampled_from(LAYOUTS), st.integers(0, 9)), min_size=1, max_size=8),
)
def test_with_whole_global_batches_sizes_may_change_after_any_step(total, seed, legs):
    seen = []
    for (micro, ranks), num_batches in legs:
        samplers = [
            make(total, len(seen), micro, rank, ranks, seed=seed, global_batch_size=12) for rank in range(ranks)
        ]
        streams = [flat(list(sampler) for _ in range(num_batches + 1)) for sampler in samplers]
        num_micro_batches = num_batches * (12 // (micro * ranks))
        seen += in_step([stream[:num_micro_batches] for stream in streams])
    sampler = make(total, 0, 1, 0, 1, seed=seed, global_batch_size=12)
    expected = flat(flat(list(sampler) for _ in range(len(seen) // (total - total % 12) + 1)))
    assert seen == expected[: len(seen)]
    per_epoch = total - total % 12
    epochs = [seen[start : start + per_epoch] for start in range(0, len(seen), per_epoch)]
    assert all(len(set(epoch)) == len(epoch) for epoch in epochs)


def test_seeds_have_different_orders():
    def epochs(seed):
        sampler = make(100, 0, 10, 0, 1, seed=seed)
        return [tuple(flat(sampler)) for _ in range(3)]

    assert epochs(7) == epochs(7)
    several = flat(epochs(seed) for seed in (None, 0, 1, 2, 2**40))
    assert len(set(several)) == len(several)  # no seed equals another one in a later epoch


def test_an_interrupted_epoch_starts_over_and_the_last_batch_ends_it():
    sampler = make(22, 8, 2, 0, 2)
    first = list(itertools.islice(sampler, 2))
    assert (sampler.consumed_samples, sampler.epoch, len(sampler)) == (8, 0, 3)
    assert list(itertools.islice(sampler, 3))[:2] == first  # the third batch is the last
    assert (sampler.consumed_samples, sampler.epoch, len(sampler)) == (20, 1, 5)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((3, 0, 2, 0, 2), {}, "3 samples are too few for a batch of 4 over all ranks\nhint: use smaller"),
        ((20, 6, 2, 0, 2), {}, r"consumed_samples 6: not a multiple of micro_batch_size \* data_parallel_size = 4\nh"),
        ((20, 0, 2, 0, 2), {"global_batch_size": 6}, "global batch size 6: not a multiple of micro_batch_size"),
        ((20, 0, 2, 0, 2), {"seed": -1}, "seed"),
    ],
)
def test_bad_settings_are_named(arguments, options, message):
    with pytest.raises(ConfigError, match=message):
        make(*arguments, **options)


def test_set_epoch_is_called():
    class Dataset:
        epochs: list[int] = []  # noqa: RUF012

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

    sampler = make(10, 10, 5, 0, 1, dataset=Dataset())
    list(sampler)
    list(sampler)
    assert Dataset.epochs == [1, 2]
