"""What a run will have read, counted from its lock, and by walking through it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.timeline import num_windows, run_through
from tests.run.small_runs import Settings, lock, pair, random_locks, resolved_lock, segment, source, stage

from tokenloom import ConfigError
from tokenloom.run.lock import LockedSource
from tokenloom.run.plan import plan_of

WEB, CODE = source("web", 40), source("code", 10)


def finite(lock):
    """A lock whose last segment has an end."""
    last = lock.segments[-1]
    return (
        lock
        if last.num_samples is not None
        else replace(lock, segments=(*lock.segments[:-1], replace(last, num_samples=60)))
    )


def test_a_plan_of_one_stage():
    plan = plan_of(lock([WEB, CODE], [segment(0, 100, [3, 1])]))
    assert (plan.num_samples, plan.num_tokens) == (100, 1000)
    ((web, code),) = [each.readings for each in plan.segments]
    assert (web.source, web.weight, web.weights, web.num_samples, web.share) == ("web", 3, 4, 75, 0.75)
    assert (web.begun_before, web.begun_after, web.left_before, web.left_after) == (0, 2, 0, 5)
    assert (code.begun_before, code.begun_after, code.left_after, code.num_tokens) == (0, 3, 5, 250)
    assert (web.num_pass_ends, code.num_pass_ends) == (1, 2)
    assert [position // 40 for position in code.pass_ends] == [0, 1]
    assert [each.unseen_samples for each in plan.sources] == [(5,), (5,)]
    assert [each.difference for each in plan.sources] == [0, 0]


def test_tokens_behind_the_last_sample_of_a_walk():
    plan = plan_of(lock([LockedSource(name="web", pairs=(pair(47),))], [segment(0, 6, [1])]))
    (web,) = plan.sources
    assert (web.num_walks, web.offered_tokens, web.seen_tokens, web.unseen_tokens, web.uncovered_tokens) == (
        2,
        94,
        60,
        20,
        14,
    )


def test_an_endless_stage_has_no_numbers():
    plan = plan_of(lock([WEB, CODE], [segment(0, 8, [3, 1]), segment(8, None, [1, 1])]))
    assert (plan.num_samples, plan.num_tokens) == (None, None)
    reading = plan.segments[1].readings[1]
    assert (reading.num_samples, reading.begun_after, reading.num_pass_ends) == (None, None, None)
    assert len(reading.pass_ends) == 5
    assert [each.seen_tokens for each in plan.sources] == [60, 20]


@pytest.mark.parametrize("follows", ["stop", "renormalise", "repeat"])
def test_a_cap_says_where_it_holds_and_what_follows(follows):
    sources = WEB, replace(CODE, max_passes=2)
    settings = Settings(stages=(stage(samples=99, weights={"web": 1, "code": 1}, on_exhausted=follows),))
    (cap,) = plan_of(resolved_lock(settings, sources)).caps
    assert (cap.source, cap.max_passes, cap.follows) == ("code", 2, follows)
    assert cap.position in (40, 41)
    (cap,) = plan_of(lock(sources, [segment(0, 9, [1, 1])])).caps
    assert (cap.position, cap.follows) == (None, None)


@given(random_locks())
def test_ledgers_balance(lock):
    for each in plan_of(lock).sources:
        assert each.difference == 0
        assert min(each.offered_tokens, each.seen_tokens, each.unseen_tokens, each.uncovered_tokens) >= 0


@given(random_locks())
def test_a_plan_counts_what_is_read(lock):
    lock = finite(lock)
    plan = plan_of(lock)
    found, streams = run_through(lock, plan.num_samples)
    counts = Counter(row[:2] for row in found)
    names = [each.name for each in lock.sources]
    for number, each in enumerate(plan.segments):
        assert sum(reading.num_samples for reading in each.readings) == each.num_samples
        for reading in each.readings:
            assert reading.num_samples == counts[number, names.index(reading.source)]
    for number, each in enumerate(plan.sources):
        stream = streams[number]
        seen = Counter(row[2] for row in found if row[1] == number)
        last = max((stream.walks[walk].pass_number for walk in seen), default=-1)
        begun = [(walk, one) for walk, one in enumerate(stream.walks) if one.pass_number <= last]
        assert (each.num_passes, each.num_walks) == (last + 1, len(begun))
        windows = {
            walk: num_windows(lock, stream.source.pairs[one.first_pair : one.last_pair], one.sequence_length)
            for walk, one in begun
        }
        unseen = sum((windows[walk] - seen[walk]) * one.sequence_length for walk, one in begun)
        assert unseen == each.unseen_tokens
        assert each.seen_tokens == sum(seen[walk] * one.sequence_length for walk, one in begun)


@given(random_locks(blocks=st.just(1)))
def test_passes_end_where_they_end_without_mixing(lock):
    lock = finite(lock)
    plan = plan_of(lock)
    found, streams = run_through(lock, plan.num_samples)
    for number, one in enumerate(lock.sources):
        rows = [(position, *row) for position, row in enumerate(found) if row[1] == number]
        walks = streams[number].walks
        ends = []
        for pass_number, group in groupby(rows, key=lambda row: walks[row[3]].pass_number):
            group = list(group)
            of_pass = [each for each in walks if each.pass_number == pass_number]
            size = sum(
                num_windows(lock, one.pairs[each.first_pair : each.last_pair], each.sequence_length) for each in of_pass
            )
            if len(group) == size:
                ends.append((group[-1][0], group[-1][1]))
        for place, each in enumerate(plan.segments):
            for reading in each.readings:
                if reading.source == one.name:
                    expected = [position for position, where in ends if where == place]
                    assert reading.num_pass_ends == len(expected)
                    assert list(reading.pass_ends) == expected[:5]


@given(random_locks())
def test_a_plan_is_json(lock):
    plan = plan_of(lock)
    assert json.loads(json.dumps(plan.as_json()))["num_samples"] == plan.num_samples


def test_a_plan_of_a_trillion_samples_and_a_million_passes():
    plan = plan_of(lock([source("web", 1), source("code", 10**9)], [segment(0, 10**12, [1, 10**6 - 1])], block=1024))
    web, code = plan.sources
    assert (web.num_passes, code.num_passes, plan.segments[0].readings[0].num_pass_ends) == (10**6, 1000, 10**6)
    assert web.difference == code.difference == 0


def test_packs_are_slots():
    web = LockedSource(name="web", pairs=(pair(1000, packs=((10, 3),)),))
    (ledger,) = plan_of(lock([web], [segment(0, 4, [1])], windows="best_fit")).sources
    assert (ledger.offered_tokens, ledger.seen_tokens, ledger.unseen_tokens, ledger.uncovered_tokens) == (60, 40, 20, 0)


def test_a_plan_of_no_run_is_refused():
    with pytest.raises(ConfigError, match="expected a run of at least one stage"):
        plan_of(lock([WEB], []))
