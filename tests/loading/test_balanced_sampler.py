"""`BalancedSampler`: every rank gets the mixture of the blend."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import flat

from tokenloom import MegatronPretrainingSampler
from tokenloom.errors import ConfigError
from tokenloom.kernels.order import build_blending_indices
from tokenloom.samplers import BalancedSampler, BatchSizeSchedule


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


def test_it_resumes_between_steps_with_other_ranks_and_sizes(rng):
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


def test_a_state_within_a_step_is_refused():
    sampler = BalancedSampler(Blend(even([1, 1], 24)), 24, 0, 1, 8, 0, 2)
    with pytest.raises(ConfigError, match="no state within a step: 2 of 4 micro-batches from position 8 were read"):
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


def test_one_rank_reads_in_order_and_wrong_settings_are_refused():
    numbers = even([1, 1], 12)
    assert of_ranks(numbers, micro=2, batch=4, ranks=1) == [np.arange(12).reshape(6, 2).tolist()]
    with pytest.raises(ConfigError, match="list is not a blend"):
        BalancedSampler([], 12, 0, 1, 4, 0, 2)
    with pytest.raises(ConfigError, match="global batch size 6 after 0 samples: not a multiple of micro_batch_size"):
        BalancedSampler(Blend(numbers), 12, 0, 2, 6, 0, 2)


def test_batch_sizes_may_change():
    sizes = BatchSizeSchedule(sizes=((0, 4), (8, 8)))
    numbers = even([1, 1], 24)
    dealt = of_ranks(numbers, micro=1, batch=sizes, ranks=4)
    assert [len(each) for each in dealt] == [6] * 4
    assert [sorted(each[k][0] for each in dealt) for k in (0, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert sorted(flat(flat(each[2:4]) for each in dealt)) == list(range(8, 16))
