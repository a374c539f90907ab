"""How far sources are, segment by segment; what they give altogether is tested by `test_timeline.py`."""

from __future__ import annotations

import numpy as np
from tests.run.small_runs import lock, segment, source

from tokenloom.run.progress import Entered, Progress, given_out, mixed_size


def entered_last(sources, *segments, block: int = 1) -> Entered:
    progress = Progress(sources, lock(sources, segments, block=block))
    for each in segments:
        numbers = np.array([number for number, _ in each.weights])
        entered = progress.enter(each.stage, each.start, each.sequence_length, numbers)
        if each is segments[-1]:
            return entered
        progress.leave(entered, each, progress.mixed(each))
    raise AssertionError


def test_a_segment_begins_with_the_window_after_the_last():
    entered = entered_last([source("web", 5), source("code", 3)], segment(0, 14, [1, 1]), segment(14, 1, [1, 1]))
    assert entered.walks.tolist() == [1, 2]
    assert entered.offsets.tolist() == [2, 1]
    assert entered.passes.tolist() == [1, 2]
    assert [entered.left_of_pass(leaf) for leaf in range(2)] == [3, 2]
    assert entered.early == {}


def test_leaves_are_sources_that_are_read():
    entered = entered_last([source("a", 5), source("b", 3), source("c", 3)], segment(0, 14, [1, 0, 1]))
    assert [entered.leaf_of(number) for number in range(4)] == [0, None, 1, None]


def test_takes_within_a_number_of_passes():
    web = [source("web", 5)]
    assert [entered_last(web, segment(0, 1, [1])).takes_within(0, most) for most in (1, 3)] == [5, 15]
    later = entered_last(web, segment(0, 7, [1]), segment(7, 1, [1]))
    assert [later.takes_within(0, most) for most in (1, 2, 3)] == [3, 3, 8]


def test_whether_a_source_may_be_read_again():
    web = [source("web", 5)]
    for size, at_once, in_another_phase in ((4, True, False), (5, False, False), (6, True, False)):
        progress = Progress(web, lock(web, []))
        read = segment(0, size, [1])
        progress.leave(progress.enter("main", 0, 10, np.arange(1)), read, progress.mixed(read))
        assert progress.may_read(0, 10, 1) == at_once
        assert progress.may_read(0, 11, 1) == in_another_phase
        assert progress.may_read(0, 10, 3)
        assert progress.may_read(0, 10, None)


def test_a_cut_gives_back_what_was_not_read_before_the_last_that_was():
    """Whatever the permutation of the block is: what is left over and what follows is what was not read."""
    for cut in range(1, 16):
        entered = entered_last([source("web", 100)], segment(0, cut, [1], mixed_as=16), segment(cut, 1, [1]), block=16)
        before = entered_last([source("web", 100)], segment(0, 16, [1]), block=16)
        progress = Progress([source("web", 100)], lock([source("web", 100)], [], block=16))
        _, read = progress.mixed(segment(0, 16, [1])).locate(np.arange(cut))
        assert before.num_early(0) == 0
        assert entered.offsets[0] == read.max() + 1
        assert entered.num_early(0) == read.max() + 1 - cut
        _, windows = entered.locate(np.zeros(100 - cut, dtype=np.int32), np.arange(100 - cut))
        assert sorted([*windows.tolist(), *read.tolist()]) == list(range(100))
        assert windows.tolist() == sorted(windows.tolist())


def test_sizes_that_segments_are_mixed_by():
    assert mixed_size(segment(0, 5, [1])) == 5
    assert mixed_size(segment(0, 5, [1], mixed_as=9)) == 9
    assert mixed_size(segment(0, None, [1])) == 2**60
    assert given_out(segment(0, 5, [1], mixed_as=9), 4) == 8
    assert given_out(segment(0, 5, [1], mixed_as=7), 4) == 7
    assert given_out(segment(0, 4, [1], mixed_as=7), 4) == 4
