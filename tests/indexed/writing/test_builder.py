import gc
import os
import resource
import struct
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults import dies_at
from tests.indexed.pairs import INTEGERS, corpora, pair_bytes, read_pair, tokens_of, write_pair

from tokenloom import IndexedDataset, IndexedDatasetBuilder
from tokenloom.errors import ConfigError, DatasetFormatError, StorageError, TokenloomError, TokenRangeError


class Pair:
    """A builder and where its pair will be."""

    def __init__(self, folder, dtype=np.uint16, multimodal=False):
        self.prefix = str(folder / "corpus")
        self.builder = IndexedDatasetBuilder(f"{self.prefix}.bin", dtype=dtype, multimodal=multimodal)

    def finish(self):
        self.builder.finalize(f"{self.prefix}.idx")
        return pair_bytes(self.prefix)

    def tokens(self):
        self.finish()
        return [tokens.tolist() for tokens in IndexedDataset(self.prefix)[:]]


@pytest.fixture
def pair(tmp_path):
    return Pair(tmp_path)


BIN = struct.pack("<6H", 10, 11, 12, 13, 14, 15)
IDX = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ3i3q4q", 1, 8, 3, 4, *(3, 1, 2), *(0, 6, 8), *(0, 2, 2, 3))
"""Documents of uint16 tokens: (10, 11, 12 | 13), nothing, (14, 15)."""


def by_items(builder):
    builder.add_item(np.array([10, 11, 12]))
    builder.add_item(np.array([13]))
    builder.end_document()
    builder.end_document()
    builder.add_item(np.array([14, 15]))
    builder.end_document()


def by_document(builder):
    builder.add_document(np.array([10, 11, 12, 13]), [3, 1])
    builder.add_document([], [])
    builder.add_document((14, 15), (2,))


def by_block(builder):
    builder.append_block(
        np.arange(10, 16), np.array([3, 1, 2], dtype=np.int32), document_ends=np.array([2, 2, 3], dtype=np.int64)
    )


def by_all_ways(builder):
    builder.add_item([10, 11, 12])
    builder.append_block(np.array([13]), np.array([1], dtype=np.int32))
    builder.end_document()
    builder.add_documents([[14, 15]])


@pytest.mark.parametrize("add", [by_items, by_document, by_block, by_all_ways])
def test_every_way_in_gives_the_same_literal_bytes(pair, add):
    add(pair.builder)
    assert (pair.builder.num_sequences, pair.builder.num_documents) == (3, 3)
    assert pair.finish() == (BIN, IDX)


@pytest.mark.parametrize("multimodal", [True, False])
def test_a_multimodal_pair_ends_with_its_modes_and_a_text_pair_ignores_them(tmp_path, multimodal):
    pair = Pair(tmp_path, multimodal=multimodal)
    pair.builder.add_item([10, 11, 12])
    pair.builder.add_item([13], mode=1)
    pair.builder.end_document()
    pair.builder.end_document()
    pair.builder.add_document([14, 15], [2], [-7])
    assert pair.finish() == (BIN, IDX + b"\x00\x01\xf9" * multimodal)


@pytest.mark.parametrize("multimodal", [True, False])
def test_modes_of_every_way_in(tmp_path, multimodal):
    pair = Pair(tmp_path, multimodal=multimodal)
    pair.builder.add_document([2, 3], [1, 1], np.array([1, 2]))
    pair.builder.add_documents([[4], []], modes=[3, 4])
    strided = np.array([5, 0, 6, 0], dtype=np.int8)[::2]
    pair.builder.append_block(np.array([5, 6]), np.array([1, 1], dtype=np.int32), modes=strided)
    assert pair.finish()[1][34 + 12 * 6 + 8 * 6 :] == b"\1\2\3\4\5\6" * multimodal


def test_an_empty_pair(pair):
    assert pair.finish() == (b"", IDX[:17] + b"\x08" + struct.pack("<QQq", 0, 1, 0))


