"""What a source gives next, as maps of takes: forward, and back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.run.progress import TakeMap


def windows(take_map: TakeMap) -> list[tuple[int, int]]:
    return list(zip(*(part.tolist() for part in take_map.locate(np.arange(len(take_map)))), strict=True))


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
