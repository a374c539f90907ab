"""The order of conversations: shuffled epochs, and packs by next fit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import chat as reference

from tokenloom.errors import ConfigError
from tokenloom.order.conversations import pack_conversations, shuffle_conversations


def test_a_small_order_is_what_the_legacy_shuffle_gives():
    random = np.random.RandomState(5)
    epochs = []
    for _ in range(2):
        epoch = np.array([10, 20, 30, 40])
        random.shuffle(epoch)
        epochs += epoch.tolist()
    assert shuffle_conversations(np.array([10, 20, 30, 40], dtype=np.int32), 7, seed=5).tolist() == epochs[:7]
    stream, starts = pack_conversations(
        np.array([10, 20, 30, 40], dtype=np.int32), np.full(4, 3, dtype=np.int32), 3, capacity=6, seed=5
    )
    assert stream.tolist() == epochs[:6]
    assert starts.tolist() == [0, 2, 4, 6]


@given(
    slots=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    count=st.one_of(st.none(), st.integers(0, 40)),
    more=st.integers(0, 20),
    most=st.none() | st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_packs_agree_with_the_twin_and_are_stable(slots, count, more, most, seed):
    sequences = np.arange(100, 100 + len(slots), dtype=np.int32)
    sizes = np.array(slots, dtype=np.int32)
    options = {"capacity": 9, "most_sequences": most, "seed": seed}
    stream, starts = pack_conversations(sequences, sizes, count, **options)
    rows = [stream[start:stop].tolist() for start, stop in itertools.pairwise(starts)]
    assert [number for row in rows for number in row] == stream.tolist()
    expected = reference.next_fit([slots[number - 100] for number in stream.tolist()], 9, most)
    assert [len(row) for row in rows] == [len(row) for row in expected]
    if count is None:
        assert sorted(stream.tolist()) == sequences.tolist()
        return
    assert len(rows) == count
    longer, longer_starts = pack_conversations(sequences, sizes, count + more, **options)
    assert longer[: len(stream)].tolist() == stream.tolist()
    assert longer_starts[: count + 1].tolist() == starts.tolist()


def test_samples_of_nothing_are_an_error():
    nothing = np.empty(0, dtype=np.int32)
    with pytest.raises(ConfigError, match="2 samples are requested, but there is no conversation"):
        shuffle_conversations(nothing, 2, seed=1)
    with pytest.raises(ConfigError, match="2 samples are requested, but there is no conversation"):
        pack_conversations(nothing, nothing, 2, capacity=4, seed=1)
    assert shuffle_conversations(nothing, None, seed=1).tolist() == []
    stream, starts = pack_conversations(nothing, nothing, None, capacity=4, seed=1)
    assert (stream.tolist(), starts.tolist()) == ([], [0])
