"""Passes before a position: what a walk through the run comes to."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.folders import make_run
from tests.run.small_runs import lock, random_locks, segment, source

from tokenloom.errors import ConfigError
from tokenloom.run.passes import closed_at, passes_before
from tokenloom.run.timeline import Timeline

WEB, CODE = source("web", 8), source("code", 2)


def test_passes_are_whole_ones_and_a_part():
    made = lock([WEB, CODE], [segment(0, 12, [2, 1])])
    assert passes_before(made, 0) == (0, 0)
    assert passes_before(made, 6) == (Fraction(4, 8), Fraction(2, 2))
    assert passes_before(made, 12) == (Fraction(8, 8), Fraction(4, 2))


def test_sources_of_earlier_stages_keep_their_passes():
    made = lock([WEB, CODE], [segment(0, 4, [1, 0]), segment(4, None, [0, 1])])
    assert passes_before(made, 4) == (Fraction(1, 2), 0)
    assert passes_before(made, 7) == (Fraction(1, 2), Fraction(3, 2))


def test_positions_beyond_the_end_are_refused():
    with pytest.raises(ConfigError, match="the run ends at position 12, before 13"):
        passes_before(lock([WEB], [segment(0, 12, [1])]), 13)


def test_a_run_of_a_trillion_samples_is_no_longer():
    made = lock([source("web", 10**9), source("code", 10**8)], [segment(0, None, [3, 1])])
    assert passes_before(made, 4 * 10**11) == (300, 1000)


@given(random_locks(), st.data())
def test_a_closed_run_reads_the_same_before_its_end(made, data):
    stop = made.segments[-1].start + (made.segments[-1].num_samples or 50)
    position = data.draw(st.integers(1, stop))
    positions = np.arange(position)
    whole, closed = (Timeline(one).locate(positions) for one in (made, closed_at(made, position)))
    for name in ("segments", "sources", "walks", "windows"):
        assert np.array_equal(getattr(whole, name), getattr(closed, name))
    lengths = {one.sequence_length for one in made.segments}
    if len(lengths) == 1 and all(pair.since == 0 for one in made.sources for pair in one.pairs):
        counts = np.bincount(whole.sources, minlength=len(made.sources))
        for number, passes in enumerate(passes_before(made, position)):
            windows = sum(pair.num_tokens - pair.held_tokens for pair in made.sources[number].pairs) - 1
            assert passes == Fraction(int(counts[number]), windows // max(lengths))


def test_a_run_tells_passes_by_name(tmp_path):
    run = make_run(tmp_path)
    passes = run.passes(600)
    assert list(passes) == [one.name for one in run.lock.sources]
    assert run.passes(0) == dict.fromkeys(passes, 0.0)
    with pytest.raises(ConfigError, match="the run ends at position 600, before 601"):
        run.passes(601)
