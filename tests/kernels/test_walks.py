"""Windows and packs of a source in a computed order: each token is read once, and occurrences find every document."""

import hashlib
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.reference.occurrences import rows_of, scanned
from tests.reference.pack_walks import GROUP_DOCUMENTS, packs_of_walk
from tests.reference.packs import cut
from tests.support import flat

from tokenloom._native import SectionNeeded
from tokenloom.kernels.permutation import Key, Permutation, Purpose, derive
from tokenloom.kernels.walks import (
    NOT_KNOWN,
    PassPart,
    count_packs_of,
    make_source_documents,
    make_walk_reader,
    sample_numbers,
)

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
    expected = [(0, 0, first, 0, 3, 0), (0, 2, first, 0, 2, 3), (0, 2, second, 1, 4, 0), (0, 3, second, 0, 1, 4)]
    assert found == sorted(expected)
    assert [column.tolist() for column in reader.occurrences(int64s(), int64s(0))] == [[]] * 6
    assert [column.tolist() for column in reader.occurrences(int64s(0), int64s())] == [[]] * 6


SOURCES = [((1500, 3, 1100), 0, True), ((1500, 3, 1100), 1, True), ((300_000,), 1, True)]


@pytest.mark.parametrize(
    ("counts", "extra", "is_shuffled"), [*SOURCES, ((700, 0, 1), 1, True), ((700, 0, 1), 1, False)]
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
    counts = {3: num_windows, 4: new, 5: num_windows}
    expected = flat(scanned(reader, [walk], asked.tolist(), num_windows=counts[walk]) for walk in counts)
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


def test_other_lengths_than_were_promised_and_numbers_that_there_are_not() -> None:
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
    reader, num_windows = opened(pairs_of(300), length=64)
    with pytest.raises(IndexError, match="window"):
        reader.spans(np.array([num_windows]), keep_empty=False)
    with pytest.raises(IndexError, match="no walk"):
        reader.spans(np.array([-1]), keep_empty=False)


@pytest.mark.parametrize(("blocks", "singles"), [(2, 0), (0, 300)])
def test_held_out_windows_are_disjoint_and_all_there(blocks: int, singles: int) -> None:
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


# --- packs ----------------------------------------------------------------------------------------------------------
KEY = Key(3, 5)
Lengths = list[NDArray[np.int32]]


def int32s(*values: int) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def sparse(count: int, *, seed: int = 0, num_held: int = 300, longest: int = 50) -> NDArray[np.int32]:
    """Returns lengths of mostly empty documents, so that the slow reference packs many groups quickly."""
    random = np.random.default_rng(seed)
    lengths = np.zeros(count, dtype=np.int32)
    chosen = random.choice(count, size=min(num_held, count), replace=False)
    lengths[chosen] = random.integers(1, longest, size=len(chosen))
    return lengths


class Source:
    """A reader of packs with open pairs."""

    def __init__(
        self, pairs: Lengths, *, length, extra=1, most=None, is_shuffled=True, held=(0, 0), reads_held=False, denied=(),
        is_open=True,
    ) -> None:  # fmt: skip
        self.pairs = pairs
        rule: Any = {"sequence_length": length, "extra": extra, "most_pieces": most}
        chosen: Any = {"held_blocks": held[0], "held_documents": held[1], "reads_held": reads_held}
        self.counts = [
            count_packs_of(lengths, key=KEY, pair=number, **rule, **chosen) for number, lengths in enumerate(pairs)
        ]
        self.num_packs = sum(self.counts)
        facts = [(len(lengths), NOT_KNOWN, *held) for lengths in pairs]
        self.documents = make_source_documents(facts, key=KEY, reads_held=reads_held)
        for number, lengths in enumerate(pairs if is_open else ()):
            self.documents.open(number, lengths)
        self.options = {"is_shuffled": is_shuffled, "denied": denied, **rule}
        self.reader = self.make_reader()

    def make_reader(self):
        reader = make_walk_reader(self.documents, num_packs=self.counts, **self.options)
        reader.add_walks(0, 0, len(self.pairs), self.num_packs)
        return reader

    def packs(self, walk: int) -> list[list[tuple[int, int, int]]]:
        numbers = sample_numbers(np.full(self.num_packs, walk), np.arange(self.num_packs))
        *columns, offsets = self.reader.spans(numbers, keep_empty=False)
        pieces = list(zip(*(column.tolist() for column in columns), strict=True))
        return [pieces[first:last] for first, last in itertools.pairwise(offsets.tolist())]


def twin(pairs: Lengths, **settings: object) -> list[list[tuple[int, int, int]]]:
    return packs_of_walk([lengths.tolist() for lengths in pairs], key=KEY, **settings)


def test_two_packs_by_hand() -> None:
    # Packs of four tokens: 3 with 1 and 2 with 2; their order depends on the walk.
    source = Source([int32s(1, 2, 0, 3, 2)], length=4, extra=0)
    assert source.counts == [2]
    assert sorted(source.packs(0)) == [[(1, 0, 2), (4, 0, 2)], [(3, 0, 3), (0, 0, 1)]]
    orders = {str(source.packs(walk)) for walk in range(20)}
    assert len(orders) == 2


PAIRS = st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=1, max_size=5)


