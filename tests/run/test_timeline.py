"""Positions to windows and back, against a twin that walks through the run and keeps lists."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.timeline import run_through
from tests.run.small_runs import lock, pair, random_locks, segment, source

from tokenloom.errors import ConfigError
from tokenloom.kernels.walks import sample_numbers
from tokenloom.run.dataset import Lookups
from tokenloom.run.lock import LockedSource
from tokenloom.run.progress import WalkSizes, extra_tokens
from tokenloom.run.timeline import Timeline


def rows(timeline: Timeline, first: int, stop: int) -> list[tuple[int, int, int, int]]:
    found = timeline.locate(np.arange(first, stop))
    return list(
        zip(*(column.tolist() for column in (found.segments, found.sources, found.walks, found.windows)), strict=True)
    )


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


def test_takes_go_on_over_stages_and_while_a_source_is_away():
    stages = [segment(0, 4, [1, 1]), segment(4, 3, [0, 1]), segment(7, 4, [1, 0])]
    timeline = Timeline(lock([source("web", 5), source("code", 9)], stages))
    assert windows_of(timeline, 0) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0)]
    assert windows_of(timeline, 1) == [(0, window) for window in range(5)]


def test_another_sequence_length_begins_a_new_walk():
    stages = [segment(0, 4, [1]), segment(4, 3, [1], length=20), segment(7, 2, [1])]
    timeline = Timeline(lock([source("web", 5)], stages))
    assert windows_of(timeline, 0) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (2, 0), (3, 0), (3, 1)]
    assert [timeline.walk_of(0, walk).num_windows for walk in range(4)] == [5, 2, 2, 5]
    assert [timeline.walk_of(0, walk).sequence_length for walk in range(4)] == [10, 20, 20, 10]
    assert timeline.positions_of(0, np.array([0, 1]), np.array([1, 1]), sequence_length=20).tolist() == [-1, 5]


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


def test_new_data_between_two_passes_waits_for_nothing():
    timeline = Timeline(lock([source("web", 2, 4, since=(0, 2))], [segment(0, 2, [1]), segment(2, 6, [1])]))
    assert windows_of(timeline, 0) == [(0, 0), (0, 1), *((1, window) for window in range(6))]
    assert timeline.walk_of(0, 1).last_pair == 2


def test_new_data_of_less_than_a_window_waits_for_the_next_pass():
    web = LockedSource(name="web", pairs=(pair(41), pair(9, since=2)))
    timeline = Timeline(lock([web], [segment(0, 2, [1]), segment(2, 5, [1])]))
    assert windows_of(timeline, 0) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)]
    assert [timeline.walk_of(0, walk).last_pair for walk in range(2)] == [1, 2]


def test_what_a_cut_leaves_of_a_mixing_block_comes_first_after_it():
    whole = Timeline(lock([source("web", 50), source("code", 50)], [segment(0, 16, [1, 1])], block=8))
    cut = Timeline(
        lock(
            [source("web", 50), source("code", 50)],
            [segment(0, 11, [1, 1], mixed_as=16), segment(11, 20, [1, 1])],
            block=8,
        )
    )
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
    found = Timeline(lock).locate(np.array(positions))
    assert list(zip(found.sources.tolist(), found.walks.tolist(), found.windows.tolist(), strict=True)) == [
        expected[position][1:] for position in positions
    ]


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


@given(random_locks(), st.integers(2, 10))
def test_a_longer_stage_begins_as_a_shorter_one(lock, times):
    last = lock.segments[-1]
    size = lock.mixing_block * 3
    short, long = (
        Timeline(replace(lock, segments=(*lock.segments[:-1], part)))
        for part in (resized(last, size), resized(last, size * times))
    )
    assert rows(short, 0, last.start + size) == rows(long, 0, last.start + size)


def resized(segment, size):
    return replace(segment, num_samples=size, mixed_as=None)


def test_a_source_of_less_than_a_window_is_refused():
    timeline = Timeline(lock([source("web", 3)], [segment(0, 5, [1]), segment(5, 5, [1], length=31)]))
    with pytest.raises(
        ConfigError,
        match=r"of 31 tokens in source 'web' at position 5 .*found 0 in the 31 tokens of 1 pairs",
    ):
        timeline.locate(np.array([5]))


def test_a_source_of_too_many_windows_is_refused():
    with pytest.raises(ConfigError, match=f"found {2**40} in the"):
        Timeline(lock([source("web", 2**40)], [segment(0, 5, [1])])).locate(np.array([0]))


def test_too_many_walks_are_refused():
    timeline = Timeline(lock([source("web", 1)], [segment(0, None, [1])]))
    assert timeline.locate(np.array([2**22 - 1])).walks == 2**22 - 1
    with pytest.raises(ConfigError, match="at most 2\\*\\*22 walks through source 'web' up to position 4194304"):
        timeline.locate(np.array([2**22]))
    timeline = Timeline(lock([source("web", 1)], [segment(0, 2**22, [1]), segment(2**22, 1, [1])]))
    with pytest.raises(ConfigError, match="at most 2\\*\\*22 walks through source 'web' up to stage 'main'"):
        timeline.locate(np.array([2**22]))


@pytest.mark.parametrize("position", [-1, 7])
def test_positions_beyond_the_run_are_refused(position):
    timeline = Timeline(lock([source("web", 3)], [segment(0, 7, [1])]))
    with pytest.raises(IndexError, match=rf"expected positions in \[0, 7\), found {position}"):
        timeline.locate(np.array([0, position]))


def test_packs_are_counted_where_windows_are_packs():
    web = LockedSource(name="web", pairs=(pair(1000, packs=((10, 3), (20, 2))), pair(1000, packs=((10, 1), (20, 1)))))
    run = lock([web], [segment(0, 5, [1]), segment(5, 4, [1], length=20)], windows="best_fit")
    timeline = Timeline(run)
    assert [timeline.walk_of(0, walk).num_windows for walk in (1, 2)] == [4, 3]


def sizes_of(*sources: list, **settings) -> WalkSizes:
    made = [LockedSource(name=f"source {number}", pairs=tuple(pairs)) for number, pairs in enumerate(sources)]
    return WalkSizes(made, lock(made, [segment(0, 1, [1])], **settings))


def of_sources(sizes: WalkSizes, position: int, length: int) -> list[int]:
    numbers = np.arange(2)
    return sizes.of_sources(numbers, sizes.num_pairs(numbers, position), length).tolist()


def test_windows_are_cut_from_the_tokens_of_all_pairs_but_for_those_held_out():
    web = [pair(101, held_tokens=40), pair(50)]
    assert [sizes_of(web).windows(0, *part, 10) for part in ((0, 1), (1, 2), (0, 2), (0, 0))] == [6, 4, 11, 0]
    assert sizes_of(web).tokens(0, 0, 2) == 111


def test_a_sample_without_the_token_after_it_needs_one_less():
    exact = {"samples": {"add_extra_token_to_sequence": False}}
    assert sizes_of([pair(100)]).windows(0, 0, 1, 10) == 9
    assert sizes_of([pair(100)], **exact).windows(0, 0, 1, 10) == 10
    assert extra_tokens(lock([], [], **exact)) == 0


def test_sources_have_the_pairs_of_a_position():
    sizes = sizes_of([pair(101), pair(50, since=7), pair(30, since=9)], [pair(41, since=8)])
    numbers = np.arange(2)
    assert [sizes.num_pairs(numbers, position).tolist() for position in (6, 7, 8, 9)] == [
        [1, 0],
        [2, 0],
        [2, 1],
        [3, 1],
    ]
    assert [of_sources(sizes, position, 10) for position in (6, 7, 8, 9)] == [[10, 0], [15, 0], [15, 4], [18, 4]]
    assert [sizes.next_growth(numbers, position) for position in (1, 8, 9, 10)] == [7, 8, 9, None]
    assert sizes.next_growth(numbers[1:], 1) == 8


SOURCES = (source("web", 50), source("code", 30))
TIMELINE = Timeline(lock(SOURCES, [segment(0, 9000, [3, 1]), segment(9000, 5000, [1, 1])], block=64))


@given(st.lists(st.integers(0, 13999).flatmap(lambda at: st.tuples(st.just(at), st.integers(1, 5000))), max_size=12))
def test_whatever_was_asked_before(batches):
    lookups = Lookups(TIMELINE)
    for start, size in batches:
        positions = np.arange(start, min(start + size, 14000), 7)
        found, expected = lookups.at(positions), TIMELINE.locate(positions)
        assert found.sources.tolist() == expected.sources.tolist()
        assert found.numbers.tolist() == sample_numbers(expected.walks, expected.windows).tolist()
        assert found.length == 10


def test_near_another_length():
    segments = [segment(0, 100, [1, 1]), segment(100, 100, [1, 1], length=7)]
    lookups = Lookups(Timeline(lock(SOURCES, segments)))
    for position in range(90, 110):
        assert lookups.at(np.array([position])).length == (10 if position < 100 else 7)
    with pytest.raises(ConfigError, match="expected samples of one length in a batch, found 10 tokens"):
        lookups.at(np.array([99, 100]))
