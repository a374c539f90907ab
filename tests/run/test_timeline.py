"""Stages to segments, positions to windows and back, and digests of orders."""

import pickle
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.timeline import run_through
from tests.run.small_runs import Settings, lock, pair, random_locks, resolved_lock, segment, source, stage, tuples

from tokenloom.errors import ConfigError
from tokenloom.kernels.walks import sample_numbers
from tokenloom.run.dataset import Lookups
from tokenloom.run.digest import order_digest, run_identity
from tokenloom.run.lock import LockedDenial, LockedSource
from tokenloom.run.locking import Exhausted, resolve
from tokenloom.run.source_progress import TakeMap, planned_size
from tokenloom.run.timeline import Timeline

WEB, CODE = source("web", 40), source("code", 10)


def parts(segments) -> list[tuple]:
    """(stage, start, samples, size that it is mixed by, weights) of segments."""
    return [(each.stage, each.start, each.num_samples, each.mixed_as, dict(each.weights)) for each in segments]


def resolved(*stages, sources=(WEB, CODE), old=None, consumed=0, block=8):
    found = resolve(Settings(stages=stages, mixing_block=block), sources, old, consumed)
    return parts(found.segments)


def locked(*stages, sources=(WEB, CODE), old=None, consumed=0, block=8):
    return resolved_lock(Settings(stages=stages, mixing_block=block), sources, old, consumed)


def test_a_stage_is_a_segment_of_the_smallest_whole_weights():
    one = stage("one", tokens=1009, weights={"web": "0.8", "code": "0.2"})
    stages = one, stage("two", weights={"code": 7}, length=20)
    assert resolved(*stages) == [("one", 0, 100, None, {0: 4, 1: 1}), ("two", 100, None, None, {1: 1})]
    assert [each.sequence_length for each in resolve(Settings(stages=stages), [WEB, CODE]).segments] == [10, 20]


def test_passes_are_samples():
    assert resolved(stage(passes={"web": "0.5", "code": 2})) == [("main", 0, 40, None, {0: 1, 1: 1})]
    assert resolved(stage(passes={"web": "0.99", "code": "1.26"})) == [("main", 0, 51, None, {0: 13, 1: 4})]
    assert resolved(stage(passes={"web": "0.99", "code": "0.01"})) == [("main", 0, 40, None, {0: 39, 1: 1})]
    begun = locked(stage(passes={"web": 1, "code": 2}))
    grown = source("web", 40, 20, since=(0, 16))
    found = resolved(stage(passes={"web": 1, "code": 2}), sources=(grown, CODE), old=begun, consumed=16)
    assert found == [("main", 0, 16, None, {0: 2, 1: 1}), ("main", 16, 44, None, {0: 2, 1: 1})]


def test_a_run_stops_where_a_source_has_been_read_as_often_as_it_may_or_reads_it_again():
    capped = replace(CODE, max_passes=2)
    found = resolve(Settings(stages=(stage(weights={"web": 1, "code": 1}),)), [WEB, capped])
    assert parts(found.segments) in ([("main", 0, 40, None, {0: 1, 1: 1})], [("main", 0, 41, None, {0: 1, 1: 1})])
    assert found.stopped
    end = found.segments[0].num_samples
    assert found.exhausted == (Exhausted(source="code", stage="main", position=end, on_exhausted="stop"),)
    again = stage(samples=99, weights={"web": 1, "code": 1}, on_exhausted="repeat")
    found = resolve(Settings(stages=(again,)), [WEB, capped])
    assert parts(found.segments) == [("main", 0, 99, None, {0: 1, 1: 1})]
    ((name, position),) = [(each.source, each.position) for each in found.exhausted]
    assert (name, position in (40, 41)) == ("code", True)


def test_the_others_share_what_is_left_of_a_stage():
    capped = replace(CODE, max_passes=2)
    others = stage(samples=199, weights={"web": 1, "code": 1, "more": 3}, on_exhausted="renormalise")
    stages = others, stage("next", samples=5, weights={"web": 1})
    found = resolve(Settings(stages=stages), [WEB, capped, source("more", 90)])
    assert [dict(each.weights) for each in found.segments] == [{0: 1, 1: 1, 2: 3}, {0: 1, 2: 3}, {0: 1}]
    assert sum(each.num_samples for each in found.segments) == 204
    assert not found.stopped
    assert [(each.source, each.position) for each in found.exhausted] == [("code", found.segments[1].start)]


