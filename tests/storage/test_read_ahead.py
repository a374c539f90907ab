import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import wait_until

from tokenloom.storage.objects import Chunk, ReadAhead, merge_ranges


class Source:
    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def chunk(self, number: int, *, num_bytes: int = 10) -> Chunk[int]:
        def load() -> int:
            self.gate.wait()
            self.loaded.append(number)
            if number < 0:
                raise OSError(f"no {number}")
            return number

        return Chunk(num_bytes, load)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def ahead() -> Iterator[ReadAhead[int]]:
    with ThreadPoolExecutor(2) as executor:
        yield ReadAhead(executor.submit, budget_bytes=30, concurrency=2)


def announce(ahead: ReadAhead[int], source: Source, *numbers: int) -> None:
    ahead.announce([(number, number) for number in numbers], source.chunk)


def use(ahead: ReadAhead[int], key: object) -> int:
    (found,), _ = ahead.use([key])
    return found


def settle(ahead: ReadAhead[int], source: Source, count: int) -> None:
    """Waits until so many have been loaded, and are here."""
    wait_until(lambda: len(source.loaded) >= count and not ahead.num_loading)


def test_what_was_announced_is_there_before_it_is_asked_for(ahead, source):
    announce(ahead, source, 1, 2)
    settle(ahead, source, 2)
    assert ahead.use([1]) == ([1], False)
    assert ahead.expects(2)
    assert not ahead.expects(1)
    assert ahead.use([3]) == ([], False)


def test_a_budget_bounds_what_is_here_and_each_last_use_makes_room(ahead, source):
    announce(ahead, source, 1, 2, 3, 4, 5)
    settle(ahead, source, 3)
    assert (sorted(source.loaded), len(ahead)) == ([1, 2, 3], 3)
    use(ahead, 1)
    settle(ahead, source, 4)
    assert len(ahead) == 3
    assert sorted(source.loaded) == [1, 2, 3, 4]


def test_a_chunk_stays_until_its_last_announced_use(ahead, source):
    announce(ahead, source, 1, 1)
    assert use(ahead, 1) == 1
    assert len(ahead) == 1
    announce(ahead, source, 1)
    use(ahead, 1)
    use(ahead, 1)
    assert len(ahead) == 0
    assert source.loaded == [1]
    assert ahead.use([1]) == ([], False)


def test_a_chunk_serves_all_reads_that_name_it(ahead, source):
    ahead.announce([(key, "shared") for key in "abc"], lambda _: source.chunk(7))
    ahead.announce([("d", "shared")], lambda _: source.chunk(7))
    assert [use(ahead, key) for key in "dbc"] == [7, 7, 7]
    assert len(ahead) == 1
    assert use(ahead, "a") == 7
    assert (source.loaded, len(ahead)) == ([7], 0)
    announce(ahead, source, 8)
    ahead.announce([("e", "shared")], lambda _: source.chunk(9))
    assert use(ahead, "e") == 9  # a new chunk, the old one is gone


def test_reads_are_taken_as_far_as_they_are_here_and_nothing_is_let_go(ahead, source):
    announce(ahead, source, 1, 2, 3, 1, 2)
    settle(ahead, source, 3)
    assert ahead.use([0, 1, 2, 3, 1, 2], 1) == ([1, 2, 3], False)  # the last use of 3
    assert len(ahead) == 2
    source.gate.clear()
    announce(ahead, source, 4)
    assert ahead.use([2, 4]) == ([2], False)
    assert ahead.use([1, 4]) == ([1], False)
    source.gate.set()
    assert use(ahead, 4) == 4
    assert len(ahead) == 0


def test_a_failure_is_left_to_who_asks_for_it_first(ahead, source):
    announce(ahead, source, 1, -1, 1)
    settle(ahead, source, 2)
    assert ahead.use([1, -1]) == ([1], False)
    with pytest.raises(OSError, match="no -1"):
        ahead.use([-1, 1])
    assert use(ahead, 1) == 1
    assert len(ahead) == 0


def test_announcements_that_nobody_takes_up_make_room_for_later_ones(ahead, source):
    announce(ahead, source, 1, 2, 3)  # of a loader that was left
    settle(ahead, source, 3)
    for number in range(10, 40):
        announce(ahead, source, number)
    for number in range(10, 40):
        assert use(ahead, number) == number
    announce(ahead, source, 50, 51, 52)
    settle(ahead, source, 36)
    assert len(ahead) == 3
    assert not ahead.expects(1)
    assert [use(ahead, number) for number in (50, 51, 52)] == [50, 51, 52]


def test_requests_hold_ranges_and_small_gaps():
    offsets, lengths = np.array([0, 900, 104, 2000, 1000]), np.array([100, 50, 96, 10, 8])
    assert merge_ranges(offsets, lengths, most_bytes=1 << 20) == [
        (0, 200, [0, 2]),
        (900, 950, [1]),
        (1000, 1008, [4]),
        (2000, 2010, [3]),
    ]
    assert merge_ranges(np.array([0, 0, 50]), np.array([100, 100, 100]), most_bytes=120) == [
        (0, 100, [0, 1]),
        (50, 150, [2]),
    ]


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 400)), min_size=1, max_size=60), st.integers(400, 4000))
def test_each_range_lies_in_one_request_and_little_else_does(ranges, most_bytes):
    offsets = np.array([offset for offset, _ in ranges])
    lengths = np.array([length for _, length in ranges])
    requests = merge_ranges(offsets, lengths, most_bytes=most_bytes)
    assert sorted(number for _, _, members in requests for number in members) == list(range(len(ranges)))
    for start, stop, members in requests:
        assert stop - start <= most_bytes
        used = np.zeros(stop - start, dtype=bool)
        for number in members:
            assert start <= offsets[number]
            assert offsets[number] + lengths[number] <= stop
            used[offsets[number] - start : offsets[number] + lengths[number] - start] = True
        assert (~used).sum() * 20 <= used.sum()