SOURCES = {
    "list": list,
    "tuple": tuple,
    "list of numpy integers": lambda tokens: [np.int64(token) for token in tokens],
    "memoryview": lambda tokens: memoryview(np.array(tokens, dtype=np.int32)),
    "two-dimensional": lambda tokens: np.array(tokens).reshape(2, -1),
    "strided": lambda tokens: np.repeat(np.array(tokens), 3)[::3],
    "reversed": lambda tokens: np.array(tokens[::-1])[::-1],
    "read-only": lambda tokens: np.frombuffer(np.array(tokens, dtype=np.int16).tobytes(), dtype=np.int16),
    "unaligned": lambda tokens: np.frombuffer(b"\0" + np.array(tokens, dtype="i4").tobytes(), np.uint8)[1:].view("i4"),
    "big-endian": lambda tokens: np.array(tokens, dtype=">i4"),
    **{
        np.dtype(dtype).name: lambda tokens, dtype=dtype: np.array(tokens, dtype=dtype)
        for dtype in [*INTEGERS, np.uint32, np.uint64]
    },
}  # fmt: skip


@pytest.mark.parametrize("dtype", [*INTEGERS, np.float32])
def test_tokens_of_every_type_arrive(tmp_path, dtype):
    tokens = [1, 2, 0, 127]
    pair = Pair(tmp_path, dtype)
    for source in SOURCES.values():
        pair.builder.add_item(source(tokens))
        pair.builder.add_document(source(tokens), [1, 3])
        pair.builder.add_documents([source(tokens), source(tokens)], eod_token=9)
    assert pair.tokens() == [tokens, tokens[:1], tokens[1:], [*tokens, 9], [*tokens, 9]] * len(SOURCES)


def test_torch_tensors_arrive(tmp_path):
    torch = pytest.importorskip("torch")
    pair = Pair(tmp_path)
    pair.builder.add_item(torch.tensor([1, 2, 65535]))
    pair.builder.add_document(torch.arange(4, dtype=torch.int32)[::2], torch.tensor([1, 1]))
    pair.builder.add_documents([torch.tensor([5, 6], dtype=torch.uint8)], eod_token=7)
    assert pair.tokens() == [[1, 2, 65535], [0], [2], [5, 6, 7]]


def test_empty_sequences_of_every_type_arrive(pair):
    empties = [[], (), np.array([]), np.empty(0, dtype=np.uint16)]
    for empty in empties:
        pair.builder.add_item(empty)
        pair.builder.add_document(empty, [0, 0])
        pair.builder.add_documents([empty])
        pair.builder.add_documents([empty], eod_token=3)
    assert pair.tokens() == [[], [], [], [], [3]] * len(empties)


@pytest.mark.parametrize("dtype", [">u2", "<u2", "=u2", "uint16", np.uint16, np.dtype("u2"), np.dtype(">u2")])
def test_files_are_little_endian_whatever_the_dtype_is_called(tmp_path, dtype):
    pair = Pair(tmp_path, dtype)
    by_block(pair.builder)
    pair.builder.add_item(np.array([1], dtype=">u2"))
    assert pair.finish()[0] == BIN + b"\x01\x00"


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_bounds_of_a_dtype_fit(tmp_path, dtype):
    bounds = np.iinfo(dtype)
    pair = Pair(tmp_path, dtype)
    extremes = [int(bounds.min), int(bounds.max)]
    pair.builder.add_item(extremes)
    pair.builder.add_item(np.array(extremes, dtype=dtype))
    pair.builder.add_documents([extremes[:1]], eod_token=extremes[1])
    pair.builder.append_block(np.array(extremes, dtype=np.int64), np.array([2], dtype=np.int32))
    assert pair.tokens() == [extremes] * 4


# --- what is refused adds nothing, and ends a call, not the builder -------------------------------------------------


