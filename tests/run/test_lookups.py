"""What stands at positions is the same, remembered or not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.run.small_runs import lock, segment, source

from tokenloom.errors import ConfigError
from tokenloom.kernels import sample_numbers
from tokenloom.run.lookups import Lookups
from tokenloom.run.timeline import Timeline

SOURCES = (source("web", 50), source("code", 30))
TIMELINE = Timeline(lock(SOURCES, [segment(0, 9000, [3, 1]), segment(9000, 5000, [1, 1])], block=64))


@given(st.lists(st.integers(0, 13999).flatmap(lambda at: st.tuples(st.just(at), st.integers(1, 5000))), max_size=12))
@settings(max_examples=60)
def test_whatever_was_asked_before(batches):
    lookups = Lookups(TIMELINE)
    for start, size in batches:
        positions = np.arange(start, min(start + size, 14000), 7)
        found, expected = lookups.at(positions), TIMELINE.locate(positions)
        assert found.sources.tolist() == expected.sources.tolist()
        assert found.numbers.tolist() == sample_numbers(expected.walks, expected.windows).tolist()
        assert found.length == 10


def test_no_positions_and_the_last_ones():
    lookups = Lookups(TIMELINE)
    assert not len(lookups.at(np.empty(0, np.int64)).sources)
    for _ in range(3):
        assert (
            lookups.at(np.array([13999])).numbers.tolist() == lookups.at(np.array([13990, 13999])).numbers[1:].tolist()
        )


def test_near_another_length():
    segments = [segment(0, 100, [1, 1]), segment(100, 100, [1, 1], length=7)]
    lookups = Lookups(Timeline(lock(SOURCES, segments)))
    for position in range(90, 110):
        assert lookups.at(np.array([position])).length == (10 if position < 100 else 7)
    with pytest.raises(ConfigError, match="expected samples of one length in a batch, found 10 tokens"):
        lookups.at(np.array([99, 100]))
