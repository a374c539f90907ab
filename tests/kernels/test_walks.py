"""Windows of a source in a computed order: each token is read once, and occurrences find every document."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.reference.occurrences import rows_of, scanned

from tokenloom._native import SectionNeeded
from tokenloom.kernels.walks import PassPart, make_source_documents, make_walk_reader, sample_numbers

KEY = (3, 5)
Lengths = list[NDArray[np.int32]]


def pairs_of(*counts: int, seed: int = 0, longest: int = 50) -> Lengths:
    random = np.random.default_rng(seed)
    return [random.integers(0, longest, size=count).astype(np.int32) for count in counts]


def reader_of(pairs: Lengths, *, length: int, extra: int = 1, is_shuffled: bool = True, denied: tuple[int, ...] = ()):
    documents = make_source_documents([(len(pair), int(pair.sum()), 0, 0) for pair in pairs], key=KEY, reads_held=False)
    num_windows = max(0, (sum(int(pair.sum()) for pair in pairs) - extra) // length)
    reader = make_walk_reader(documents, is_shuffled=is_shuffled, sequence_length=length, extra=extra, denied=denied)
    reader.add_walks(0, 0, len(pairs), num_windows)
    return documents, reader, num_windows


def opened(pairs: Lengths, **settings: int):
    documents, reader, num_windows = reader_of(pairs, **settings)
    for number, lengths in enumerate(pairs):
        documents.open(number, lengths)
    return reader, num_windows


@pytest.mark.parametrize("is_shuffled", [True, False])
@pytest.mark.parametrize("extra", [0, 1])
def test_every_token_of_a_window_is_read_once(is_shuffled: bool, extra: int) -> None:
    pairs = pairs_of(3000, 0, 1, 2500, 70)
    reader, num_windows = opened(pairs, length=64, extra=extra, is_shuffled=is_shuffled)
    lengths = np.concatenate(pairs).astype(np.int64)
    begins = np.cumsum(lengths) - lengths
    for walk in (0, 1, 7):
        numbers = sample_numbers(np.full(num_windows, walk), np.arange(num_windows))
        documents, starts, taken, offsets = reader.spans(numbers, keep_empty=False)
        assert (np.add.reduceat(taken, offsets[:-1]) == 64 + extra).all()
        read = np.zeros(int(lengths.sum()), dtype=np.int64)
        for begin, size in zip((begins[documents] + starts).tolist(), taken.tolist(), strict=True):
            read[begin : begin + size] += 1
        # The extra token of a window is the first token of another, except in the last window of the walk.
        assert np.bincount(read, minlength=3)[2] == (num_windows - 1) * extra
        assert (read > 0).sum() == num_windows * 64 + extra


def int64s(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def test_occurrences_by_hand() -> None:
    # Documents of 3, 0, 5 and 1 tokens in file order; windows of 4 tokens and one extra: [0, 5) and [4, 9).
    lengths = np.array([3, 0, 5, 1], np.int32)
    documents, reader, _ = reader_of([lengths], length=4, is_shuffled=False)
    documents.open(0, lengths)
    found = rows_of(reader.occurrences(int64s(0), int64s(0, 1, 2, 3)))
    first, second = found[0][2], found[-1][2]
    assert {first, second} == {0, 1}
    assert found == sorted(
        [(0, 0, first, 0, 3, 0), (0, 2, first, 0, 2, 3), (0, 2, second, 1, 4, 0), (0, 3, second, 0, 1, 4)]
    )
    assert [column.tolist() for column in reader.occurrences(int64s(), int64s(0))] == [[]] * 6
    assert [column.tolist() for column in reader.occurrences(int64s(0), int64s())] == [[]] * 6


@pytest.mark.parametrize(
    ("counts", "extra", "is_shuffled"),
    [
        ((1500, 3, 1100), 0, True),
        ((1500, 3, 1100), 1, True),
        ((300_000,), 1, True),
        ((700, 0, 1), 1, True),
        ((700, 0, 1), 1, False),
    ],
)
def test_documents_are_found_where_they_are_read(rng, counts, extra: int, is_shuffled: bool) -> None:
    longest = 50 if sum(counts) < 10_000 else 2  # more than 1,024 blocks use a network, fewer a table
    pairs = pairs_of(*counts, seed=int(rng.integers(2**32)), longest=longest)
    reader, num_windows = opened(pairs, length=100, extra=extra, is_shuffled=is_shuffled)
    walks = [3, 0, 2**21] if sum(counts) < 10_000 else [5]
    several = np.unique(rng.integers(0, sum(counts), size=40))
    for documents in (several, several[:1], several[-2:]):
        found = rows_of(reader.occurrences(int64s(*walks), documents))
        assert found == scanned(reader, walks, documents.tolist(), num_windows=num_windows)


def test_walks_over_other_pairs() -> None:
    pairs = pairs_of(600, 700, 800)
    documents, reader, num_windows = reader_of(pairs, length=64)
    for number, lengths in enumerate(pairs):
        documents.open(number, lengths)
    new = (int(pairs[1].sum()) + int(pairs[2].sum()) - 1) // 64
    reader.add_walks(4, 1, 3, new)
    reader.add_walks(5, 0, 3, num_windows)
    asked = int64s(0, 5, 599, 600, 1299, 1300, 2000, 2099)
    expected = [
        row
        for walk, count in ((3, num_windows), (4, new), (5, num_windows))
        for row in scanned(reader, [walk], asked.tolist(), num_windows=count)
    ]
    assert rows_of(reader.occurrences(int64s(3, 4, 5), asked)) == sorted(expected)
    assert not {0, 5, 599} & set(reader.occurrences(int64s(4), asked)[1].tolist())


def test_occurrences_need_the_pair_of_the_document_alone() -> None:
    pairs = pairs_of(1200, 1200, 1200)
    documents, reader, num_windows = reader_of(pairs, length=16)
    with pytest.raises(SectionNeeded) as needed:
        reader.occurrences(int64s(0, 1), int64s(1300))
    assert needed.value.args == (1,)
    documents.open(1, pairs[1])
    found = rows_of(reader.occurrences(int64s(0, 1), int64s(1300)))
    assert [documents.is_open(each) for each in range(3)] == [False, True, False]
    for number in (0, 2):
        documents.open(number, pairs[number])
    assert found == scanned(reader, [0, 1], [1300], num_windows=num_windows)


def test_other_lengths_than_were_promised_are_refused() -> None:
    pairs = pairs_of(100)
    documents, _, _ = reader_of(pairs, length=16)
    with pytest.raises(IndexError, match="expected 100 documents, found 99"):
        documents.open(0, pairs[0][:-1])
    with pytest.raises(IndexError, match="expected documents of"):
        documents.open(0, pairs[0] + np.int32(1))
    negative = pairs[0].copy()
    negative[3] = -5
    with pytest.raises(IndexError, match="negative"):
        documents.open(0, negative)


@pytest.mark.parametrize(("blocks", "singles"), [(2, 0), (0, 300)])
def test_what_is_held_out_is_disjoint_and_all_there(blocks: int, singles: int) -> None:
    [lengths] = pairs_of(9000)
    total = int(lengths.sum())
    read: dict[bool, set[int]] = {}
    tokens: dict[bool, int] = {}
    for held in (True, False):  # the true number of tokens is in the error message
        with pytest.raises(IndexError) as caught:
            make_source_documents([(9000, total, blocks, singles)], key=KEY, reads_held=held).open(0, lengths)
        tokens[held] = int(str(caught.value).rpartition("found ")[2])
        documents = make_source_documents([(9000, tokens[held], blocks, singles)], key=KEY, reads_held=held)
        documents.open(0, lengths)
        num_windows = tokens[held] // 8
        reader = make_walk_reader(documents, is_shuffled=True, sequence_length=8, extra=0)
        reader.add_walks(0, 0, 1, num_windows)
        read[held] = set(reader.spans(np.arange(num_windows), keep_empty=False)[0].tolist())
    assert tokens[True] + tokens[False] == total
    assert not read[True] & read[False]
    if singles:
        assert 250 < len(read[True]) <= singles
    else:
        assert len({document // 256 for document in read[True]}) == blocks


def test_numbers_that_there_are_not() -> None:
    reader, num_windows = opened(pairs_of(300), length=64)
    with pytest.raises(IndexError, match="window"):
        reader.spans(np.array([num_windows]), keep_empty=False)
    with pytest.raises(IndexError, match="no walk"):
        reader.spans(np.array([-1]), keep_empty=False)


def test_many_threads_read_many_walks() -> None:
    pairs = pairs_of(3000, 2000, 1000)
    expected_reader, num_windows = opened(pairs, length=32)
    numbers = [sample_numbers(np.full(60, walk), np.arange(60) * (num_windows // 60)) for walk in range(12)]
    expected = [[part.tolist() for part in expected_reader.spans(each, keep_empty=False)] for each in numbers]
    documents, reader, _ = reader_of(pairs, length=32)

    def read(walk: int) -> list[list[int]]:
        while True:
            try:
                return [part.tolist() for part in reader.spans(numbers[walk], keep_empty=False)]
            except SectionNeeded as needed:
                documents.open(needed.args[0], pairs[needed.args[0]])

    with ThreadPoolExecutor(6) as executor:
        assert list(executor.map(read, [*range(12), *range(12), *range(12)])) == expected * 3


def reader_of_parts(pairs: Lengths, length: int, extra: int, is_shuffled: bool, parts: list[tuple[int, PassPart]]):
    reader, _ = opened(pairs, length=length, extra=extra, is_shuffled=is_shuffled)
    for walk, (num_windows, part) in enumerate(parts, start=3):
        reader.add_walks(walk, 0, len(pairs), num_windows, part)
    return reader


def tokens_of(reader, pairs: Lengths, walk: int, count: int, length: int) -> NDArray[np.int64]:
    """Returns the tokens of the first windows of a walk, without the extra token of each window."""
    lengths = np.concatenate(pairs).astype(np.int64)
    begins = np.cumsum(lengths) - lengths
    numbers = sample_numbers(np.full(count, walk), np.arange(count))
    documents, starts, taken, offsets = reader.spans(numbers, keep_empty=False)
    rows = [np.arange(at, at + size) for at, size in zip(begins[documents] + starts, taken, strict=True)]
    windows = itertools.pairwise(offsets.tolist())
    return np.concatenate([np.concatenate(rows[first:last])[:length] for first, last in windows])


@pytest.mark.parametrize("is_shuffled", [True, False])
@pytest.mark.parametrize(("counts", "stretch"), [((900, 0, 400), 256), ((30_000, 3), 64)])
def test_parts_of_a_pass_read_each_token_once(counts: tuple[int, ...], stretch: int, is_shuffled: bool) -> None:
    pairs = pairs_of(*counts)
    num_tokens = sum(int(pair.sum()) for pair in pairs) - 1
    # (length, windows that are read before the next length): the middle of a stretch, its end, and all that is left
    first, read, walk = 0, [], 3
    for length, planned in ((8, 1001), (32, 77), (16, 200), (stretch, None)):
        first = -(-first // length) * length
        num_windows = num_tokens // length - first // length
        part = PassPart(3 if read else -1, first, num_tokens, stretch, planned or 0)
        reader = reader_of_parts(pairs, length, 1, is_shuffled, [(num_windows, part)] * 5)
        reader.add_walks(walk, 0, len(pairs), num_windows, part)
        count = planned or num_windows
        read.append(tokens_of(reader, pairs, walk, count, length))
        asked = np.arange(0, sum(counts), 37)
        found = rows_of(reader.occurrences(int64s(walk), asked))
        assert found == scanned(reader, [walk], asked.tolist(), num_windows=num_windows)
        first, walk = first + count * length, walk + 1
    tokens = np.concatenate(read)
    assert len(np.unique(tokens)) == len(tokens)
    assert num_tokens - len(tokens) < 32 + 16 + stretch + stretch
    assert len(np.unique(tokens[:8])) == 8
    assert np.abs(np.diff(read[0][::8])).min() >= 8  # windows of a stretch are shuffled
    count = num_tokens // 8
    reader = reader_of_parts(pairs, 8, 1, is_shuffled, [(count, PassPart(-1, 0, num_tokens, stretch))])
    whole = tokens_of(reader, pairs, 3, count, 8)
    assert len(np.unique(whole)) == len(whole) == count * 8