def test_a_run_ends_where_nothing_is_left_to_read():
    capped = [replace(WEB, max_passes=1), replace(CODE, max_passes=2)]
    found = resolve(Settings(stages=(stage(weights={"web": 3, "code": 1}, on_exhausted="renormalise"),)), capped)
    assert sum(each.num_samples for each in found.segments) == 60
    assert found.stopped
    assert [each.source for each in found.exhausted] == ["web", "code"]
    capped = replace(WEB, max_passes=1)
    with_it = stage("one", samples=40, weights={"web": 1}), stage("two", samples=3, weights={"web": 1})
    found = resolve(Settings(stages=with_it), [capped])
    assert (len(found.segments), found.stopped) == (1, True)
    longer = replace(with_it[0], samples=39), replace(with_it[1], sequence_length=20)
    found = resolve(Settings(stages=longer), [capped])
    assert (len(found.segments), found.stopped) == (1, True), "half a sample is left"


def test_a_source_that_grows_begins_a_segment():
    main = stage(samples=100, weights={"web": 3, "code": 1})
    begun = locked(main)
    grown = source("web", 40, 20, since=(0, 21))
    found = resolved(main, sources=(grown, CODE), old=begun, consumed=21)
    assert found == [("main", 0, 21, 24, {0: 3, 1: 1}), ("main", 21, 79, None, {0: 3, 1: 1})]


MAIN = {"weights": {"web": 3, "code": 1}}


@pytest.mark.parametrize(
    ("before", "consumed", "after", "expected"),
    [
        (96, 90, 200, [(0, 200, None)]),  # longer: the last block is whole, or untouched, or neither
        (100, 96, 200, [(0, 200, None)]),
        (100, 97, 200, [(0, 100, None), (100, 100, None)]),
        (100, 100, 200, [(0, 100, None), (100, 100, None)]),
        (100, 97, None, [(0, 100, None), (100, None, None)]),
        (100, 96, None, [(0, None, None)]),
        (100, 80, 90, [(0, 90, None)]),  # shorter: the block of the end was touched, or not
        (100, 89, 90, [(0, 90, 96)]),
        (100, 90, 90, [(0, 90, 96)]),
        (100, 96, 96, [(0, 96, None)]),
        (100, 97, 98, [(0, 98, 100)]),
        (None, 89, 90, [(0, 90, 96)]),
        (None, 80, 90, [(0, 90, None)]),
        (100, 97, 100, [(0, 100, None)]),  # the same
        (None, 97, None, [(0, None, None)]),
    ],
)
def test_a_stage_may_become_longer_or_shorter(before, consumed, after, expected):
    begun = locked(stage(samples=before, **MAIN))
    found = resolved(stage(samples=after, **MAIN), old=begun, consumed=consumed)
    assert [each[1:4] for each in found] == expected


def test_a_cut_that_was_not_reached_is_undone():
    cut = locked(stage(samples=90, **MAIN), old=locked(stage(samples=100, **MAIN)), consumed=89)
    assert parts(cut.segments)[0][1:4] == (0, 90, 96)
    assert [each[1:4] for each in resolved(stage(samples=100, **MAIN), old=cut, consumed=90)] == [(0, 100, None)]
    after = locked(stage(samples=90, **MAIN), stage("two", samples=9, **MAIN), old=cut, consumed=90)
    found = resolved(stage(samples=90, **MAIN), stage("two", samples=12, **MAIN), old=after, consumed=91)
    assert [each[1:4] for each in found] == [(0, 90, 96), (90, 12, None)]
    with pytest.raises(ConfigError, match="consumed positions must be at most 100, the length of the run, got 101"):
        resolved(stage(samples=100, **MAIN), old=locked(stage(samples=100, **MAIN)), consumed=101)


SHARED = stage(samples=200, weights={"web": 1, "code": 1}, on_exhausted="renormalise")


