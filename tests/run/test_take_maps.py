"""What a source gives next, as maps of takes: forward, and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.run.take_maps import Chain, Leftovers, Merge, Regular, Rest, Stretch, TakeMap, chained, rest_of


def windows(take_map: TakeMap) -> list[tuple[int, int]]:
    return list(zip(*(part.tolist() for part in take_map.locate(np.arange(len(take_map)))), strict=True))


def leftovers(*found: tuple[int, int]) -> Leftovers:
    walks, numbers = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return Leftovers(walks, numbers)


def test_regular_walks_begin_in_the_midst_of_one():
    regular = Regular(4, 2, 3)
    walks, found = regular.locate(np.arange(5))
    assert list(zip(walks, found, strict=True)) == [(4, 2), (5, 0), (5, 1), (5, 2), (6, 0)]
    assert regular.takes(walks, found).tolist() == [0, 1, 2, 3, 4]
    assert regular.takes(np.array([4, 3, 5, 5]), np.array([1, 2, 3, -1])).tolist() == [-1, -1, -1, -1]


def test_a_stretch_is_a_part_of_a_walk():
    assert windows(Stretch(3, 5, 7)) == [(3, 5), (3, 6)]
    assert Stretch(3, 5, 7).takes(np.array([3, 3, 3, 2]), np.array([4, 6, 7, 5])).tolist() == [-1, 1, -1, -1]


def test_leftovers_are_windows_one_by_one():
    found = leftovers((2, 5), (1, 9), (2, 3))
    assert windows(found) == [(2, 5), (1, 9), (2, 3)]
    assert found.takes(np.array([2, 2, 1, 2, 0]), np.array([3, 5, 9, 9, 5])).tolist() == [2, 0, 1, -1, -1]
    assert leftovers().takes(np.array([2]), np.array([3])).tolist() == [-1]


def test_maps_follow_each_other():
    found = chained([leftovers((0, 8)), leftovers(), Stretch(1, 3, 5)])
    assert windows(found) == [(0, 8), (1, 3), (1, 4)]
    assert found.takes(np.array([1, 0, 0]), np.array([4, 8, 3])).tolist() == [2, 0, -1]
    assert chained([leftovers()]) is None
    assert isinstance(chained([Stretch(1, 0, 3), leftovers()]), Stretch)


def test_merged_maps_keep_their_orders_and_end_together():
    found = windows(Merge(Stretch(0, 10, 14), Stretch(1, 0, 8)))
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
    """A map of a plan, each stretch or leftover of a walk of its own."""
    if plan[0] in ("chain", "merge"):
        parts = [built(part, numbers) for part in plan[1]]
        return Chain(parts) if plan[0] == "chain" else Merge(parts[0], parts[1])
    first, count = plan
    walk = next(numbers)
    if walk % 2:
        return leftovers(*((walk, first + 2 * place) for place in reversed(range(count))))
    return Stretch(walk, first, first + count)


@given(MAPS, st.data())
def test_maps_and_their_rests_are_one_to_one(plan, data):
    whole = built(plan, iter(range(100)))
    found = windows(whole)
    assert len(set(found)) == len(found) == len(whole)
    first = data.draw(st.integers(0, len(whole)))
    second = data.draw(st.integers(0, len(whole) - first))
    rest = rest_of(whole, first)
    rest = rest if rest is None else rest_of(rest, second)
    assert (rest is None) == (first + second == len(whole))
    if rest is not None:
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


@pytest.mark.parametrize("first", [0, 3])
def test_the_rest_of_a_rest_is_one_rest(first):
    merged = Merge(Stretch(0, 0, 5), Stretch(1, 0, 5))
    rest = rest_of(rest_of(merged, 2), first)
    assert isinstance(rest, Rest)
    assert rest.of is merged