@given(PAIRS, st.integers(1, 12), st.integers(0, 1), st.none() | st.integers(1, 4), st.integers(0, 9), st.booleans())
@example(pairs=[[], [0, 0], [100], []], length=3, extra=1, most=None, walk=0, shuffled=True)
def test_packs_are_those_of_the_twin(pairs, length, extra, most, walk, shuffled) -> None:
    rule = {"extra": extra, "most": most, "is_shuffled": shuffled}
    source = Source([int32s(*lengths) for lengths in pairs], length=length, **rule)
    expected = packs_of_walk(pairs, key=KEY, walk=walk, sequence_length=length, **rule)
    assert source.packs(walk) == expected
    pieces = [
        (first + document, start, taken)
        for first, lengths in zip(itertools.accumulate(map(len, pairs), initial=0), pairs, strict=False)
        for document, tokens in enumerate(lengths)
        for start, taken in cut(tokens, sequence_length=length, extra=extra)
    ]
    assert sorted(itertools.chain.from_iterable(expected)) == sorted(pieces)


@pytest.mark.parametrize("is_shuffled", [True, False])
def test_groups_and_pools_are_those_of_the_twin(is_shuffled: bool) -> None:
    # Pairs of 1, 20, 3, 0 and 14 groups: some share a pool, one has two.
    sizes = (900, 19 * GROUP_DOCUMENTS + 5, 3 * GROUP_DOCUMENTS, 0, 14 * GROUP_DOCUMENTS - 7)
    pairs = [sparse(size, seed=seed, num_held=size // 800) for seed, size in enumerate(sizes)]
    expected = twin(pairs, walk=3, sequence_length=40, extra=1, is_shuffled=is_shuffled)
    assert Source(pairs, length=40, is_shuffled=is_shuffled).packs(3) == expected


def test_a_document_is_found_where_it_is_read() -> None:
    pairs = [sparse(2 * GROUP_DOCUMENTS, num_held=900), int32s(), int32s(5, 700, 0, 64, 65, 66, 129), sparse(50)]
    source = Source(pairs, length=64)
    asked = np.array([*np.flatnonzero(np.concatenate(pairs)).tolist(), 1, 2 * GROUP_DOCUMENTS + 2], dtype=np.int64)
    walks = np.array([0, 4], dtype=np.int64)
    found = rows_of(source.reader.occurrences(walks, np.unique(asked)))
    assert found == scanned(source.reader, [0, 4], asked.tolist(), num_windows=source.num_packs)
    for document in asked[:: len(asked) // 7].tolist():
        alone = rows_of(source.reader.occurrences(walks, np.array([document])))
        assert alone == [row for row in found if row[1] == document]


def test_a_document_of_millions_of_samples_costs_no_memory() -> None:
    longest = 2**31 - 1
    source = Source([int32s(longest, 3, longest)], length=1, extra=1)
    assert source.num_packs == 2 * (longest - 1) + 2  # the document of three tokens makes two full pieces
    some = [0, 5, source.num_packs // 2, source.num_packs - 1]
    documents, starts, taken, _ = source.reader.spans(np.array(some), keep_empty=False)
    assert taken.tolist() == [2, 2, 2, 2]
    for window, document, start in zip(some, documents.tolist(), starts.tolist(), strict=True):
        assert document in (0, 1, 2)
        assert 0 <= start < longest - 1
        if document == 1:
            assert window in source.reader.occurrences(np.array([0]), np.array([1]))[2]


@pytest.mark.parametrize(("blocks", "singles"), [(3, 0), (0, 2000)])
def test_held_out_packs_are_disjoint_and_all_there(blocks: int, singles: int) -> None:
    lengths = np.random.default_rng(1).integers(0, 40, size=9000).astype(np.int32)
    read = {}
    for reads_held in (True, False):
        source = Source([lengths], length=512, held=(blocks, singles), reads_held=reads_held)
        read[reads_held] = {document for pack in source.packs(0) for document, _, _ in pack}
        wanted = {document: is_held(document, blocks, singles) == reads_held for document in range(len(lengths))}
        rule: Any = {"sequence_length": 512, "extra": 1, "reads": lambda _, document, wanted=wanted: wanted[document]}
        assert source.packs(0) == twin([lengths], walk=0, **rule)
    assert not read[True] & read[False]
    assert sorted(read[True] | read[False]) == np.flatnonzero(lengths).tolist()
    outside = next(iter(read[True]))
    assert all(not len(part) for part in source.reader.occurrences(np.array([0]), np.array([outside])))


def is_held(document: int, blocks: int, singles: int) -> bool:
    key = derive(KEY, Purpose.HOLDOUT, 0)
    if blocks:
        return bool(Permutation(36, key).forward(np.array([document // 256]))[0] < blocks)
    return bool(Permutation(9000, key).forward(np.array([document]))[0] < singles)


def test_denied_documents_are_marked() -> None:
    pairs = [sparse(500, num_held=500)]
    plain, marked = Source(pairs, length=64), Source(pairs, length=64, denied=(7, 20))
    for before, after in zip(plain.packs(1), marked.packs(1), strict=True):
        assert after == [(-1 - d if d in (7, 20) else d, start, taken) for d, start, taken in before]


def test_only_the_pair_of_the_sample_is_needed() -> None:
    pairs = [sparse(1200, seed=seed, num_held=1200) for seed in range(3)]
    source = Source(pairs, length=16, is_open=False)
    with pytest.raises(SectionNeeded) as needed:
        source.reader.spans(np.array([5]), keep_empty=False)
    number = needed.value.args[0]
    source.documents.open(number, pairs[number])
    found = source.reader.spans(np.array([5]), keep_empty=False)[0]
    assert {document // 1200 for document in found.tolist()} == {number}
    assert [source.documents.is_open(each) for each in range(3)] == [each == number for each in range(3)]


def test_other_packs_than_were_promised_are_refused() -> None:
    source = Source([sparse(100, num_held=90), sparse(100, seed=1)], length=16)
    source.counts[0] += 1
    source.num_packs += 1
    with pytest.raises(IndexError, match=r"expected pair 0 to make \d+ packs, found \d+"):
        source.make_reader().spans(np.arange(source.num_packs), keep_empty=False)
    source.num_packs += 1
    with pytest.raises(IndexError, match=r"expected a walk of \d+ packs, found \d+"):
        source.make_reader().spans(np.array([0]), keep_empty=False)


def test_threads_get_the_packs_that_one_gets() -> None:
    source = Source([sparse(4 * GROUP_DOCUMENTS, num_held=20_000)], length=64)
    expected = source.packs(2)
    again = Source(source.pairs, length=64)
    windows = np.random.default_rng(0).integers(0, len(expected), 1200).tolist()

    def read(window: int) -> list[tuple[int, ...]]:
        *columns, _ = again.reader.spans(sample_numbers(np.array([2]), np.array([window])), keep_empty=False)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    with ThreadPoolExecutor(6) as executor:
        assert list(executor.map(read, windows)) == [expected[window] for window in windows]


def test_the_order_stays_as_it_is() -> None:
    numbers = np.arange(17 * GROUP_DOCUMENTS)
    drawn = numbers * 2654435761 % 2**32 >> 8  # independent of NumPy's generators, which may change
    pairs = [np.where(drawn % 97 == 0, drawn % 151, 0).astype(np.int32), (drawn[:2000] % 60).astype(np.int32)]
    source = Source(pairs, length=64)
    digest = hashlib.sha256(str([source.packs(walk) for walk in (0, 1)]).encode()).hexdigest()
    assert digest == "2462e5c00c73fd3675ad11cdf0c865f8d084b50e11770e2630d5896d491e7dfa"
