"""Which of many are shown one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tokenloom.rendering.largest import largest


def test_few_are_all_shown_and_of_many_the_largest():
    assert largest([], 3) == ([], [])
    assert largest([1, 5, 5], 3) == ([1, 2, 0], [])
    assert largest([1, 5, 5, 2], 3) == ([1, 2], [3, 0])
    assert largest([4], 1) == ([0], [])
    assert largest([4, 5], 1) == ([], [1, 0])


@given(st.lists(st.integers(0, 9)), st.integers(1, 5))
def test_nothing_is_lost_and_nothing_smaller_goes_first(sizes: list[int], most: int):
    shown, rest = largest(sizes, most)
    assert sorted([*shown, *rest]) == list(range(len(sizes)))
    assert len(shown) + bool(rest) <= most
    assert [sizes[number] for number in shown + rest] == sorted(sizes, reverse=True)
