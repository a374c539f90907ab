"""Which windows stand in a range of positions, without looking at each."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.run.small_runs import lock, random_locks, segment, source

from tokenloom.run.audit.windows_read import common, num_tokens_of, num_windows_of, walks_of, windows_read
from tokenloom.run.timeline import Timeline

MOST = 120


def one_by_one(timeline: Timeline, start: int, stop: int) -> dict[int, set[tuple[int, int, int]]]:
    """(sequence length, walk, window) by source."""
    found = defaultdict(set)
    if start < stop:
        at = timeline.locate(np.arange(start, stop))
        for segment, which, walk, window in zip(at.segments, at.sources, at.walks, at.windows, strict=True):
            found[int(which)].add((timeline.segments[segment].sequence_length, int(walk), int(window)))
    return dict(found)


def spelled(read) -> dict[int, set[tuple[int, int, int]]]:
    return {
        which: {
            (cut.sequence_length, *divmod(number, cut.num_windows))
            for cut, ranges in cuts.items()
            for first, stop in ranges
            for number in range(first, stop)
        }
        for which, cuts in read.items()
    }


def test_whole_passes_are_one_range():
    timeline = Timeline(lock([source("web", 30), source("code", 10)], [segment(0, 400, [3, 1])]))
    read = windows_read(timeline, 0, 400)
    [web], [code] = read[0].items(), read[1].items()
    assert (web[0].num_windows, web[1]) == (30, [(0, 300)])
    assert (code[0].num_windows, code[1]) == (10, [(0, 100)])
    assert (num_windows_of(read[0]), num_tokens_of(read[0])) == (300, 3000)
    assert [walk for walk, _ in walks_of(read[0])] == list(range(10))
    assert windows_read(timeline, 40, 80, sources=[1]) == {1: {code[0]: [(10, 20)]}}
    assert windows_read(timeline, 40, 40) == {}


def test_an_endless_run_is_as_quick():
    timeline = Timeline(lock([source("web", 30), source("code", 10)], [segment(0, None, [1, 1])]))
    read = windows_read(timeline, 0, 10**15)
    assert num_windows_of(read[0]) == num_windows_of(read[1]) == 10**15 // 2


@given(random_locks(), st.data())
def test_the_same_as_position_by_position(random_lock, data):
    timeline = Timeline(random_lock)
    end = MOST if timeline.num_samples is None else timeline.num_samples
    start = data.draw(st.integers(0, end))
    stop = data.draw(st.integers(start, end))
    read = windows_read(timeline, start, stop)
    expected = one_by_one(timeline, start, stop)
    assert spelled(read) == expected
    assert sum(map(num_windows_of, read.values())) == stop - start
    for which, cuts in read.items():
        walks = [(cut.sequence_length, walk) for walk, cut in walks_of(cuts)]
        assert len(walks) == len(set(walks))
        assert set(walks) == {(length, walk) for length, walk, _ in expected[which]}
    other = windows_read(timeline, 0, start + (stop - start) // 2)
    for which in read.keys() & other.keys():
        both = spelled({which: common(read[which], other[which])})[which]
        assert both == spelled(read)[which] & spelled(other)[which]
