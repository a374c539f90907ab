"""What changed between two locks."""

from __future__ import annotations

from dataclasses import replace

from tests.run.small_runs import lock, segment, source

from tokenloom.run.lock import LockedDenial
from tokenloom.run.lock_changes import lock_changes


def test_a_lock_and_itself_are_the_same():
    one = lock([source("web", 5)], [segment(0, 10, [1])])
    assert not lock_changes(one, one)


def test_sources_pairs_segments_and_denials_are_told():
    old = lock([source("web", 5), source("gone", 5)], [segment(0, 10, [1])])
    new = lock(
        [source("web", 5, 7, since=(0, 4)), source("code", 3)], [segment(0, 4, [1]), segment(4, 6, [1, 1])], seed=2
    )
    new = replace(new, denials=(LockedDenial(start=4, documents=((0, (1, 2)),)),))
    changes = lock_changes(old, new)
    assert [(data.source, data.is_new, data.num_tokens, data.since) for data in changes.new_data] == [
        ("web", False, 71, 4),
        ("code", True, 31, 0),
    ]
    assert changes.gone == ("gone",)
    assert changes.new_segments == new.segments
    assert changes.num_denied == 2
    assert changes.others == ("seed",)


def test_numbers_of_sources_do_not_matter():
    one = lock([source("web", 5), source("code", 5)], [segment(0, 10, [2, 1])])
    other = lock([source("code", 5), source("web", 5)], [segment(0, 10, [1, 2])])
    assert not lock_changes(one, other)
