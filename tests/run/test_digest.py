"""Digests tell orders from each other up to a position, and from nothing that comes later."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.small_runs import lock, pair, random_locks, segment, source

from tokenloom import ConfigError
from tokenloom.run.digest import order_digest, run_identity
from tokenloom.run.lock import LockedDenial, LockedSource
from tokenloom.run.progress import planned_size
from tokenloom.run.timeline import Timeline

SOURCES = [source("web", 40), source("code", 30)]


def run(*segments, sources=SOURCES, block=8, **other):
    return lock(sources, segments or [segment(0, 100, [3, 1])], block=block, **other)


def end_of(lock) -> int:
    last = lock.segments[-1]
    return last.start + (100 if last.num_samples is None else last.num_samples)


def test_a_digest_says_nothing_about_what_comes_later():
    digest = order_digest(run(), 50)
    assert len(digest) == 64
    assert digest == order_digest(run(segment(0, 1000, [3, 1])), 50)
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
        return run(
            segment(0, 10, [1]),
            segment(10, 10, [1], length=20),
            windows="best_fit",
            sources=[LockedSource(name="web", pairs=(pair(1000, packs=packs),))],
        )

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
