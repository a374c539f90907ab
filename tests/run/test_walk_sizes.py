"""How many windows a walk has."""

from __future__ import annotations

import numpy as np
import pytest
from tests.run.small_runs import lock, pair, segment

from tokenloom import ConfigError
from tokenloom.run.lock import LockedSource
from tokenloom.run.walk_sizes import WalkSizes, extra_tokens


def sizes_of(*sources: list, **settings) -> WalkSizes:
    made = [LockedSource(name=f"source {number}", pairs=tuple(pairs)) for number, pairs in enumerate(sources)]
    return WalkSizes(made, lock(made, [segment(0, 1, [1])], **settings))


def of_sources(sizes: WalkSizes, position: int, length: int) -> list[int]:
    numbers = np.arange(2)
    return sizes.of_sources(numbers, sizes.num_pairs(numbers, position), length).tolist()


def test_windows_are_cut_from_the_tokens_of_all_pairs_but_for_those_held_out():
    web = [pair(101, held_tokens=40), pair(50)]
    assert [sizes_of(web).windows(0, *part, 10) for part in ((0, 1), (1, 2), (0, 2), (0, 0))] == [6, 4, 11, 0]
    assert sizes_of(web).tokens(0, 0, 2) == 111


def test_a_sample_without_the_token_after_it_needs_one_less():
    exact = {"samples": {"add_extra_token_to_sequence": False}}
    assert sizes_of([pair(100)]).windows(0, 0, 1, 10) == 9
    assert sizes_of([pair(100)], **exact).windows(0, 0, 1, 10) == 10
    assert extra_tokens(lock([], [], **exact)) == 0


def test_sources_have_the_pairs_of_a_position():
    sizes = sizes_of([pair(101), pair(50, since=7), pair(30, since=9)], [pair(41, since=8)])
    numbers = np.arange(2)
    assert [sizes.num_pairs(numbers, position).tolist() for position in (6, 7, 8, 9)] == [
        [1, 0],
        [2, 0],
        [2, 1],
        [3, 1],
    ]
    assert [of_sources(sizes, position, 10) for position in (6, 7, 8, 9)] == [[10, 0], [15, 0], [15, 4], [18, 4]]
    assert [sizes.next_growth(numbers, position) for position in (1, 8, 9, 10)] == [7, 8, 9, None]
    assert sizes.next_growth(numbers[1:], 1) == 8


def test_packs_are_as_many_as_the_lock_says():
    pairs = [pair(10, packs=((10, 3), (20, 2))), pair(10, packs=((10, 4),), since=5)]
    for settings in ({"windows": "best_fit"}, {"dataset": "sft"}, {"dataset": "varlen"}):
        sizes = sizes_of(pairs, [pair(10, packs=((10, 1),))], **settings)
        assert [of_sources(sizes, position, 10) for position in (0, 5)] == [[3, 1], [7, 1]]
        with pytest.raises(ConfigError, match="expected the number of packs of 20 tokens of 'pair'"):
            sizes.windows(0, 0, 2, 20)


def test_pairs_have_to_stand_in_the_order_in_which_they_came():
    with pytest.raises(ConfigError, match=r"pairs of source 'source 0' by `since`, found \[3, 0\]"):
        sizes_of([pair(10, since=3), pair(10)])