def test_a_raised_cap_lets_a_source_return_at_once():
    begun = locked(SHARED, sources=(WEB, replace(CODE, max_passes=1)))
    starts = [each.start for each in begun.segments]
    assert [dict(each.weights) for each in begun.segments] == [{0: 1, 1: 1}, {0: 1}]
    found = resolved(SHARED, sources=(WEB, replace(CODE, max_passes=2)), old=begun, consumed=starts[1] + 16)
    expected = [(0, {0: 1, 1: 1}), (starts[1], {0: 1}), (starts[1] + 16, {0: 1, 1: 1})]
    assert [(each[1], each[4]) for each in found][:3] == expected
    again = resolved(SHARED, sources=(WEB, replace(CODE, max_passes=1)), old=begun, consumed=starts[1] + 16)
    assert again == parts(begun.segments)


def test_a_lowered_cap_holds_from_now_on():
    begun = locked(SHARED)
    after = locked(SHARED, sources=(WEB, replace(CODE, max_passes=1)), old=begun, consumed=50)
    found = parts(after.segments)
    assert [each[4] for each in found] == [{0: 1, 1: 1}, {0: 1, 1: 1}, {0: 1}]
    assert found[0][1:4] == (0, 50, 56)
    located = Timeline(after).locate(np.arange(200))
    assert (located.sources == 1).sum() == 30, "the pass that was begun is read to its end"


CAPS = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 3) | st.none(), st.integers(1, 9)), min_size=1, max_size=4)


