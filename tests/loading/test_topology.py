"""Steps, ranks and micro-batches of positions, compared with the sampler."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import ConfigError
from tokenloom.loading.batch_sizes import BatchSizeSchedule, Topology
from tokenloom.loading.samplers import MegatronPretrainingSampler


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


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda: topology_of((0, 4)).ranks(np.array([0])),
            "without `micro_batch_size` and `data_parallel_size`\nhint: pass both to",
        ),
        (lambda: topology_of((0, 4), micro=2), "`micro_batch_size` and `data_parallel_size`: pass both or neither"),
        (lambda: topology_of((0, 4), micro=2, ranks=0), "data_parallel_size"),
        (lambda: topology_of((0, 4)).steps(np.array([5, -3])), "positions must be 0 or more, got -3"),
        (lambda: EIGHT.positions_of(0, rank=2), "rank 2 out of range: there are 2 data-parallel ranks"),
        (lambda: EIGHT.positions_of(3, micro_batch=5), "micro_batch 5 out of range: there are 1 micro-batches"),
        (lambda: EIGHT.ranks(np.array([79, 80])), "global batch size 12 after 80 samples: not a multiple of micro"),
        (lambda: EIGHT.positions_of(10, rank=0), "global batch size 12 in step 10: not a multiple of micro_batch"),
    ],
)
def test_invalid_questions_to_a_topology_are_refused(ask, message):
    with pytest.raises(ConfigError, match=message):
        ask()
    assert EIGHT.ranks(np.array([79])).tolist() == [1]
    assert EIGHT.positions_of(10).tolist() == list(range(80, 92))