@contextmanager
def adding_nothing(pair):
    """Lets calls be refused between others, and requires that nothing but the others' tokens is written."""
    pair.builder.add_document([1, 2], [2])
    pair.builder.add_item([3])
    yield
    assert (pair.builder.num_sequences, pair.builder.num_documents) == (2, 1)
    pair.builder.end_document()
    pair.builder.add_document([4], [1])
    pair.finish()
    assert read_pair(pair.prefix) == [[[1, 2]], [[3]], [[4]]]


TOO_LARGE = [65536, -1, 2**31, 2**63 - 1, -(2**63)]
BEYOND_64_BITS = [2**63, 2**64, 2**70, -(2**63) - 1]
WAYS_IN = {
    "add_item": lambda builder, tokens: builder.add_item(tokens),
    "add_document": lambda builder, tokens: builder.add_document(tokens, [1, len(tokens) - 1]),
    "add_documents": lambda builder, tokens: builder.add_documents([tokens]),
}


@pytest.mark.parametrize("way", WAYS_IN.values(), ids=WAYS_IN)
def test_a_token_out_of_range_is_named(pair, way):
    rows = [[1, token] for token in [*TOO_LARGE, *BEYOND_64_BITS]]
    rows += [np.array([1, token]) for token in TOO_LARGE]
    rows.append(np.array([1, 2**63], dtype=np.uint64))
    with adding_nothing(pair):
        for tokens in rows:
            with pytest.raises(TokenRangeError) as caught:
                way(pair.builder, tokens)
            expected = f"`{pair.prefix}.bin`: token id {tokens[1]} in document 1 must be in [0, 65535] for uint16"
            assert caught.value.message == expected
            assert caught.value.hint == "choose the dtype with `DType.optimal_dtype(vocab_size)`"


@pytest.mark.parametrize("token", [2**63, 2**64 - 1])
def test_large_unsigned_tokens_do_not_wrap_into_int64(tmp_path, token):
    pair = Pair(tmp_path, np.int64)
    row = np.array([token], dtype=np.uint64)
    with adding_nothing(pair):
        for eod in (None, 1):
            with pytest.raises(TokenRangeError, match=f"token id {token} in document 1 must be in .* for int64"):
                pair.builder.add_documents([row], eod_token=eod)


WRONG_TOKENS = [[1.5], [1.0, 2], ["a"], "abc", None, [None], np.array([0.5]), np.array([True]), [[1, 2], [3]], {"a": 1}]


def test_tokens_that_are_not_integers_are_refused(pair):
    message = r"tokens: must be integers for dtype uint16, got|inhomogeneous"
    with adding_nothing(pair):
        for tokens in [*WRONG_TOKENS, np.zeros(3, dtype=np.dtype([]))]:
            for add in (pair.builder.add_item, lambda row: pair.builder.add_documents([row])):
                with pytest.raises((ConfigError, ValueError), match=message):
                    add(tokens)


def block(lengths, ends=None, token=3):
    return np.array([1, 2, token]), np.array(lengths), None if ends is None else np.array(ends, dtype=np.int64)


