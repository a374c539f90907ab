"""From stages to segments: sizes, weights, caps and growth; what was read stays, see also `test_changes.py`."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.small_runs import Settings, lock, resolved_lock, source, stage

from tokenloom import ConfigError
from tokenloom.run.locking import Exhausted, resolve
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


def test_passes_of_a_begun_stage_are_those_of_its_start():
    begun = locked(stage(passes={"web": 1, "code": 2}))
    grown = source("web", 40, 20, since=(0, 16))
    assert resolved(stage(passes={"web": 1, "code": 2}), sources=(grown, CODE), old=begun, consumed=16) == [
        ("main", 0, 16, None, {0: 2, 1: 1}), ("main", 16, 44, None, {0: 2, 1: 1})
    ]  # fmt: skip


def test_a_run_stops_where_a_source_has_been_read_as_often_as_it_may():
    capped = replace(CODE, max_passes=2)
    found = resolve(Settings(stages=(stage(weights={"web": 1, "code": 1}),)), [WEB, capped])
    assert parts(found.segments) in ([("main", 0, 40, None, {0: 1, 1: 1})], [("main", 0, 41, None, {0: 1, 1: 1})])
    assert found.stopped
    end = found.segments[0].num_samples
    assert found.exhausted == (Exhausted(source="code", stage="main", position=end, on_exhausted="stop"),)


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


def test_a_stage_of_exhausted_sources_alone_ends_the_run():
    capped = replace(WEB, max_passes=1)
    with_it = stage("one", samples=40, weights={"web": 1}), stage("two", samples=3, weights={"web": 1})
    found = resolve(Settings(stages=with_it), [capped])
    assert (len(found.segments), found.stopped) == (1, True)
    longer = replace(with_it[0], samples=39), replace(with_it[1], sequence_length=20)
    found = resolve(Settings(stages=longer), [capped])
    assert (len(found.segments), found.stopped) == (1, True), "half a sample is left"


def test_where_a_source_is_read_again_a_cap_is_only_told():
    capped = replace(CODE, max_passes=2)
    again = stage(samples=99, weights={"web": 1, "code": 1}, on_exhausted="repeat")
    found = resolve(Settings(stages=(again,)), [WEB, capped])
    assert parts(found.segments) == [("main", 0, 99, None, {0: 1, 1: 1})]
    ((name, position),) = [(each.source, each.position) for each in found.exhausted]
    assert (name, position in (40, 41)) == ("code", True)


def test_a_source_that_grows_begins_a_segment():
    main = stage(samples=100, weights={"web": 3, "code": 1})
    begun = locked(main)
    grown = source("web", 40, 20, since=(0, 21))
    assert resolved(main, sources=(grown, CODE), old=begun, consumed=21) == [
        ("main", 0, 21, 24, {0: 3, 1: 1}), ("main", 21, 79, None, {0: 3, 1: 1})
    ]  # fmt: skip


MAIN = {"weights": {"web": 3, "code": 1}}


@pytest.mark.parametrize(
    ("before", "consumed", "after", "expected"),
    [
        # longer: the last block is whole, or untouched, or neither
        (96, 90, 200, [(0, 200, None)]),
        (100, 96, 200, [(0, 200, None)]),
        (100, 97, 200, [(0, 100, None), (100, 100, None)]),
        (100, 100, 200, [(0, 100, None), (100, 100, None)]),
        (100, 97, None, [(0, 100, None), (100, None, None)]),
        (100, 96, None, [(0, None, None)]),
        # shorter: the block of the end was touched, or not
        (100, 80, 90, [(0, 90, None)]),
        (100, 89, 90, [(0, 90, 96)]),
        (100, 90, 90, [(0, 90, 96)]),
        (100, 96, 96, [(0, 96, None)]),
        (100, 97, 98, [(0, 98, 100)]),
        (None, 89, 90, [(0, 90, 96)]),
        (None, 80, 90, [(0, 90, None)]),
        # the same
        (100, 97, 100, [(0, 100, None)]),
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


def test_a_raised_cap_lets_a_source_return_at_once():
    shared = stage(samples=200, weights={"web": 1, "code": 1}, on_exhausted="renormalise")
    begun = locked(shared, sources=(WEB, replace(CODE, max_passes=1)))
    starts = [each.start for each in begun.segments]
    assert [dict(each.weights) for each in begun.segments] == [{0: 1, 1: 1}, {0: 1}]
    found = resolved(shared, sources=(WEB, replace(CODE, max_passes=2)), old=begun, consumed=starts[1] + 16)
    assert [(each[1], each[4]) for each in found][:3] == [
        (0, {0: 1, 1: 1}), (starts[1], {0: 1}), (starts[1] + 16, {0: 1, 1: 1})
    ]  # fmt: skip
    again = resolved(shared, sources=(WEB, replace(CODE, max_passes=1)), old=begun, consumed=starts[1] + 16)
    assert again == parts(begun.segments)


def test_a_lowered_cap_holds_from_now_on():
    shared = stage(samples=200, weights={"web": 1, "code": 1}, on_exhausted="renormalise")
    begun = locked(shared)
    lowered = WEB, replace(CODE, max_passes=1)
    settings = Settings(stages=(shared,), mixing_block=8)
    after = resolved_lock(settings, lowered, begun, 50)
    found = parts(after.segments)
    assert [each[4] for each in found] == [{0: 1, 1: 1}, {0: 1, 1: 1}, {0: 1}]
    assert found[0][1:4] == (0, 50, 56)
    located = Timeline(after).locate(np.arange(200))
    assert (located.sources == 1).sum() == 30, "the pass that was begun is read to its end"


def test_more_than_the_run_cannot_have_been_read():
    with pytest.raises(ConfigError, match="consumed must be at most 100, the samples of the run, got 101"):
        resolved(stage(samples=100, **MAIN), old=locked(stage(samples=100, **MAIN)), consumed=101)


CAPS = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 3) | st.none(), st.integers(1, 9)), min_size=1, max_size=4)


def test_a_change_of_length_is_no_pass():
    capped = source("web", 80, max_passes=1)
    stages = [stage(str(length), length=length, samples=200 // length, weights={"web": 1}) for length in (5, 10, 20)]
    found = resolve(Settings(stages=tuple(stages)), [capped])
    assert [(each.start, each.num_samples) for each in found.segments] == [(0, 40), (40, 20), (60, 10)]
    assert (found.stopped, found.exhausted) == (False, ())
    longer = resolve(Settings(stages=(*stages, stage("rest", length=10, samples=21, weights={"web": 1}))), [capped])
    assert (longer.segments[-1].num_samples, longer.stopped, longer.cut_short) == (20, True, "web")
    fits = resolve(Settings(stages=(*stages, stage("rest", length=10, samples=20, weights={"web": 1}))), [capped])
    assert (fits.stopped, fits.cut_short) == (False, None)


def test_a_run_that_is_meant_to_end_with_a_source_is_not_cut_short():
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
    parts = [
        stage(str(number), length=length, samples=size, weights=weights, on_exhausted=on_exhausted)
        for number, (length, size) in enumerate(stages)
    ]
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
