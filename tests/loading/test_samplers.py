"""Positions of each rank: samplers in order, random and balanced, sizes of batches, and resuming with others."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support import flat, make_config, make_dataset, write_corpus

from tokenloom import BlendedMegatronDatasetBuilder, GPTDataset, ThreadLoader
from tokenloom.distributed.ranks import Ranks
from tokenloom.errors import ConfigError, ResonanceWarning
from tokenloom.kernels.order import build_blending_indices
from tokenloom.loading import loader as loaders
from tokenloom.loading.batch_sizes import BatchSizeRampup, BatchSizeSchedule, Topology
from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.resonance import resonance_of_weights
from tokenloom.loading.samplers import HybridCPMegatronPretrainingSampler as HybridSampler
from tokenloom.loading.samplers import (
    MegatronFullValidationSampler,
    MegatronPretrainingRandomSampler,
    MegatronPretrainingSampler,
)
from tokenloom.samplers import BalancedSampler

SIZES = st.integers(1, 4)
TOTALS = st.integers(1, 80)


@given(
    total=st.integers(1, 200),
    first=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    second=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    steps=st.integers(0, 10),
    start=st.integers(0, 20),
)
def test_all_ranks_together_read_each_position_once_in_order(total, first, second, steps, start):
    consumed = min(start, total - 1)
    position = consumed
    order = []
    # Run some steps, then resume with other numbers of ranks and samples per rank.
    for (batch, ranks), most in ((first, steps), (second, 10**9)):
        if position >= total:
            break
        per_rank, samplers = (
            [MegatronPretrainingSampler(total, position, batch, rank, ranks, drop_last) for rank in range(ranks)]
            for drop_last in (False, True)
        )
        per_rank = [list(sampler) for sampler in per_rank]
        whole = [list(sampler) for sampler in samplers]
        assert {len(rank) for rank in per_rank} == {-(-(total - position) // (batch * ranks))}
        assert [len(rank) for rank in whole] == [len(sampler) for sampler in samplers]
        assert {len(rank) for rank in whole} == {(total - position) // (batch * ranks)}
        assert [rank[: len(whole[0])] for rank in per_rank] == whole  # `drop_last` does not change earlier batches
        for step in list(zip(*per_rank, strict=True))[:most]:
            taken = flat(step)
            order += taken
            position += len(taken)
    assert order == list(range(consumed, consumed + len(order)))
    assert position == total


@given(total=TOTALS, micro=SIZES, ranks=SIZES, num_micro=st.integers(1, 4), data=st.data())
def test_global_batches_contain_the_micro_batches(total, micro, ranks, num_micro, data):
    consumed = data.draw(st.integers(0, total - 1))
    rank = data.draw(st.integers(0, ranks - 1))
    size = micro * ranks * num_micro
    for drop_last in (True, False):
        sampler = HybridSampler(total, consumed, micro, size, rank, ranks, drop_last)
        micro_batches = list(MegatronPretrainingSampler(total, consumed, micro, rank, ranks, drop_last))
        if drop_last:
            micro_batches = micro_batches[: len(micro_batches) // num_micro * num_micro]
        expected = [flat(micro_batches[start : start + num_micro]) for start in range(0, len(micro_batches), num_micro)]
        assert list(sampler) == expected
        assert len(sampler) == len(expected)


@given(total=TOTALS, ranks=SIZES)
def test_each_sample_is_validated_once(total, ranks):
    samplers = [MegatronFullValidationSampler(total, rank, ranks) for rank in range(ranks)]
    batches = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(rank) for rank in batches]
    steps = flat(flat(zip(*batches, strict=True)))
    assert steps[:total] == list(range(total))
    assert set(steps[total:]) <= {None}
    samplers = [MegatronFullValidationSampler(total, rank, ranks, pad=False) for rank in range(ranks)]
    unpadded = [flat(sampler) for sampler in samplers]
    assert sorted(flat(unpadded)) == list(range(total))
    assert [len(sampler) for sampler in samplers] == [len(rank) for rank in unpadded]


def test_positions_after_batches_and_ranks_padded_to_the_same_count():
    assert [MegatronPretrainingSampler(10, 1, 2, 1, 2).position_after(n) for n in (0, 1, 2, 3, 9)] == [1, 5, 9, 10, 10]
    hybrid = HybridSampler(20, 3, 2, 8, 0, 2, drop_last=False)
    assert [hybrid.position_after(n) for n in (0, 1, 2, 3)] == [3, 11, 19, 20]
    validation = MegatronFullValidationSampler(4, 2, 3)
    assert [validation.position_after(n) for n in (0, 1, 2)] == [0, 3, 4]
    padded, unpadded = (
        [list(MegatronFullValidationSampler(4, rank, 3, pad=pad)) for rank in range(3)] for pad in (True, False)
    )
    assert padded == [[[0], [3]], [[1], [None]], [[2], [None]]]
    assert unpadded == [[[0], [3]], [[1]], [[2]]]


def in_order_samplers(total, micro, rank, ranks, drop_last):
    return [
        MegatronPretrainingSampler(total, 0, micro, rank, ranks, drop_last),
        HybridSampler(total, 0, micro, 2 * micro * ranks, rank, ranks, drop_last),
        MegatronFullValidationSampler(total, rank, ranks),
    ]


@given(total=TOTALS, micro=SIZES, ranks=SIZES, drop_last=st.booleans(), data=st.data())
def test_begin_at_moves_later_iterations(total, micro, ranks, drop_last, data):
    position = data.draw(st.integers(0, total))
    rank = data.draw(st.integers(0, ranks - 1))
    for number, sampler in enumerate(in_order_samplers(total, micro, rank, ranks, drop_last)):
        under_way = iter(sampler)
        begun = [next(under_way)] if len(sampler) else []
        whole = list(sampler)
        sampler.begin_at(position)
        assert [*begun, *under_way] == whole  # only later iterations start at the position
        assert sampler.position_after(0) == position
        assert len(sampler) == len(list(sampler))
        rest = in_order_samplers(total - position, micro, rank, ranks, drop_last) if position < total else [[]] * 3
        assert list(sampler) == [[None if k is None else k + position for k in batch] for batch in rest[number]]


@given(total=TOTALS, micro=SIZES, ranks=SIZES, drop_last=st.booleans(), position=st.integers(0, 80))
def test_position_after_counts_the_samples_of_all_ranks(total, micro, ranks, drop_last, position):
    position = min(position, total)
    of_ranks = [in_order_samplers(total, micro, rank, ranks, drop_last) for rank in range(ranks)]
    for samplers in zip(*of_ranks, strict=True):
        for sampler in samplers:
            sampler.begin_at(position)
        stop = position
        for number, step in enumerate(zip(*samplers, strict=True), 1):
            taken = sorted(k for k in flat(step) if k is not None)
            assert taken == list(range(stop, stop + len(taken)))
            stop += len(taken)
            assert {sampler.position_after(number) for sampler in samplers} == {stop}


def test_a_position_out_of_range_is_refused_and_changes_nothing():
    sampler = MegatronPretrainingSampler(10, 0, 2, 0, 2)
    for position in (11, -1):
        with pytest.raises(ConfigError, match=r"position.*\nhint: the sampler has fewer samples"):
            sampler.begin_at(position)
    assert sampler.position_after(0) == 0


def positions(dataset, batch_size=None, data_parallel_rank=None, data_parallel_size=None):
    return list(loaders.checked_sampler(dataset, None, batch_size, data_parallel_rank, data_parallel_size))


def test_positions_come_in_order_and_in_lists(prefix):
    dataset = make_dataset(prefix, num_samples=40)
    assert positions(range(10), batch_size=4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert positions(range(10), batch_size=2, data_parallel_rank=1, data_parallel_size=2) == [[2, 3], [6, 7]]
    loader = ThreadLoader(dataset, batch_size=8)
    assert [batch["tokens"].shape for batch in loader] == [(8, 4)] * (len(dataset) // 8)
    with pytest.raises(ConfigError, match="the sampler must yield lists of positions, got 0\nhint: wrap"):
        next(iter(ThreadLoader(make_dataset(prefix, num_samples=40), range(4))))


def test_several_ranks_must_be_passed(monkeypatch):
    monkeypatch.setattr(loaders, "current_ranks", lambda: Ranks(rank=1, world_size=4, host="here"))
    with pytest.raises(ConfigError, match=r"4 ranks of `torch.distributed` would all read the same samples"):
        positions(range(10), batch_size=2)
    assert positions(range(10), batch_size=2, data_parallel_rank=1, data_parallel_size=4) == [[2, 3]]
    with pytest.raises(ConfigError, match="`data_parallel_rank` and `data_parallel_size`: pass both or neither"):
        positions(range(10), batch_size=2, data_parallel_rank=0)
    monkeypatch.setattr(loaders, "current_ranks", lambda: Ranks(rank=0, world_size=1, host="here"))
    assert len(positions(range(10), batch_size=2)) == 5


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


def test_set_epoch_is_called():
    class Dataset:
        epochs: list[int] = []  # noqa: RUF012

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

    sampler = make(10, 10, 5, 0, 1, dataset=Dataset())
    list(sampler)
    list(sampler)
    assert Dataset.epochs == [1, 2]


class Blend:
    def __init__(self, numbers):
        self.numbers, self.order = np.asarray(numbers), self

    def locate(self, positions):
        return self.numbers[positions], positions


def even(weights, size):
    return build_blending_indices(np.array(weights) / np.sum(weights), size=size)[0]


def of_ranks(numbers, *, micro, batch, ranks, consumed=0, **more):
    return [
        list(BalancedSampler(Blend(numbers), len(numbers), consumed, micro, batch, rank, ranks, **more))
        for rank in range(ranks)
    ]


def test_two_even_datasets_on_two_ranks():
    numbers = even([1, 1], 16)
    assert numbers.tolist() == [0, 1] * 8
    by_turns = [flat(MegatronPretrainingSampler(16, 0, 1, rank, 2)) for rank in range(2)]
    assert [sorted(set(numbers[each])) for each in by_turns] == [[0], [1]]
    first, second = of_ranks(numbers, micro=1, batch=4, ranks=2)
    assert [np.bincount(numbers[flat(each)]).tolist() for each in (first, second)] == [[4, 4], [4, 4]]


@given(
    micro=st.integers(1, 3),
    ranks=st.integers(1, 6),
    accumulated=st.integers(1, 4),
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    steps=st.integers(1, 12),
    seed=st.integers(0, 3),
)
def test_each_global_batch_is_shared_evenly_to_within_one_sample_of_each_dataset(
    micro, ranks, accumulated, weights, steps, seed
):
    batch = micro * ranks * accumulated
    numbers = even(weights, batch * steps)
    dealt = of_ranks(numbers, micro=micro, batch=batch, ranks=ranks, seed=seed)
    assert all(len(each) == accumulated * steps for each in dealt)
    for step in range(steps):
        mine = [flat(each[step * accumulated : (step + 1) * accumulated]) for each in dealt]
        assert sorted(flat(mine)) == list(range(step * batch, (step + 1) * batch))
        for number, count in enumerate(np.bincount(numbers[step * batch : (step + 1) * batch])):
            found = [int((numbers[each] == number).sum()) for each in mine]
            assert {count // ranks, -(-count // ranks)} >= set(found)


def test_it_resumes_between_steps_alone_with_other_ranks_and_sizes(rng):
    numbers = even([5, 3, 2], 240)
    whole = of_ranks(numbers, micro=2, batch=24, ranks=4)
    sampler = BalancedSampler(Blend(numbers), 240, 0, 2, 24, 0, 4)
    assert [sampler.position_after(count) for count in (0, 3, 6, 30, 99)] == [0, 24, 48, 240, 240]
    resumed = of_ranks(numbers, micro=2, batch=24, ranks=4, consumed=96)
    assert resumed == [each[12:] for each in whole]
    other = of_ranks(numbers, micro=3, batch=48, ranks=8, consumed=96)
    assert sorted(flat(flat(each) for each in other)) == list(range(96, 240))
    sampler.begin_at(96)
    assert list(sampler) == resumed[0]
    sampler = BalancedSampler(Blend(even([1, 1], 24)), 24, 0, 1, 8, 0, 2)
    with pytest.raises(ConfigError, match="no state within a step: 2 of 4 micro-batches were read since position 8"):
        sampler.position_after(6)
    assert BalancedSampler(Blend(even([1, 1], 24)), 24, 0, 1, 8, 0, 1).position_after(3) == 3


@pytest.mark.parametrize("drop_last", [True, False])
def test_the_incomplete_last_batch(drop_last):
    numbers = even([1, 1], 23)
    dealt = of_ranks(numbers, micro=2, batch=8, ranks=2, drop_last=drop_last)
    read = sorted(flat(flat(each) for each in dealt))
    assert read == list(range(20 if drop_last else 23))
    samplers = [BalancedSampler(Blend(numbers), 23, 0, 2, 8, rank, 2, drop_last) for rank in range(2)]
    assert [len(each) for each in samplers] == [len(each) for each in dealt]


def test_one_rank_reads_in_order_and_batch_sizes_may_change():
    assert of_ranks(even([1, 1], 12), micro=2, batch=4, ranks=1) == [np.arange(12).reshape(6, 2).tolist()]
    sizes = BatchSizeSchedule(sizes=((0, 4), (8, 8)))
    numbers = even([1, 1], 24)
    dealt = of_ranks(numbers, micro=1, batch=sizes, ranks=4)
    assert [len(each) for each in dealt] == [6] * 4
    assert [sorted(each[k][0] for each in dealt) for k in (0, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert sorted(flat(flat(each[2:4]) for each in dealt)) == list(range(8, 16))


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
    assert (resonance is None) == (numbers is None)
    if resonance is not None:
        assert (resonance.share, resonance.least, resonance.most) == pytest.approx(numbers, abs=1e-3)
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


parse = BatchSizeSchedule.parse


@st.composite
def schedules(draw):
    starts = sorted(draw(st.sets(st.integers(1, 400), max_size=6)))
    return BatchSizeSchedule(sizes=tuple((start, draw(st.integers(1, 60))) for start in (0, *starts)))


@st.composite
def ramps(draw):
    start, increment = draw(st.integers(1, 10)), draw(st.integers(1, 10))
    return make_ramp(start, increment, draw(st.integers(0, 400)), start + increment * draw(st.integers(0, 40)))


@pytest.mark.parametrize(
    ("text", "length", "sizes"),
    [
        ("0:768", None, ((0, 768),)),
        ("0:768 1000:1536", None, ((0, 768), (1000, 1536))),
        ("0:768,1000:1536", None, ((0, 768), (1000, 1536))),
        (
            *("0K:8 1K:16 2m:32 3B:4 4G:5 5T:6", 1),
            ((0, 8), (1000, 16), (2 * 10**6, 32), (3 * 10**9, 4), (4 * 10**9, 5), (5 * 10**12, 6)),
        ),
        ("0:8 199:16", 100, ((0, 8), (1, 16))),  # rounded down to whole samples
        ("0:8 200:16", 100, ((0, 8), (2, 16))),
        ("0:8 9223372036854775807:1", None, ((0, 8), (2**63 - 1, 1))),
        ("0:8 200:16", np.int32(100), ((0, 8), (2, 16))),
    ],
)
def test_schedules_are_parsed(text, length, sizes):
    assert parse(text, sequence_length=length).sizes == sizes


WRITTEN = "write `THRESHOLD:BATCH_SIZE` items, such as `0:768 250B:1536`"


@pytest.mark.parametrize(
    ("text", "item", "fault", "hint"),
    [
        ("", "item 1 '' at column 1", " is empty", WRITTEN),
        ("0:8,,9:3", "item 2 '' at column 5", " is empty", WRITTEN),
        ("0:8 9", "item 2 '9' at column 5", " is not `THRESHOLD:BATCH_SIZE`", WRITTEN),
        ("0:nan", "item 1 '0:nan' at column 1", " is not `THRESHOLD:BATCH_SIZE`", WRITTEN),
        ("0:8 9:0", "item 2 '9:0' at column 5", ": the batch size must be an integer in [1, 2**63)", None),
        ("0:8 9.5:3", "item 2 '9.5:3' at column 5", ": the threshold must be an integer in [0, 2**63)", None),
        ("5:8", "item 1 '5:8' at column 1", ": must start at 0, got 5", "start with threshold 0: `0:768`"),
        (
            *("0:8 9:3 9:4", "item 3 '9:4' at column 9", ": starts after 9 samples, but the previous item after 9"),
            "write thresholds in ascending order, at least one sample apart",
        ),
        (
            *("0:8 250B:16", "item 2 '250B:16' at column 5"),
            ": a threshold with a suffix needs a sequence length",
            "pass `sequence_length`, or write the threshold as a number of samples",
        ),
    ],
)
def test_invalid_schedules_are_refused(text, item, fault, hint):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.message == f"{item} of the batch size schedule{fault}"
    assert caught.value.hint == hint


def test_a_step_keeps_its_batch_size_and_thresholds_may_be_tokens_of_changing_lengths():
    schedule = parse("0:4 10:8 12:1 30:2")  # steps at 0, 4, 8 of 4; the sizes at 12, 13, … are 1; then 30, 32, …
    assert [schedule.position_of_step(step) for step in (0, 1, 2, 3, 4, 20, 21, 22)] == [0, 4, 8, 12, 13, 29, 30, 32]
    assert [schedule.step_of_position(position) for position in (0, 3, 4, 11, 12, 13, 29, 30, 31, 32)] == [
        *(0, 0, 1, 2, 3, 4, 20, 21, 21, 22)
    ]
    lengths = [(0, 10), (5, 100), (8, 1)]  # 50 tokens in samples of 10, then 300 in samples of 100
    for tokens, start in ((49, 4), (50, 5), (149, 5), (150, 6), (349, 7), (350, 8), (351, 9)):
        assert parse(f"0:1 {tokens}:2", sequence_length=lengths).sizes[1][0] == start


@given(sizes=st.one_of(schedules(), ramps()), num_steps=st.integers(0, 200))
def test_steps_follow_each_other_by_their_sizes(sizes, num_steps):
    position = 0
    for step in range(num_steps):
        assert sizes.position_of_step(step) == position
        size = sizes.batch_size(position)
        assert sizes.step_of_position(position) == sizes.step_of_position(position + size - 1) == step
        position += size


@given(sizes=st.one_of(schedules(), ramps()), step=st.integers(0, 10**18))
def test_step_and_position_are_inverse(sizes, step):
    position = sizes.position_of_step(step)
    assert sizes.step_of_position(position) == step
    if position:
        assert sizes.step_of_position(position - 1) == step - 1


def make_ramp(start, increment, samples, size):
    return BatchSizeRampup(
        start_global_batch_size=start, batch_size_increment=increment, rampup_samples=samples, global_batch_size=size
    )


def test_sizes_grow_evenly_in_whole_micro_batches():
    ramp = make_ramp(16, 8, 300, 64)  # 6 increments, one each 50 samples
    assert [ramp.batch_size(consumed) for consumed in (0, 49, 50, 99, 100, 250, 299, 300, 301, 10**12)] == [
        *(16, 16, 24, 24, 32, 56, 56, 64, 64, 64)
    ]
    ramp = make_ramp(4, 4, 24, 12)
    assert [ramp.num_micro_batches(n, micro_batch_size=1, data_parallel_size=2) for n in (0, 12, 24)] == [2, 4, 6]
    less = {"micro_batch_size": 3, "data_parallel_size": 1, "decrease_batch_size_if_needed": True}
    assert [ramp.num_micro_batches(n, **less) for n in (0, 12, 24)] == [1, 2, 4]


def topology_of(*sizes: tuple[int, int], micro: int | None = None, ranks: int | None = None) -> Topology:
    return Topology(batch_sizes=BatchSizeSchedule(sizes=sizes), micro_batch_size=micro, data_parallel_size=ranks)


@st.composite
def topologies(draw) -> Topology:
    micro, ranks = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    starts = sorted(draw(st.sets(st.integers(1, 150), max_size=4)))
    sizes = [(start, micro * ranks * draw(st.integers(1, 4))) for start in (0, *starts)]
    return topology_of(*sizes, micro=micro, ranks=ranks)


def dealt(topology: Topology, num_steps: int) -> list[tuple[int, int, int, int]]:
    """Returns (position, step, rank, micro-batch) of all steps, as in the sampler."""
    micro, num_ranks = topology.micro_batch_size, topology.data_parallel_size
    assert micro is not None
    assert num_ranks is not None
    total = topology.batch_sizes.position_of_step(num_steps)
    found = []
    for rank in range(num_ranks):
        batches = iter(MegatronPretrainingSampler(total, 0, micro, rank, num_ranks))
        consumed = 0
        for step in range(num_steps):
            size = topology.batch_sizes.batch_size(consumed)
            for number in range(size // (micro * num_ranks)):
                found += [(position, step, rank, number) for position in next(batches)]
            consumed += size
        assert next(batches, None) is None
    return sorted(found)


@given(topologies(), st.integers(1, 12))
def test_topology_agrees_with_the_sampler(topology, num_steps):
    expected = np.array(dealt(topology, num_steps))
    positions = expected[:, 0]
    assert positions.tolist() == list(range(len(positions)))
    assert topology.steps(positions).tolist() == expected[:, 1].tolist()
    assert topology.ranks(positions).tolist() == expected[:, 2].tolist()
    assert topology.micro_batches(positions).tolist() == expected[:, 3].tolist()
    step = num_steps - 1
    for rank, micro_batch in {(None, None), (0, None), (None, 0), *map(tuple, expected[-1:, 2:].tolist())}:
        rows = expected[expected[:, 1] == step]
        rows = rows if rank is None else rows[rows[:, 2] == rank]
        rows = rows if micro_batch is None else rows[rows[:, 3] == micro_batch]
        assert topology.positions_of(step, rank=rank, micro_batch=micro_batch).tolist() == rows[:, 0].tolist()


def test_positions_in_any_order():
    topology = topology_of((0, 4), (8, 6))
    assert topology.steps(np.array([20, 3, 8, 13, 14, 3])).tolist() == [4, 0, 2, 2, 3, 0]
    assert topology.steps(np.empty(0, dtype=np.int64)).tolist() == []
    assert topology.steps(np.array([10**15])).tolist() == [2 + (10**15 - 8) // 6]


EIGHT = topology_of((0, 8), (80, 12), micro=4, ranks=2)  # the second size is not a multiple of 4 * 2


NO_RANKS = "without `micro_batch_size` and `data_parallel_size`\nhint: pass both to"
CHUNK = r"not a multiple of micro_batch_size \* data_parallel_size = 4\nhint: "


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: MegatronPretrainingSampler(0, 0, 2, 0, 2), "total_samples.*\nhint: dataset is empty"),
        (lambda: MegatronPretrainingSampler(10, 10, 2, 0, 2), "consumed_samples.*\nhint: no samples are left"),
        (lambda: MegatronPretrainingSampler(10, 0, 2.0, 0, 2), "micro_batch_size"),
        (lambda: MegatronPretrainingSampler(10, 0, 2, 2, 2), "data_parallel_rank"),
        (lambda: HybridSampler(20, 0, 2, 6, 0, 2), f"global batch size 6: {CHUNK}choose"),
        (lambda: make(3, 0, 2, 0, 2), "3 samples are too few for a batch of 4 over all ranks\nhint: use smaller"),
        (lambda: make(20, 6, 2, 0, 2), f"consumed_samples 6: {CHUNK}"),
        (lambda: make(20, 0, 2, 0, 2, global_batch_size=6), "global batch size 6: not a multiple of micro_batch_size"),
        (lambda: make(20, 0, 2, 0, 2, seed=-1), "seed"),
        (lambda: BalancedSampler([], 12, 0, 1, 4, 0, 2), "list is not a blend"),
        (
            lambda: BalancedSampler(Blend([0, 1] * 6), 12, 0, 2, 6, 0, 2),
            "global batch size 6 after 0 samples: not a multiple of micro_batch_size",
        ),
        (lambda: BatchSizeSchedule(sizes=((3, 8),)), r"the consumed samples of sizes\[0\]"),
        (lambda: BatchSizeSchedule(sizes=((0, 8), (5, 9), (4, 8))), r"the consumed samples of sizes\[2\]"),
        (lambda: BatchSizeSchedule(sizes=((0, 0),)), r"the batch size of sizes\[0\]"),
        (
            lambda: BatchSizeSchedule(sizes=("0:8",)),
            r"`sizes\[0\]`: must be \(consumed samples, batch size\), got '0:8'",
        ),
        (
            lambda: BatchSizeSchedule(sizes=()),
            r"`sizes` is empty\nhint: pass at least one \(consumed samples, batch size\)",
        ),
        *((lambda number=number: parse("0:4 9:8").position_of_step(number), "step") for number in (-1, 1.5)),
        *((lambda number=number: parse("0:4 9:8").step_of_position(number), "position") for number in (-1, 1.5)),
        *((lambda number=number: parse("0:4 9:8").batch_size(number), "consumed_samples") for number in (-1, 1.5)),
        (lambda: make_ramp(0, 4, 10, 8), "start_global_batch_size"),
        (lambda: make_ramp(12, 4, 10, 8), "global_batch_size"),
        (lambda: make_ramp(4, 3, 10, 8), "batch_size_increment 3: must divide 8 - 4"),
        (
            lambda: make_ramp(4, 4, 24, 12).num_micro_batches(0, micro_batch_size=0, data_parallel_size=2),
            "micro_batch_size",
        ),
        (lambda: topology_of((0, 4)).ranks(np.array([0])), NO_RANKS),
        (lambda: topology_of((0, 4), micro=2), "`micro_batch_size` and `data_parallel_size`: pass both or neither"),
        (lambda: topology_of((0, 4), micro=2, ranks=0), "data_parallel_size"),
        (lambda: topology_of((0, 4)).steps(np.array([5, -3])), "positions must be 0 or more, got -3"),
        (lambda: EIGHT.positions_of(0, rank=2), "rank 2 out of range: there are 2 data-parallel ranks"),
        (lambda: EIGHT.positions_of(3, micro_batch=5), "micro_batch 5 out of range: there are 1 micro-batches"),
        (lambda: EIGHT.ranks(np.array([79, 80])), "global batch size 12 after 80 samples: not a multiple of micro"),
        (lambda: EIGHT.positions_of(10, rank=0), "global batch size 12 in step 10: not a multiple of micro_batch"),
    ],
)
def test_invalid_settings_and_questions_are_refused(ask, message):
    with pytest.raises(ConfigError, match=message):
        ask()
    assert EIGHT.ranks(np.array([79])).tolist() == [1]
    assert EIGHT.positions_of(10).tolist() == list(range(80, 92))