LENGTHS = r"`lengths`: must be in \[0, 2147483647\], got"
ENDS = "`document_ends`: must ascend to 2"
REFUSED = [
    ("add_document", ([1, 2], [1]), ValueError, "lengths add up to 1 tokens, but 2 were given"),
    ("add_document", ([1, 2], [1, 2]), ValueError, "lengths add up to 3 tokens, but 2 were given"),
    ("add_document", ([1, 2], []), ValueError, "lengths add up to 0 tokens, but 2 were given"),
    ("add_document", ([1, 2], [3, -1]), ValueError, "a sequence of -1 tokens, expected 0 to 2147483647"),
    ("add_document", ([1, 2], [2**31, 2 - 2**31]), ValueError, "a sequence of 2147483648 tokens, expected 0 to 2147"),
    ("add_document", ([1, 2], [2**70]), ValueError, "`lengths`, `modes`: out of range"),
    ("add_document", ([1, 2], [1.0, 1.0]), TypeError, "integer"),
    ("add_document", ([1, 2], ["2"]), TypeError, "integer"),
    ("add_document", ([1, 2], "2"), TypeError, "integer"),
    ("add_document", ([1, 2], 2), TypeError, "lengths must be a sequence of integers"),
    ("add_document", ([1], None), TypeError, "lengths must be a sequence of integers"),
    ("append_block", block([2]), ValueError, "lengths add up to 2 tokens, but 3 were given"),
    ("append_block", block([4, -1]), ValueError, f"{LENGTHS} -1 to 4"),
    ("append_block", block([2**32 + 3]), ValueError, f"{LENGTHS} 4294967299 to 4294"),
    ("append_block", block([1, 2], []), ValueError, f"{ENDS}, the number of sequences"),
    *(("append_block", block([1, 2], ends), ValueError, ENDS) for ends in ([1], [3], [2, 1, 2], [-1, 2])),
    *(
        ("append_block", block([1, 2], None, token), TokenRangeError, f"token id {token} in document 1 must be in")
        for token in TOO_LARGE
    ),
    ("add_documents", ([[1]], 65536), TokenRangeError, "token id 65536 in document 1 must be in .* for uint16"),
    ("add_documents", ([[1]], None, 0), ConfigError, "`chunk_size`: must be 1 or more, got 0"),
]
NAMES = {"add_document": [], "append_block": ["document_ends"], "add_documents": ["eod_token", "chunk_size"]}
"""Names of the arguments that are not given by position."""


@pytest.mark.parametrize(("way", "given", "kind", "message"), REFUSED)
def test_what_does_not_fit_together_is_refused(pair, way, given, kind, message):
    num_unnamed = {"add_document": 2, "append_block": 2, "add_documents": 1}[way]
    named = dict(zip(NAMES[way], given[num_unnamed:], strict=False))
    with adding_nothing(pair), pytest.raises(kind, match=message):
        getattr(pair.builder, way)(*given[:num_unnamed], **named)


ONE = np.ones(1, dtype=int)


@pytest.mark.parametrize(
    ("way", "given", "modes", "message"),
    [
        ("add_document", ([1, 2], [1, 1]), [1], "1 modes for 2 sequences"),
        ("add_document", ([1, 2], [1, 1]), [1, 2, 3], "3 modes for 2 sequences"),
        ("add_document", ([1, 2], [1, 1]), [1, 128], "mode 128 does not fit int8"),
        ("add_document", ([1, 2], [1, 1]), [1, -129], "mode -129 does not fit int8"),
        ("add_documents", ([[1], [2]],), [1], r"`modes`: must have one entry per row \(2 rows\), got 1"),
        ("append_block", (ONE, ONE), np.zeros(2, np.int8), "as many"),
    ],
)
def test_modes_that_do_not_fit_are_refused(tmp_path, way, given, modes, message):
    pair = Pair(tmp_path, multimodal=True)
    with adding_nothing(pair), pytest.raises((ValueError, ConfigError), match=message):
        getattr(pair.builder, way)(*given, modes=modes)


@pytest.mark.parametrize("where", ["tokens", "lengths"])
def test_a_list_that_changes_while_it_is_read_is_refused_and_not_a_crash(pair, where):
    class Clears:
        def __index__(self):
            items.clear()
            return 1

    items = [Clears() for _ in range(50)]
    with adding_nothing(pair), pytest.raises((ConfigError, ValueError)):
        pair.builder.add_document(*((items, [50]) if where == "tokens" else ([1, 2], items)))


