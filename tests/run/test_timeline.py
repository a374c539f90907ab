"""Positions to windows and back, against a twin that walks through the run and keeps lists."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.timeline import run_through
from tests.run.small_runs import lock, pair, random_locks, segment, source, tuples

from tokenloom.errors import ConfigError
from tokenloom.kernels.walks import sample_numbers
from tokenloom.run.dataset import Lookups
from tokenloom.run.lock import LockedSource
from tokenloom.run.progress import TakeMap
from tokenloom.run.timeline import Timeline


def rows(timeline: Timeline, first: int, stop: int) -> list[tuple[int, int, int, int]]:
    return tuples(*timeline.locate(np.arange(first, stop)))


def end_of(lock, most: int = 700) -> int:
    last = lock.segments[-1]
    return last.start + (min(most, 100) if last.num_samples is None else last.num_samples)


def windows_of(timeline: Timeline, number: int) -> list[tuple[int, int]]:
    """The windows of a source in the order of the run."""
    return [
        (walk, window) for _, source, walk, window in rows(timeline, 0, timeline.lock.num_samples) if source == number
    ]


def test_one_source_is_read_walk_after_walk():
    timeline = Timeline(lock([source("web", 3)], [segment(0, 7, [1])]))
    assert rows(timeline, 0, 7) == [(0, 0, take // 3, take % 3) for take in range(7)]
    assert timeline.lock.num_samples == 7
    assert timeline.positions_of(0, np.array([2, 1, 2]), np.array([0, 2, 1]), sequence_length=10).tolist() == [6, 5, -1]


def test_a_source_that_grows_ends_its_pass_together_with_the_new_data():
    stages = [segment(0, 2, [1]), segment(2, 14, [1])]
    timeline = Timeline(lock([source("web", 4, 4, since=(0, 2))], stages))
    windows = windows_of(timeline, 0)
    assert windows[:2] == [(0, 0), (0, 1)]
    assert sorted(windows[2:8]) == [(0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert [window for window in windows[2:8] if window[0] == 0] == [(0, 2), (0, 3)]
    assert windows[8:] == [(2, window) for window in range(8)]
    walks = [timeline.walk_of(0, walk) for walk in range(4)]
    assert [(walk.first_pair, walk.last_pair, walk.pass_number) for walk in walks] == [
        (0, 1, 0), (1, 2, 0), (0, 2, 1), (0, 2, 2)
    ]  # fmt: skip
    assert [int(timeline.segment(number).entered.num_pairs[0]) for number in range(2)] == [1, 2]


def test_what_a_cut_leaves_of_a_mixing_block_comes_first_after_it():
    whole = Timeline(lock([source("web", 50), source("code", 50)], [segment(0, 16, [1, 1])], block=8))
    segments = [segment(0, 11, [1, 1], mixed_as=16), segment(11, 20, [1, 1])]
    cut = Timeline(lock([source("web", 50), source("code", 50)], segments, block=8))
    assert rows(cut, 0, 11) == rows(whole, 0, 11)
    for number in range(2):
        assert sorted(windows_of(cut, number)) == [(0, window) for window in range(len(windows_of(cut, number)))]
        left = sorted(set(windows_of(whole, number)) - {row[2:] for row in rows(whole, 0, 11) if row[1] == number})
        after = [row[2:] for row in rows(cut, 11, 31) if row[1] == number]
        assert sorted(after)[: len(left)] == left


@given(random_locks())
def test_it_is_what_the_twin_finds(lock):
    timeline, stop = Timeline(lock), end_of(lock)
    expected, _ = run_through(lock, stop)
    assert rows(timeline, 0, stop) == expected


@given(random_locks(), st.randoms())
def test_any_positions_in_any_order(lock, random):
    stop = end_of(lock)
    expected, _ = run_through(lock, stop)
    positions = [random.randrange(stop) for _ in range(30)]
    found = tuples(*Timeline(lock).locate(np.array(positions)))
    assert found == [expected[position] for position in positions]


@given(random_locks())
def test_the_inverse_finds_nothing_else(lock):
    timeline, stop = Timeline(lock), end_of(lock)
    expected = {
        (source, walk, window): position
        for position, (_, source, walk, window) in enumerate(run_through(lock, stop)[0])
    }
    lengths = {(row[1], row[2]): lock.segments[row[0]].sequence_length for row in run_through(lock, stop)[0]}
    for number in range(len(lock.sources)):
        walks, windows = (part.ravel() for part in np.meshgrid(np.arange(-1, 25), np.arange(-1, 40), indexing="ij"))
        for length in (7, 10):
            positions = timeline.positions_of(number, walks, windows, sequence_length=length)
            for walk, window, position in zip(walks.tolist(), windows.tolist(), positions.tolist(), strict=True):
                there = expected.get((number, walk, window), -1) if lengths.get((number, walk)) == length else -1
                assert position == there or (there == -1 and position >= stop)


@given(random_locks())
def test_walks_are_what_the_twin_walked(lock):
    timeline, stop = Timeline(lock), end_of(lock)
    found, streams = run_through(lock, stop)
    for number, walk in {row[1:3] for row in found}:
        known, walked = timeline.walk_of(number, walk), streams[number].walks[walk]
        assert (known.first_pair, known.last_pair) == (walked.first_pair, walked.last_pair)
        assert (known.pass_number, known.sequence_length) == (walked.pass_number, walked.sequence_length)


def test_a_timeline_is_pickled_as_its_lock():
    timeline = Timeline(lock([source("web", 3)], [segment(0, 7, [1])]))
    assert rows(pickle.loads(pickle.dumps(timeline)), 0, 7) == rows(timeline, 0, 7)


ENDLESS, LONG = segment(0, None, [1]), segment(0, 2**22, [1])


@pytest.mark.parametrize(
    ("num_windows", "segments", "position", "message"),
    [
        (3, [segment(0, 5, [1]), segment(5, 5, [1], length=31)], 5, "'web' at position 5 .* has 0 samples of 31"),
        (2**40, [segment(0, 5, [1])], 0, f"has {2**40} samples"),
        (1, [ENDLESS], 2**22, r"source 'web' would be read .* times up to position 4194304"),
        (1, [LONG, segment(2**22, 1, [1])], 2**22, "source 'web' would be read .* times up to stage 'main'"),
        (3, [segment(0, 7, [1])], -1, "position -1 out of range: the run has 7 samples"),
        (3, [segment(0, 7, [1])], 7, "position 7 out of range: the run has 7 samples"),
    ],
)
def test_sizes_and_positions_that_are_refused(num_windows, segments, position, message):
    timeline = Timeline(lock([source("web", num_windows)], segments))
    with pytest.raises((ConfigError, IndexError), match=message):
        timeline.locate(np.array([position]))


def test_the_most_walks():
    assert Timeline(lock([source("web", 1)], [ENDLESS])).locate(np.array([2**22 - 1])).walks == 2**22 - 1


def test_packs_are_counted_where_windows_are_packs():
    web = LockedSource(name="web", pairs=(pair(1000, packs=((10, 3), (20, 2))), pair(1000, packs=((10, 1), (20, 1)))))
    run = lock([web], [segment(0, 5, [1]), segment(5, 4, [1], length=20)], windows="best_fit")
    timeline = Timeline(run)
    assert [timeline.walk_of(0, walk).num_windows for walk in (1, 2)] == [4, 3]


SOURCES = (source("web", 50), source("code", 30))
TIMELINE = Timeline(lock(SOURCES, [segment(0, 9000, [3, 1]), segment(9000, 5000, [1, 1])], block=64))


@given(st.lists(st.integers(0, 13999).flatmap(lambda at: st.tuples(st.just(at), st.integers(1, 5000))), max_size=12))
def test_whatever_was_asked_before(batches):
    lookups = Lookups(TIMELINE)
    for start, size in batches:
        positions = np.arange(start, min(start + size, 14000), 7)
        (length, sources, numbers), expected = lookups.at(positions), TIMELINE.locate(positions)
        assert sources.tolist() == expected.sources.tolist()
        assert numbers.tolist() == sample_numbers(expected.walks, expected.windows).tolist()
        assert length == 10


def test_near_another_length():
    segments = [segment(0, 100, [1, 1]), segment(100, 100, [1, 1], length=7)]
    lookups = Lookups(Timeline(lock(SOURCES, segments)))
    for position in range(90, 110):
        assert lookups.at(np.array([position]))[0] == (10 if position < 100 else 7)
    with pytest.raises(ConfigError, match="a batch mixes samples of 10 tokens"):
        lookups.at(np.array([99, 100]))


def windows(take_map: TakeMap) -> list[tuple[int, int]]:
    return tuples(*take_map.locate(np.arange(len(take_map))))


def test_merged_maps_keep_their_orders_and_end_together():
    found = windows(TakeMap.merged([TakeMap.of((0, 10, 14)), TakeMap.of((1, 0, 8))]))
    assert [window for walk, window in found if walk == 0] == [10, 11, 12, 13]
    assert [window for walk, window in found if walk == 1] == list(range(8))
    for stop in range(3, 13, 3):
        assert sum(walk == 0 for walk, _ in found[:stop]) == stop // 3


MAPS = st.recursive(
    st.builds(lambda first, count: (first, count), st.integers(0, 5), st.integers(1, 6)),
    lambda parts: st.tuples(st.sampled_from(["chain", "merge"]), st.lists(parts, min_size=2, max_size=3)),
    max_leaves=6,
)


def built(plan, numbers) -> TakeMap:
    """A map of a plan, each range or row of single windows of a walk of its own."""
    if plan[0] in ("chain", "merge"):
        parts = [built(part, numbers) for part in plan[1]]
        return sum(parts, TakeMap.of()) if plan[0] == "chain" else TakeMap.merged(parts[:2])
    first, count = plan
    walk = next(numbers)
    if walk % 2:
        return TakeMap.of(*((walk, at, at + 1) for at in range(first + 2 * count - 2, first - 1, -2)))
    return TakeMap.of((walk, first, first + count))


@given(MAPS, st.data())
def test_maps_and_their_rests_are_one_to_one(plan, data):
    whole = built(plan, iter(range(100)))
    found = windows(whole)
    assert len(set(found)) == len(found) == len(whole)
    first = data.draw(st.integers(0, len(whole)))
    second = data.draw(st.integers(0, len(whole) - first))
    rest = whole.rest(first).rest(second)
    assert len(rest) == len(whole) - first - second
    if len(rest):
        assert windows(rest) == found[first + second :]
        walks, numbers = np.meshgrid(np.arange(-1, 12), np.arange(-1, 20))
        takes = rest.takes(walks.ravel(), numbers.ravel())
        start = data.draw(st.integers(0, len(rest)))
        stop = data.draw(st.integers(start, len(rest)))
        spelled = [(walk, window) for walk, *ends in rest.ranges(start, stop) for window in range(*ends)]
        assert sorted(spelled) == sorted(windows(rest)[start:stop])
        expected = {window: take for take, window in enumerate(windows(rest))}
        asked = zip(walks.ravel().tolist(), numbers.ravel().tolist(), strict=True)
        assert takes.tolist() == [expected.get(window, -1) for window in asked]
