"""Samplers in order: the positions of each rank, and resuming with other sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import flat, make_dataset

from tokenloom import ConfigError, ThreadLoader
from tokenloom.distributed.ranks import Ranks
from tokenloom.loading import loader as loaders
from tokenloom.loading.samplers import HybridCPMegatronPretrainingSampler as HybridSampler
from tokenloom.loading.samplers import MegatronFullValidationSampler, MegatronPretrainingSampler

SIZES = st.integers(1, 5)
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


def test_the_global_batch_must_be_a_multiple_of_the_chunk():
    expected = r"global batch size 6: not a multiple of micro_batch_size \* data_parallel_size = 4\nhint: choose"
    with pytest.raises(ConfigError, match=expected):
        HybridSampler(20, 0, 2, 6, 0, 2)


def test_ranks_are_padded_to_the_same_count():
    padded, unpadded = (
        [list(MegatronFullValidationSampler(4, rank, 3, pad=pad)) for rank in range(3)] for pad in (True, False)
    )
    assert padded == [[[0], [3]], [[1], [None]], [[2], [None]]]
    assert unpadded == [[[0], [3]], [[1]], [[2]]]


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


def test_positions_after_batches():
    assert [MegatronPretrainingSampler(10, 1, 2, 1, 2).position_after(n) for n in (0, 1, 2, 3, 9)] == [1, 5, 9, 10, 10]
    hybrid = HybridSampler(20, 3, 2, 8, 0, 2, drop_last=False)
    assert [hybrid.position_after(n) for n in (0, 1, 2, 3)] == [3, 11, 19, 20]
    validation = MegatronFullValidationSampler(4, 2, 3)
    assert [validation.position_after(n) for n in (0, 1, 2)] == [0, 3, 4]


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0, 0, 2, 0, 2), "total_samples.*\nhint: dataset is empty"),
        ((10, 10, 2, 0, 2), "consumed_samples.*\nhint: no samples are left"),
        ((10, 0, 2.0, 0, 2), "micro_batch_size"),
        ((10, 0, 2, 2, 2), "data_parallel_rank"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        MegatronPretrainingSampler(*settings)
    sampler = MegatronPretrainingSampler(10, 0, 2, 0, 2)
    for position in (11, -1):
        with pytest.raises(ConfigError, match=r"position.*\nhint: the sampler has fewer samples"):
            sampler.begin_at(position)
    assert sampler.position_after(0) == 0


def positions(dataset, batch_size=None, data_parallel_rank=None, data_parallel_size=None):
    return list(loaders.checked_sampler(dataset, None, batch_size, data_parallel_rank, data_parallel_size))


def test_positions_come_in_order(prefix):
    dataset = make_dataset(prefix, num_samples=40)
    assert positions(range(10), batch_size=4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert positions(range(10), batch_size=2, data_parallel_rank=1, data_parallel_size=2) == [[2, 3], [6, 7]]
    loader = ThreadLoader(dataset, batch_size=8)
    assert [batch["tokens"].shape for batch in loader] == [(8, 4)] * (len(dataset) // 8)


def test_several_ranks_must_be_passed(monkeypatch):
    monkeypatch.setattr(loaders, "current_ranks", lambda: Ranks(rank=1, world_size=4, host="here"))
    with pytest.raises(ConfigError, match=r"4 ranks of `torch.distributed` would all read the same samples"):
        positions(range(10), batch_size=2)
    assert positions(range(10), batch_size=2, data_parallel_rank=1, data_parallel_size=4) == [[2, 3]]
    with pytest.raises(ConfigError, match="`data_parallel_rank` and `data_parallel_size`: pass both or neither"):
        positions(range(10), batch_size=2, data_parallel_rank=0)
    monkeypatch.setattr(loaders, "current_ranks", lambda: Ranks(rank=0, world_size=1, host="here"))
    assert len(positions(range(10), batch_size=2)) == 5


def test_a_sampler_of_single_positions_is_refused(prefix):
    with pytest.raises(ConfigError, match="the sampler must yield lists of positions, got 0\nhint: wrap"):
        next(iter(ThreadLoader(make_dataset(prefix, num_samples=40), range(4))))