# --- what is taken --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float_dtypes_take_numbers(tmp_path, dtype):
    pair = Pair(tmp_path, dtype)
    pair.builder.add_item([0.5, 1])
    pair.builder.add_item(np.array([1, 2], dtype=np.int16))
    pair.builder.add_document(np.array([0.25, -1.5], dtype=np.float64), [1, 1])
    pair.builder.add_documents([[0.75], [3]], eod_token=2)
    pair.builder.append_block(np.array([1.25], dtype=np.float32), np.array([1], dtype=np.int32))
    assert pair.tokens() == [[0.5, 1], [1, 2], [0.25], [-1.5], [0.75, 2], [3, 2], [1.25]]


@pytest.mark.parametrize("lengths", [(1, 2), np.array([1, 2]), np.array([1, 2], dtype=np.uint8), range(1, 3)])
def test_lengths_of_every_type_arrive(pair, lengths):
    pair.builder.add_document([1, 2, 3], lengths)
    assert pair.tokens() == [[1], [2, 3]]


def test_jagged_batches_may_be_generated(pair):
    pair.builder.add_documents(([token] * token for token in range(4)), eod_token=9, chunk_size=2)
    assert pair.tokens() == [[9], [1, 9], [2, 2, 9], [3, 3, 3, 9]]


def test_blocks_without_sequences(pair):
    nothing = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
    pair.builder.append_block(*nothing)
    pair.builder.append_block(*nothing, document_ends=nothing[0])
    assert pair.builder.num_documents == 0
    pair.builder.append_block(*nothing, document_ends=np.array([0, 0]))
    assert pair.builder.num_documents == 2
    with pytest.raises(ValueError, match="`document_ends`: must ascend to 0"):
        pair.builder.append_block(*nothing, document_ends=np.array([1]))


def test_nothing_has_a_final_name_before_finalize(pair, tmp_path):
    pair.builder.add_documents([[1, 2]] * 1000)
    assert all(name.startswith(".") for name in os.listdir(tmp_path))
    pair.finish()
    assert sorted(os.listdir(tmp_path)) == ["corpus.bin", "corpus.idx"]


def test_a_builder_that_ends_early_removes_its_files_and_leaves_the_old_pair(tmp_path):
    before = pair_bytes(prefix := write_pair(tmp_path / "corpus", [[[1]]]))
    with IndexedDatasetBuilder(f"{prefix}.bin") as builder:
        builder.add_item([1])
    with pytest.raises(TokenRangeError), IndexedDatasetBuilder(f"{prefix}.bin") as builder:
        builder.add_item([2**40])
    IndexedDatasetBuilder(f"{prefix}.bin").add_item([1])  # garbage collection removes its files
    assert sorted(os.listdir(tmp_path)) == ["corpus.bin", "corpus.idx"]
    assert pair_bytes(prefix) == before


