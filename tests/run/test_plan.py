"""What a run will have read, counted from its lock, and by walking through it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from tests.reference.timeline import num_windows, run_through
from tests.run.small_runs import Settings, lock, pair, random_locks, resolved_lock, segment, source, stage

from tokenloom.run.lock import LockedSource
from tokenloom.run.plan import plan_of

WEB, CODE = source("web", 40), source("code", 10)


def finite(lock):
    """A lock whose last segment has an end."""
    last = lock.segments[-1]
    size = 60 if last.num_samples is None else last.num_samples
    return replace(lock, segments=(*lock.segments[:-1], replace(last, num_samples=size)))


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
    assert (web.num_walks, web.offered_tokens, web.seen_tokens) == (2, 94, 60)
    assert (web.unseen_tokens, web.uncovered_tokens) == (20, 14)


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
        whole = [one for _, one in begun if not one.first_token]
        assert (each.num_passes, each.num_walks) == (last + 1, len(whole))
        assert each.difference == 0
        assert each.seen_tokens == sum(seen[walk] * one.sequence_length for walk, one in begun)
        if len(whole) < len(begun):  # of passes that several lengths share less is left than of each part
            continue
        windows = {
            walk: num_windows(lock, stream.source.pairs[one.first_pair : one.last_pair], one.sequence_length)
            for walk, one in begun
        }
        unseen = sum((windows[walk] - seen[walk]) * one.sequence_length for walk, one in begun)
        assert unseen == each.unseen_tokens


def test_packs_are_slots():
    web = LockedSource(name="web", pairs=(pair(1000, packs=((10, 3),)),))
    (ledger,) = plan_of(lock([web], [segment(0, 4, [1])], windows="best_fit")).sources
    assert (ledger.offered_tokens, ledger.seen_tokens, ledger.unseen_tokens, ledger.uncovered_tokens) == (60, 40, 20, 0)
