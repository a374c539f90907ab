"""Which documents are denied where."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.run.small_runs import lock, segment, source

from tokenloom.run.denied import DeniedDocuments
from tokenloom.run.lock import LockedDenial

LOCK = lock([source("web", 9), source("code", 9)], [segment(0, 100, [1, 1])])


def test_more_from_each_position_on():
    denials = (
        LockedDenial(start=50, documents=((0, (3, 8)),)),
        LockedDenial(start=20, documents=((0, (5,)), (1, (1,)))),
    )
    denied = DeniedDocuments(replace(LOCK, denials=denials))
    assert denied
    positions = np.array([0, 19, 20, 49, 50, 99])
    assert denied.levels(positions, [0] * 6) == [0, 0, 1, 1, 2, 2]
    assert denied.levels(positions, [1] * 6) == [0, 0, 1, 1, 1, 1]
    assert [denied.of(0, level) for level in range(3)] == [(), (5,), (3, 5, 8)]
    assert denied.of(1, 1) == (1,)


def test_none():
    assert not DeniedDocuments(LOCK)
    assert DeniedDocuments(LOCK).of(0, 0) == ()