CALLS = {
    "finalize": lambda pair: pair.finish(),
    "add_item": lambda pair: pair.builder.add_item([1]),
    "add_document": lambda pair: pair.builder.add_document([1], [1]),
    "add_documents": lambda pair: pair.builder.add_documents([[1]]),
    "add_documents of nothing": lambda pair: pair.builder.add_documents([]),
    "append_block": lambda pair: pair.builder.append_block(np.array([1]), np.array([1], dtype=np.int32)),
    "end_document": lambda pair: pair.builder.end_document(),
    "add_index": lambda pair: pair.builder.add_index(pair.prefix),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("end", ["finish", "abort"])
def test_nothing_can_be_added_afterwards(pair, call, end):
    pair.finish() if end == "finish" else pair.builder.abort()
    with pytest.raises(StorageError) as caught:
        call(pair)
    assert caught.value.message == f"builder of `{pair.prefix}.bin`: was already finalized or aborted"


def test_a_failed_finalize_leaves_no_new_file_and_the_old_pair(tmp_path):
    prefix = write_pair(tmp_path / "corpus", [[[1, 2, 3]]])
    builder = IndexedDatasetBuilder(f"{prefix}.bin")
    builder.add_document([4], [1])
    with pytest.raises(StorageError, match=r"cannot create `.*absent/corpus.idx`: No such file or directory"):
        builder.finalize(tmp_path / "absent" / "corpus.idx")
    assert sorted(os.listdir(tmp_path)) == ["corpus.bin", "corpus.idx"]
    assert read_pair(prefix) == [[[1, 2, 3]]]


@pytest.mark.parametrize("way", ["block", "item", "index"])
def test_when_bytes_cannot_be_written_the_builder_gives_up_as_a_whole(tmp_path, way):
    (tmp_path / "out").mkdir()
    source = write_pair(tmp_path / "source", [[list(range(1 << 19))]])
    block = np.arange(1 << 20, dtype=np.int32)

    def fill(builder):
        for _ in range(4):
            if way == "block":
                builder.append_block(block, np.array([len(block)], dtype=np.int32))
            elif way == "item":
                builder.add_item(block)
            else:
                builder.add_index(source)
        builder.finalize(f"{tmp_path}/out/corpus.idx")

    def write():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        builder = IndexedDatasetBuilder(f"{tmp_path}/out/corpus.bin")
        with pytest.raises(StorageError, match=r"File too large$"):
            fill(builder)
        with pytest.raises(StorageError, match=r"corpus\.bin`: was already finalized or aborted$"):
            builder.finalize(f"{tmp_path}/out/corpus.idx")

    assert not dies_at(tmp_path, 1 << 30, write)  # in a fork, whose limit stays there
    assert os.listdir(tmp_path / "out") == []


def test_memory_grows_by_bytes_not_by_objects(tmp_path):
    pair = Pair(tmp_path)
    row = np.array([1, 2, 3], dtype=np.uint16)
    pair.builder.add_document(row, (3,))
    gc.collect()
    objects_before = len(gc.get_objects())
    tracemalloc.start()
    for _ in range(20_000):
        pair.builder.add_document(row, (3,))
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    gc.collect()
    assert grown < 10_000  # Python's heap; the records are in the extension
    assert len(gc.get_objects()) - objects_before < 100
    assert pair.builder.num_documents == 20_001


def test_many_flushes_keep_the_order(tmp_path, rng):
    tokens = rng.integers(0, 2**31, size=3_000_000)
    cuts = np.sort(rng.integers(0, len(tokens), size=50))
    pair = Pair(tmp_path, np.int32)
    for part in np.split(tokens, cuts):
        pair.builder.add_document(part, [len(part)])
    pair.finish()
    assert np.array_equal(np.fromfile(f"{pair.prefix}.bin", dtype=np.int32), tokens)


def test_more_rows_than_one_block_of_the_index(tmp_path, rng):
    lengths = rng.integers(0, 3, size=(1 << 20) + 100_003).astype(np.int32)
    tokens = rng.integers(0, 255, size=int(lengths.sum()))
    pair = Pair(tmp_path, np.uint8)
    half = int(lengths[: 1 << 19].sum())
    pair.builder.append_block(tokens[:half], lengths[: 1 << 19])
    pair.builder.append_block(tokens[half:], lengths[1 << 19 :])
    pair.finish()
    dataset = IndexedDataset(pair.prefix)
    assert np.array_equal(dataset.sequence_lengths, lengths)
    ends = np.cumsum(lengths, dtype=np.int64)
    assert np.array_equal(dataset.index.sequence_pointers, ends - lengths)
    assert np.array_equal(dataset.document_indices, np.arange(len(lengths) + 1))


@given(data=st.data(), dtype=st.sampled_from(INTEGERS), mmap=st.booleans())
def test_what_was_written_is_read(tmp_path_factory, data, dtype, mmap):
    corpus = data.draw(corpora(dtype))
    prefix = write_pair(tmp_path_factory.mktemp("pair") / "corpus", corpus, dtype=dtype)
    assert read_pair(prefix, mmap=mmap) == corpus


WAYS = st.sampled_from(["items", "document", "block"])


@given(corpus=corpora(np.uint16), ways=st.lists(WAYS, min_size=6, max_size=6))
def test_the_way_in_does_not_matter(tmp_path_factory, corpus, ways):
    folder = tmp_path_factory.mktemp("pair")
    pair = Pair(folder)
    for document, way in zip(corpus, ways, strict=False):
        tokens = [token for sequence in document for token in sequence]
        lengths = [len(sequence) for sequence in document]
        if way == "items":
            for sequence in document:
                pair.builder.add_item(sequence)
            pair.builder.end_document()
        elif way == "document":
            pair.builder.add_document(tokens, lengths)
        else:
            block = np.array(tokens, dtype=np.int64), np.array(lengths, dtype=np.int32)
            pair.builder.append_block(*block, document_ends=np.array([len(lengths)]))
    assert pair.finish() == pair_bytes(write_pair(folder / "whole", corpus, dtype=np.uint16))


@given(corpus=corpora(np.int16), data=st.data())
def test_a_pair_cut_at_any_byte_is_not_opened(tmp_path_factory, corpus, data):
    prefix = write_pair(tmp_path_factory.mktemp("pair") / "corpus", corpus, dtype=np.int16)
    suffix = data.draw(st.sampled_from([".bin", ".idx"] if any(map(any, corpus)) else [".idx"]))
    size = os.path.getsize(prefix + suffix)
    os.truncate(prefix + suffix, data.draw(st.integers(0, size - 1)))
    with pytest.raises(DatasetFormatError, match=f"corpus{suffix}`: "):
        IndexedDataset(prefix, mmap=data.draw(st.booleans()))


@given(rows=st.lists(st.lists(tokens_of(np.int64), max_size=5), max_size=5), eod=st.none() | st.integers(-5, 70000))
def test_jagged_batches_keep_every_token_or_name_one(tmp_path_factory, rows, eod):
    pair = Pair(tmp_path_factory.mktemp("pair"))
    suffix = [] if eod is None else [eod]
    try:
        pair.builder.add_documents(rows, eod_token=eod)
    except TokenloomError:
        assert not all(0 <= token < 65536 for row in [*rows, suffix] for token in row)
    else:
        assert pair.tokens() == [[*row, *suffix] for row in rows]


# --- pairs that are appended ---


def test_add_index_appends_documents_as_they_are(tmp_path):
    first, second = [[[1, 2], [3]], []], [[], [[4]], [[], [5, 6]]]
    prefixes = [write_pair(tmp_path / name, corpus) for name, corpus in (("a", first), ("b", second))]
    pair = Pair(tmp_path, np.int32)
    pair.builder.add_item([7])
    pair.builder.add_index(prefixes[0])
    pair.builder.add_document([8, 9], [2])
    pair.builder.add_index(f"{prefixes[1]}.idx")
    pair.builder.add_item([10])
    pair.builder.end_document()
    pair.finish()
    expected = [[[7], *first[0]], first[1], [[8, 9]], *second, [[10]]]
    assert read_pair(pair.prefix) == expected
    assert pair_bytes(pair.prefix) == pair_bytes(write_pair(tmp_path / "whole", expected))


def test_add_index_appends_modes(tmp_path):
    corpus = [[[1], [2]], [[3], [4], [5]]]
    prefix = write_pair(tmp_path / "a", corpus, multimodal=True)
    pair = Pair(tmp_path, np.int32, multimodal=True)
    pair.builder.add_index(prefix)
    pair.builder.add_index(prefix)
    pair.finish()
    assert IndexedDataset(pair.prefix, multimodal=True).sequence_modes.tolist() == [0, 1, 0, 1, 2] * 2
    with pytest.raises(DatasetFormatError, match=r"a.idx`: expected tokens of dtype uint16, found int32"):
        Pair(tmp_path).builder.add_index(prefix)