def test_a_change_of_length_is_no_pass_and_a_meant_end_no_cut():
    capped = source("web", 80, max_passes=1)
    stages = [stage(str(length), length=length, samples=200 // length, weights={"web": 1}) for length in (5, 10, 20)]
    found = resolve(Settings(stages=tuple(stages)), [capped])
    assert [(each.start, each.num_samples) for each in found.segments] == [(0, 40), (40, 20), (60, 10)]
    assert (found.stopped, found.exhausted) == (False, ())
    longer = resolve(Settings(stages=(*stages, stage("rest", length=10, samples=21, weights={"web": 1}))), [capped])
    assert (longer.segments[-1].num_samples, longer.stopped, longer.cut_short) == (20, True, "web")
    fits = resolve(Settings(stages=(*stages, stage("rest", length=10, samples=20, weights={"web": 1}))), [capped])
    assert (fits.stopped, fits.cut_short) == (False, None)
    capped = [source("web", 80, max_passes=1)]
    one, two = stage("one", weights={"web": 1}), stage("two", samples=5, weights={"web": 1})
    assert resolve(Settings(stages=(one,)), capped).cut_short is None
    assert resolve(Settings(stages=(replace(one, samples=81),)), capped).cut_short == "web"
    assert resolve(Settings(stages=(replace(one, samples=80), two)), capped).cut_short == "web"


STAGES = st.lists(st.tuples(st.sampled_from([5, 7, 10, 20]), st.integers(1, 60)), min_size=1, max_size=5)


@given(CAPS, STAGES, st.sampled_from(["stop", "renormalise"]), st.sampled_from([1, 4, 16]), st.data())
def test_a_cap_counts_parts_of_passes_of_all_lengths(plan, stages, on_exhausted, block, data):
    sources = [source(str(number), 2 * count, max_passes=cap) for number, (count, cap, _) in enumerate(plan)]
    weights = {str(number): weight for number, (_, _, weight) in enumerate(plan)}
    rule = {"weights": weights, "on_exhausted": on_exhausted}
    parts = [stage(str(number), length=each, samples=size, **rule) for number, (each, size) in enumerate(stages)]
    settings = Settings(stages=tuple(parts), mixing_block=block)
    found = resolve(settings, sources)
    locked = lock(sources, found.segments, block=block)
    timeline = Timeline(locked)
    located = timeline.locate(np.arange(timeline.lock.num_samples))
    lengths = np.array([each.sequence_length for each in locked.segments])[located.segments]
    read = []
    for number, (count, cap, _) in enumerate(plan):
        own = lengths[located.sources == number].tolist()
        read.append(sum(Fraction(1, 20 * count // length) for length in own))
        assert cap is None or read[-1] <= cap
    if found.cut_short is not None:
        number, asked = int(found.cut_short), timeline.lock.num_samples
        ends = accumulate(size for _, size in stages)
        length = next(length for (length, _), stop in zip(stages, ends, strict=True) if asked < stop)
        assert read[number] + Fraction(1, 20 * plan[number][0] // length) > plan[number][1]
    else:
        assert timeline.lock.num_samples == sum(size for _, size in stages)
    again = resolve(settings, sources, locked, data.draw(st.integers(0, timeline.lock.num_samples)))
    assert (again.segments, again.cut_short) == (found.segments, found.cut_short)


@given(CAPS, st.sampled_from(["stop", "renormalise"]), st.sampled_from([1, 4, 16]), st.integers(1, 99))
def test_no_source_begins_more_passes_than_it_may(plan, on_exhausted, block, size):
    sources = [replace(source(str(number), count), max_passes=cap) for number, (count, cap, _) in enumerate(plan)]
    weights = {str(number): weight for number, (_, _, weight) in enumerate(plan)}
    settings = Settings(stages=(stage(samples=size, weights=weights, on_exhausted=on_exhausted),), mixing_block=block)
    found = resolve(settings, sources)
    timeline = Timeline(lock(sources, found.segments, block=block))
    located = timeline.locate(np.arange(timeline.lock.num_samples))
    for number, (count, cap, _) in enumerate(plan):
        num_read = int((located.sources == number).sum())
        assert cap is None or num_read <= count * cap
    assert found.stopped == (timeline.lock.num_samples < size)
    if found.stopped:
        num_read = np.bincount(located.sources, minlength=len(plan)).tolist()
        full = [cap is not None and num == count * cap for num, (count, cap, _) in zip(num_read, plan, strict=True)]
        assert any(full) if on_exhausted == "stop" else all(full)
        names = {str(number) for number in range(len(plan)) if full[number]}
        assert on_exhausted == "stop" or {each.source for each in found.exhausted} == names


# --- positions, against a twin that walks through the run and keeps lists -------------------------------------------
def rows(timeline: Timeline, first: int, stop: int) -> list[tuple[int, int, int, int]]:
    return tuples(*timeline.locate(np.arange(first, stop)))


def end_of(lock) -> int:
    last = lock.segments[-1]
    return last.start + (100 if last.num_samples is None else last.num_samples)


def windows_of(timeline: Timeline, number: int) -> list[tuple[int, int]]:
    """The windows of a source in the order of the run."""
    return [row[2:] for row in rows(timeline, 0, timeline.lock.num_samples) if row[1] == number]


def test_one_source_is_read_walk_after_walk():
    timeline = Timeline(lock([source("web", 3)], [segment(0, 7, [1])]))
    assert rows(timeline, 0, 7) == [(0, 0, take // 3, take % 3) for take in range(7)]
    assert timeline.lock.num_samples == 7
    assert timeline.positions_of(0, np.array([2, 1, 2]), np.array([0, 2, 1]), sequence_length=10).tolist() == [6, 5, -1]
    assert rows(pickle.loads(pickle.dumps(timeline)), 0, 7) == rows(timeline, 0, 7)
    assert Timeline(lock([source("web", 1)], [ENDLESS])).locate(np.array([2**22 - 1])).walks == 2**22 - 1


def test_a_source_that_grows_ends_its_pass_together_with_the_new_data():
    stages = [segment(0, 2, [1]), segment(2, 14, [1])]
    timeline = Timeline(lock([source("web", 4, 4, since=(0, 2))], stages))
    windows = windows_of(timeline, 0)
    assert windows[:2] == [(0, 0), (0, 1)]
    assert sorted(windows[2:8]) == [(0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert [window for window in windows[2:8] if window[0] == 0] == [(0, 2), (0, 3)]
    assert windows[8:] == [(2, window) for window in range(8)]
    walks = [timeline.walk_of(0, walk) for walk in range(4)]
    expected = [(0, 1, 0), (1, 2, 0), (0, 2, 1), (0, 2, 2)]
    assert [(walk.first_pair, walk.last_pair, walk.pass_number) for walk in walks] == expected
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


@given(random_locks(), st.randoms())
def test_positions_in_any_order_and_walks_are_what_the_twin_finds(lock, random):
    timeline, stop = Timeline(lock), end_of(lock)
    expected, streams = run_through(lock, stop)
    assert rows(timeline, 0, stop) == expected
    positions = [random.randrange(stop) for _ in range(30)]
    assert tuples(*Timeline(lock).locate(np.array(positions))) == [expected[position] for position in positions]
    for number, walk in {row[1:3] for row in expected}:
        known, walked = timeline.walk_of(number, walk), streams[number].walks[walk]
        assert (known.first_pair, known.last_pair) == (walked.first_pair, walked.last_pair)
        assert (known.pass_number, known.sequence_length) == (walked.pass_number, walked.sequence_length)


@given(random_locks())
def test_the_inverse_finds_nothing_else(lock):
    timeline, stop = Timeline(lock), end_of(lock)
    read, _ = run_through(lock, stop)
    expected = {tuple(row[1:]): position for position, row in enumerate(read)}
    lengths = {(row[1], row[2]): lock.segments[row[0]].sequence_length for row in read}
    for number in range(len(lock.sources)):
        walks, windows = (part.ravel() for part in np.meshgrid(np.arange(-1, 25), np.arange(-1, 40), indexing="ij"))
        for length in (7, 10):
            positions = timeline.positions_of(number, walks, windows, sequence_length=length)
            for walk, window, position in zip(walks.tolist(), windows.tolist(), positions.tolist(), strict=True):
                there = expected.get((number, walk, window), -1) if lengths.get((number, walk)) == length else -1
                assert position == there or (there == -1 and position >= stop)


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


def test_packs_are_counted_where_windows_are_packs():
    web = LockedSource(name="web", pairs=(pair(1000, packs=((10, 3), (20, 2))), pair(1000, packs=((10, 1), (20, 1)))))
    run = lock([web], [segment(0, 5, [1]), segment(5, 4, [1], length=20)], windows="best_fit")
    timeline = Timeline(run)
    assert [timeline.walk_of(0, walk).num_windows for walk in (1, 2)] == [4, 3]


BOTH = (source("web", 50), source("code", 30))
TIMELINE = Timeline(lock(BOTH, [segment(0, 9000, [3, 1]), segment(9000, 5000, [1, 1])], block=64))


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
    lookups = Lookups(Timeline(lock(BOTH, segments)))
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


# --- digests tell orders from each other up to a position, and from nothing that comes later ------------------------
SOURCES = [source("web", 40), source("code", 30)]


def run(*segments, sources=SOURCES, block=8, **other):
    return lock(sources, segments or [segment(0, 100, [3, 1])], block=block, **other)


def test_a_digest_says_nothing_about_what_comes_later():
    digest = order_digest(run(), 50)
    assert (len(digest), digest) == (64, order_digest(run(segment(0, 1000, [3, 1])), 50))
    assert digest == order_digest(run(segment(0, None, [6, 2])), 50)
    assert digest == order_digest(run(segment(0, 50, [3, 1], mixed_as=56), segment(50, 9, [1, 1])), 50)
    assert digest == order_digest(run(segment(0, 100, [3, 1], stage="other")), 50)
    assert digest == order_digest(run(sources=[*SOURCES, source("more", 5)], consumed=7), 50)
    grown = LockedSource(name="web", pairs=(*SOURCES[0].pairs, pair(99, since=50)))
    assert digest == order_digest(run(sources=[grown, SOURCES[1]]), 50)
    moved = LockedSource(name="web", pairs=(replace(SOURCES[0].pairs[0], prefix="elsewhere"),), max_passes=9)
    assert digest == order_digest(run(sources=[moved, SOURCES[1]]), 50)
    denial = LockedDenial(start=50, documents=((0, (1, 2)),))
    assert digest == order_digest(run(denials=(denial,)), 50)


@pytest.mark.parametrize(
    "changed",
    [
        run(seed=2),
        run(order=2),
        run(block=4),
        run(documents="file"),
        run(samples={"eod_mask_loss": True}),
        run(segment(0, 100, [3, 2])),
        run(segment(0, 100, [3, 1], length=9)),
        run(segment(0, 50, [3, 1])),
        run(segment(0, 49, [3, 1], mixed_as=56), segment(49, 9, [3, 1])),
        run(sources=[source("web", 41), SOURCES[1]]),
        run(sources=[source("text", 40), SOURCES[1]]),
        run(denials=(LockedDenial(start=49, documents=((0, (1, 2)),)),)),
        run(sources=[LockedSource(name="web", pairs=(replace(SOURCES[0].pairs[0], tokens_crc32=1),)), SOURCES[1]]),
        run(sources=[LockedSource(name="web", pairs=(replace(SOURCES[0].pairs[0], held_tokens=1),)), SOURCES[1]]),
    ],
)
def test_a_digest_tells_what_decides_the_past(changed):
    assert order_digest(changed, 50) != order_digest(run(), 50)


def test_a_digest_has_a_position():
    assert len({order_digest(run(), position) for position in range(101)}) == 101
    with pytest.raises(ConfigError, match="position 101 out of range: the run has 100 samples"):
        order_digest(run(), 101)
    with pytest.raises(ConfigError, match="position -1 out of range"):
        order_digest(run(segment(0, None, [1])), -1)
    with pytest.raises(ConfigError, match=f"position {2**60 + 1} out of range"):
        order_digest(run(segment(0, None, [1])), 2**60 + 1)


def test_packs_are_told_of_the_lengths_that_were_read():
    def packed(*packs):
        sources = [LockedSource(name="web", pairs=(pair(1000, packs=packs),))]
        return run(segment(0, 10, [1]), segment(10, 10, [1], length=20), windows="best_fit", sources=sources)

    short, other, long = packed((10, 90), (20, 40)), packed((10, 91), (20, 40)), packed((10, 90), (20, 41))
    assert order_digest(short, 10) != order_digest(other, 10)
    assert order_digest(short, 10) == order_digest(long, 10)
    assert order_digest(short, 11) != order_digest(long, 11)


@given(random_locks(), random_locks(), st.data())
def test_equal_digests_are_of_equal_streams(one, other, data):
    """Also of locks that share all but one part, so that they are alike for a while."""
    shared = {name: getattr(one, name) for name in data.draw(st.sets(st.sampled_from(["seed", "mixing_block"])))}
    segments = data.draw(st.sampled_from([other.segments, one.segments, one.segments[:-1] or one.segments]))
    sources = one.sources if len(one.sources) >= len(other.sources) else other.sources
    other = replace(other, sources=sources, segments=segments, **shared)
    one = replace(one, sources=sources)
    for position in range(1, min(end_of(one), end_of(other)) + 1):
        timelines = Timeline(one), Timeline(other)
        streams = [each.locate(np.arange(position)) for each in timelines]
        last = [(int(each.sources[-1]), int(each.walks[-1])) for each in streams]
        parts = [timeline.walk_of(*walk).part for timeline, walk in zip(timelines, last, strict=True)]
        same = parts[0] == parts[1] and all(
            (getattr(streams[0], name) == getattr(streams[1], name)).all() for name in ("sources", "walks", "windows")
        )
        lengths = [
            [each.segments[number].sequence_length for number in stream.segments]
            for each, stream in zip((one, other), streams, strict=True)
        ]
        if not same or lengths[0] != lengths[1] or one.seed != other.seed:
            assert order_digest(one, position) != order_digest(other, position)
            break


def test_a_run_keeps_its_name_while_it_changes():
    name = run_identity(run())
    later = [*SOURCES, source("more", 5)]
    assert name == run_identity(run(segment(0, 50, [3, 1]), segment(50, 9, [1, 1, 1]), sources=later))
    grown = LockedSource(name="web", pairs=(*SOURCES[0].pairs, pair(99, since=50)))
    assert name == run_identity(run(sources=[grown, SOURCES[1]]))
    assert name != run_identity(run(seed=2))
    assert name != run_identity(run(sources=[source("web", 41), SOURCES[1]]))


@given(random_locks(), st.data())
def test_changes_of_what_comes_later_change_no_digest(lock, data):
    position = data.draw(st.integers(0, end_of(lock)))
    parts = [each for each in lock.segments if each.start < position]
    if parts and parts[-1].num_samples is not None:
        last = parts[-1]
        block = -(-(position - last.start) // lock.mixing_block) * lock.mixing_block
        block = block if last.mixed_as is None and block <= last.num_samples else None
        if block is not None:
            planned = None if last.stretch_length is None else planned_size(last)
            parts[-1] = replace(last, num_samples=block + data.draw(st.integers(0, 40)), planned=planned)
    if parts:
        assert order_digest(replace(lock, segments=tuple(parts)), position) == order_digest(lock, position)
