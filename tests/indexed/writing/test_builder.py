"""Writing a pair."""

from __future__ import annotations

import gc
import os
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.indexed.pairs import INTEGER_DTYPES, corpora, pair_bytes, read_pair, tokens_of, write_pair
from tests.indexed.writing.pairs import Pair, state_of

from tokenloom import IndexedDataset, IndexedDatasetBuilder
from tokenloom.errors import (
    ConfigError,
    DatasetFormatError,
    StorageError,
    TokenloomError,
    TokenRangeError,
)

BIN = struct.pack("<6H", 10, 11, 12, 13, 14, 15)
IDX = (
    b"MMIDIDX\x00\x00"
    + struct.pack("<QBQQ", 1, 8, 3, 4)
    + struct.pack("<3i", 3, 1, 2)
    + struct.pack("<3q", 0, 6, 8)
    + struct.pack("<4q", 0, 2, 2, 3)
)
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
    assert pair.builder.num_sequences == 3
    assert pair.builder.num_documents == 3
    assert pair.finish() == (BIN, IDX)


def test_a_multimodal_pair_ends_with_its_modes(tmp_path):
    pair = Pair(tmp_path, multimodal=True)
    pair.builder.add_item([10, 11, 12])
    pair.builder.add_item([13], mode=1)
    pair.builder.end_document()
    pair.builder.end_document()
    pair.builder.add_document([14, 15], [2], [-7])
    assert pair.finish() == (BIN, IDX + b"\x00\x01\xf9")


def test_modes_default_to_zero(tmp_path):
    pair = Pair(tmp_path, multimodal=True)
    pair.builder.add_item([1])
    pair.builder.add_document([2, 3], [1, 1])
    pair.builder.add_documents([[4]])
    pair.builder.append_block(np.array([5]), np.array([1], dtype=np.int32))
    pair.finish()
    assert IndexedDataset(pair.prefix, multimodal=True).sequence_modes.tolist() == [0] * 5


def test_modes_of_every_way_in(tmp_path):
    pair = Pair(tmp_path, multimodal=True)
    pair.builder.add_document([2, 3], [1, 1], np.array([1, 2]))
    pair.builder.add_documents([[4], []], modes=[3, 4])
    strided = np.array([5, 0, 6, 0], dtype=np.int8)[::2]
    pair.builder.append_block(np.array([5, 6]), np.array([1, 1], dtype=np.int32), modes=strided)
    pair.finish()
    assert IndexedDataset(pair.prefix, multimodal=True).sequence_modes.tolist() == [1, 2, 3, 4, 5, 6]


def test_a_text_pair_ignores_modes(pair):
    pair.builder.add_item([1], mode=1)
    pair.builder.add_document([2], [1], [1])
    pair.builder.add_documents([[3]], modes=[1])
    pair.finish()
    assert os.path.getsize(f"{pair.prefix}.idx") == 34 + 12 * 3 + 8 * 3


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
        for dtype in [*INTEGER_DTYPES, np.uint32, np.uint64]
    },
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("dtype", [*INTEGER_DTYPES, np.float32])
def test_tokens_of_every_type_arrive(tmp_path, source, dtype):
    tokens = [1, 2, 0, 127]
    pair = Pair(tmp_path, dtype)
    pair.builder.add_item(source(tokens))
    pair.builder.add_document(source(tokens), [1, 3])
    pair.builder.add_documents([source(tokens), source(tokens)], eod_token=9)
    assert pair.tokens() == [tokens, tokens[:1], tokens[1:], [*tokens, 9], [*tokens, 9]]


def test_torch_tensors_arrive(tmp_path):
    torch = pytest.importorskip("torch")
    pair = Pair(tmp_path)
    pair.builder.add_item(torch.tensor([1, 2, 65535]))
    pair.builder.add_document(torch.arange(4, dtype=torch.int32)[::2], torch.tensor([1, 1]))
    pair.builder.add_documents([torch.tensor([5, 6], dtype=torch.uint8)], eod_token=7)
    assert pair.tokens() == [[1, 2, 65535], [0], [2], [5, 6, 7]]


@pytest.mark.parametrize("empty", [[], (), np.array([]), np.empty(0, dtype=np.uint16)])
def test_empty_sequences_of_every_type_arrive(pair, empty):
    pair.builder.add_item(empty)
    pair.builder.add_document(empty, [0, 0])
    pair.builder.add_documents([empty])
    pair.builder.add_documents([empty], eod_token=3)
    assert pair.tokens() == [[], [], [], [], [3]]


@pytest.mark.parametrize("dtype", [">u2", "<u2", "=u2", "uint16", np.uint16, np.dtype("u2"), np.dtype(">u2")])
def test_files_are_little_endian_whatever_the_dtype_is_called(tmp_path, dtype):
    pair = Pair(tmp_path, dtype)
    by_block(pair.builder)
    pair.builder.add_item(np.array([1], dtype=">u2"))
    assert pair.finish()[0] == BIN + b"\x01\x00"


@pytest.mark.parametrize("dtype", [np.uint32, np.float16, None, "U3", np.bool_])
def test_a_dtype_without_a_code_is_refused_and_nothing_is_created(tmp_path, dtype):
    with pytest.raises(ConfigError, match="has no code in the format"):
        IndexedDatasetBuilder(tmp_path / "corpus.bin", dtype=dtype)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
def test_the_bounds_of_a_dtype_fit(tmp_path, dtype):
    bounds = np.iinfo(dtype)
    pair = Pair(tmp_path, dtype)
    extremes = [int(bounds.min), int(bounds.max)]
    pair.builder.add_item(extremes)
    pair.builder.add_item(np.array(extremes, dtype=dtype))
    pair.builder.add_documents([extremes[:1]], eod_token=extremes[1])
    pair.builder.append_block(np.array(extremes, dtype=np.int64), np.array([2], dtype=np.int32))
    assert pair.tokens() == [extremes] * 4


TOO_LARGE = [65536, -1, 2**31, 2**63 - 1, -(2**63)]
BEYOND_64_BITS = [2**63, 2**64, 2**70, -(2**63) - 1]
WAYS_IN = {
    "add_item": lambda builder, tokens: builder.add_item(tokens),
    "add_document": lambda builder, tokens: builder.add_document(tokens, [1, len(tokens) - 1]),
    "add_documents": lambda builder, tokens: builder.add_documents([tokens]),
}


@pytest.mark.parametrize("way", WAYS_IN.values(), ids=WAYS_IN)
@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize("token", [*TOO_LARGE, *BEYOND_64_BITS])
def test_a_token_out_of_range_is_named_and_nothing_is_added(pair, way, token, as_array):
    if as_array and token in BEYOND_64_BITS and token != 2**63:
        return  # no array holds it as an integer
    tokens = np.array([1, token], dtype=np.uint64 if token == 2**63 else np.int64) if as_array else [1, token]
    pair.builder.add_document([1, 2], [2])
    pair.builder.add_item([3])
    with pytest.raises(TokenRangeError) as caught:
        way(pair.builder, tokens)
    assert caught.value.message == (
        f"`{pair.prefix}.bin`: token id {token} in document 1 does not fit uint16, which holds 0 to 65535"
    )
    assert caught.value.hint == "choose the dtype with `DType.optimal_dtype(vocab_size)`"
    assert state_of(pair) == (2, 1, struct.pack("<3H", 1, 2, 3))


@pytest.mark.parametrize("token", TOO_LARGE)
def test_a_block_with_a_token_out_of_range_adds_nothing(pair, token):
    with pytest.raises(TokenRangeError, match=f"token id {token} in document 0 does not fit uint16"):
        pair.builder.append_block(np.array([1, token]), np.array([2], dtype=np.int32))
    assert state_of(pair) == (0, 0, b"")


def test_a_range_error_is_the_end_of_a_call_not_of_the_builder(pair):
    pair.builder.add_item([1])
    with pytest.raises(OverflowError):
        pair.builder.add_item([2, 70000])
    pair.builder.add_item([3])
    pair.builder.end_document()
    assert pair.tokens() == [[1], [3]]


def test_an_eod_token_out_of_range_is_named_before_any_row_is_added(pair):
    with pytest.raises(TokenRangeError, match="token id 65536 in document 0 does not fit uint16"):
        pair.builder.add_documents([[1]], eod_token=65536)
    assert state_of(pair) == (0, 0, b"")


@pytest.mark.parametrize("token", [2**63, 2**64 - 1])
def test_large_unsigned_tokens_do_not_wrap_into_int64(tmp_path, token):
    pair = Pair(tmp_path, np.int64)
    row = np.array([token], dtype=np.uint64)
    for eod in (None, 1):
        with pytest.raises(TokenRangeError, match=f"token id {token} in document 0 does not fit int64"):
            pair.builder.add_documents([row], eod_token=eod)
    assert state_of(pair) == (0, 0, b"")


WRONG_TOKENS = [[1.5], [1.0, 2], ["a"], "abc", None, [None], np.array([0.5]), np.array([True]), [[1, 2], [3]], {"a": 1}]


@pytest.mark.parametrize("tokens", WRONG_TOKENS, ids=repr)
@pytest.mark.parametrize("way", ["add_item", "add_documents"])
def test_tokens_that_are_not_integers_are_refused(pair, tokens, way):
    add = pair.builder.add_item if way == "add_item" else lambda row: pair.builder.add_documents([row])
    with pytest.raises((ConfigError, ValueError), match=r"tokens must be integers for dtype uint16, got|inhomogeneous"):
        add(tokens)
    assert state_of(pair) == (0, 0, b"")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float_dtypes_take_numbers(tmp_path, dtype):
    pair = Pair(tmp_path, dtype)
    pair.builder.add_item([0.5, 1])
    pair.builder.add_item(np.array([1, 2], dtype=np.int16))
    pair.builder.add_document(np.array([0.25, -1.5], dtype=np.float64), [1, 1])
    pair.builder.add_documents([[0.75], [3]], eod_token=2)
    pair.builder.append_block(np.array([1.25], dtype=np.float32), np.array([1], dtype=np.int32))
    assert pair.tokens() == [[0.5, 1], [1, 2], [0.25], [-1.5], [0.75, 2], [3, 2], [1.25]]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([1], "lengths add up to 1 tokens, but 2 were given"),
        ([1, 2], "lengths add up to 3 tokens, but 2 were given"),
        ([], "lengths add up to 0 tokens, but 2 were given"),
        ([3, -1], "a sequence of -1 tokens, expected 0 to 2147483647"),
        ([2**31, 2 - 2**31], "a sequence of 2147483648 tokens, expected 0 to 2147483647"),
        ([2**70], "a length or mode is out of range"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(pair, lengths, message):
    with pytest.raises(ValueError, match=message):
        pair.builder.add_document([1, 2], lengths)
    assert state_of(pair) == (0, 0, b"")


@pytest.mark.parametrize("lengths", [None, 2, [1.0, 1.0], ["2"], "2"])
def test_lengths_that_are_not_integers_are_refused(pair, lengths):
    with pytest.raises(TypeError):
        pair.builder.add_document([1, 2], lengths)
    assert state_of(pair) == (0, 0, b"")


@pytest.mark.parametrize("lengths", [(1, 2), np.array([1, 2]), np.array([1, 2], dtype=np.uint8), range(1, 3)])
def test_lengths_of_every_type_arrive(pair, lengths):
    pair.builder.add_document([1, 2, 3], lengths)
    assert pair.tokens() == [[1], [2, 3]]


@pytest.mark.parametrize(
    ("modes", "message"),
    [
        ([1], "1 modes for 2 sequences"),
        ([1, 2, 3], "3 modes for 2 sequences"),
        ([1, 128], "mode 128 does not fit int8"),
        ([1, -129], "mode -129 does not fit int8"),
    ],
)
def test_modes_that_do_not_fit_are_refused(tmp_path, modes, message):
    pair = Pair(tmp_path, multimodal=True)
    with pytest.raises(ValueError, match=message):
        pair.builder.add_document([1, 2], [1, 1], modes)
    assert state_of(pair) == (0, 0, b"")


def test_jagged_batches_need_a_mode_per_row(tmp_path):
    pair = Pair(tmp_path, multimodal=True)
    with pytest.raises(ConfigError, match="1 modes for 2 rows"):
        pair.builder.add_documents([[1], [2]], modes=[1])
    assert state_of(pair) == (0, 0, b"")


def test_jagged_batches_may_be_generated(pair):
    pair.builder.add_documents(([token] * token for token in range(4)), eod_token=9, chunk_size=2)
    assert pair.tokens() == [[9], [1, 9], [2, 2, 9], [3, 3, 3, 9]]


def test_jagged_batches_need_a_chunk_size_from_one_on(pair):
    with pytest.raises(ConfigError, match="chunk_size must be at least 1, got 0"):
        pair.builder.add_documents([[1]], chunk_size=0)


INT32 = np.int32


@pytest.mark.parametrize(
    ("lengths", "ends", "message"),
    [
        ([2], None, "lengths add up to 2 tokens, but 3 were given"),
        ([4, -1], None, r"lengths must be in \[0, 2147483647\], got -1 to 4"),
        ([1, 2], [], "document_ends must rise to 2, the number of sequences"),
        ([1, 2], [1], "document_ends must rise to 2"),
        ([1, 2], [3], "document_ends must rise to 2"),
        ([1, 2], [2, 1, 2], "document_ends must rise to 2"),
        ([1, 2], [-1, 2], "document_ends must rise to 2"),
    ],
)
def test_blocks_that_do_not_fit_together_are_refused(pair, lengths, ends, message):
    document_ends = None if ends is None else np.array(ends, dtype=np.int64)
    with pytest.raises(ValueError, match=message):
        pair.builder.append_block(np.array([1, 2, 3]), np.array(lengths, dtype=INT32), document_ends=document_ends)
    assert state_of(pair) == (0, 0, b"")


def test_a_block_whose_lengths_wrap_is_refused(pair):
    with pytest.raises(ValueError, match=r"lengths must be in \[0, 2147483647\], got 4294967297 to 4294967297"):
        pair.builder.append_block(np.array([1]), np.array([2**32 + 1]))


def test_a_block_needs_a_mode_per_sequence(tmp_path):
    pair = Pair(tmp_path, multimodal=True)
    with pytest.raises(ValueError, match="modes must be as many as lengths"):
        pair.builder.append_block(np.array([1]), np.array([1], dtype=INT32), modes=np.zeros(2, np.int8))
    assert state_of(pair) == (0, 0, b"")


def test_blocks_without_sequences(pair):
    nothing = np.empty(0, dtype=np.int64)
    pair.builder.append_block(nothing, nothing.astype(INT32))
    pair.builder.append_block(nothing, nothing.astype(INT32), document_ends=nothing)
    assert pair.builder.num_documents == 0
    pair.builder.append_block(nothing, nothing.astype(INT32), document_ends=np.array([0, 0]))
    assert pair.builder.num_documents == 2
    with pytest.raises(ValueError, match="document_ends must rise to 0"):
        pair.builder.append_block(nothing, nothing.astype(INT32), document_ends=np.array([1]))


def test_nothing_has_a_final_name_before_finalize(pair, tmp_path):
    pair.builder.add_documents([[1, 2]] * 1000)
    assert os.listdir(tmp_path) == [".corpus.idx.lock"]
    pair.finish()
    assert sorted(os.listdir(tmp_path)) == ["corpus.bin", "corpus.idx"]


def test_leaving_a_with_block_without_finalize_removes_everything(tmp_path):
    with IndexedDatasetBuilder(tmp_path / "corpus.bin") as builder:
        builder.add_item([1])
    assert os.listdir(tmp_path) == []


def test_an_exception_removes_everything_and_leaves_the_old_pair(tmp_path):
    prefix = write_pair(tmp_path / "corpus", [[[1]]])
    before = pair_bytes(prefix)
    with pytest.raises(TokenRangeError), IndexedDatasetBuilder(f"{prefix}.bin") as builder:
        builder.add_item([2**40])
    assert sorted(os.listdir(tmp_path)) == ["corpus.bin", "corpus.idx"]
    assert pair_bytes(prefix) == before


def test_a_forgotten_builder_removes_everything(pair, tmp_path):
    pair.builder.add_item([1])
    del pair.builder
    assert os.listdir(tmp_path) == []


def test_abort_is_harmless_after_finalize(pair, tmp_path):
    pair.finish()
    pair.builder.abort()
    assert sorted(os.listdir(tmp_path)) == ["corpus.bin", "corpus.idx"]


CALLS = {
    "finalize": lambda pair: pair.finish(),
    "add_item": lambda pair: pair.builder.add_item([1]),
    "add_document": lambda pair: pair.builder.add_document([1], [1]),
    "add_documents": lambda pair: pair.builder.add_documents([[1]]),
    "add_documents of nothing": lambda pair: pair.builder.add_documents([]),
    "append_block": lambda pair: pair.builder.append_block(np.array([1]), np.array([1], dtype=INT32)),
    "end_document": lambda pair: pair.builder.end_document(),
    "add_index": lambda pair: pair.builder.add_index(pair.prefix),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("end", ["finish", "abort"])
def test_nothing_can_be_added_afterwards(pair, call, end):
    pair.finish() if end == "finish" else pair.builder.abort()
    with pytest.raises(StorageError) as caught:
        call(pair)
    assert caught.value.message == f"the builder of `{pair.prefix}.bin` was already finalized or aborted"


def test_finalize_replaces_an_older_pair(tmp_path):
    prefix = write_pair(tmp_path / "corpus", [[[1, 2, 3]]])
    write_pair(prefix, [[[4]]])
    assert read_pair(prefix) == [[[4]]]


def test_a_failed_finalize_leaves_no_new_file_and_the_old_pair(tmp_path):
    prefix = write_pair(tmp_path / "corpus", [[[1, 2, 3]]])
    builder = IndexedDatasetBuilder(f"{prefix}.bin")
    builder.add_document([4], [1])
    with pytest.raises(StorageError, match=r"cannot create `.*absent/corpus.idx`: No such file or directory"):
        builder.finalize(tmp_path / "absent" / "corpus.idx")
    assert sorted(os.listdir(tmp_path)) == ["corpus.bin", "corpus.idx"]
    assert read_pair(prefix) == [[[1, 2, 3]]]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"cannot create `.*absent/corpus\.bin`: No such file"):
        IndexedDatasetBuilder(tmp_path / "absent" / "corpus.bin")


FULL_DISK = """
import os, resource, signal, sys
import numpy as np
from tokenloom import IndexedDatasetBuilder
from tokenloom.errors import StorageError

way, folder = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
builder = IndexedDatasetBuilder(f"{folder}/corpus.bin")
block = np.arange(1 << 20, dtype=np.int32)
try:
    for _ in range(4):
        if way == "block":
            builder.append_block(block, np.array([len(block)], dtype=np.int32))
        elif way == "item":
            builder.add_item(block)
        else:
            builder.add_index(f"{folder}/source")
    builder.finalize(f"{folder}/corpus.idx")
except StorageError as error:
    print(error.message)
try:
    builder.finalize(f"{folder}/corpus.idx")
except StorageError as error:
    print(error.message)
"""


@pytest.mark.parametrize("way", ["block", "item", "index"])
def test_when_bytes_cannot_be_written_the_builder_gives_up_as_a_whole(tmp_path, way):
    write_pair(tmp_path / "source", [[list(range(1 << 19))]])
    command = [sys.executable, "-c", FULL_DISK, way, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.endswith(": File too large")
    assert second.endswith("corpus.bin` was already finalized or aborted")
    assert sorted(os.listdir(tmp_path)) == ["source.bin", "source.idx"]


def test_memory_grows_by_bytes_not_by_objects(tmp_path):
    pair = Pair(tmp_path)
    row = np.array([1, 2, 3], dtype=np.uint16)
    pair.builder.add_document(row, (3,))
    gc.collect()
    objects_before = len(gc.get_objects())
    tracemalloc.start()
    for _ in range(200_000):
        pair.builder.add_document(row, (3,))
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    gc.collect()
    assert grown < 10_000  # Python's heap; the records are in the extension
    assert len(gc.get_objects()) - objects_before < 100
    assert pair.builder.num_documents == 200_001


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


@given(data=st.data(), dtype=st.sampled_from(INTEGER_DTYPES), mmap=st.booleans())
def test_what_was_written_is_read(tmp_path_factory, data, dtype, mmap):
    corpus = data.draw(corpora(dtype))
    prefix = write_pair(tmp_path_factory.mktemp("pair") / "corpus", corpus, dtype=dtype)
    assert read_pair(prefix, mmap=mmap) == corpus


@given(
    corpus=corpora(np.uint16), ways=st.lists(st.sampled_from(["items", "document", "block"]), min_size=6, max_size=6)
)
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
            ends = np.array([len(lengths)], dtype=np.int64)
            block = np.array(tokens, dtype=np.int64), np.array(lengths, dtype=INT32)
            pair.builder.append_block(*block, document_ends=ends)
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


def test_a_dtype_without_size_is_refused_and_not_a_crash(tmp_path):
    builder = IndexedDatasetBuilder(tmp_path / "a.bin", dtype=np.uint16)
    with pytest.raises(ConfigError, match="tokens must be integers"):
        builder.add_document(np.zeros(3, dtype=np.dtype([])), [3])


@pytest.mark.parametrize("where", ["tokens", "lengths"])
def test_a_list_that_changes_while_it_is_read_is_refused_and_not_a_crash(tmp_path, where):
    class Clears:
        def __index__(self):
            items.clear()
            return 1

    items = [Clears() for _ in range(50)]
    builder = IndexedDatasetBuilder(tmp_path / "a.bin", dtype=np.uint16)
    with pytest.raises((ConfigError, ValueError)):
        builder.add_document(*((items, [50]) if where == "tokens" else ([1, 2], items)))
    assert (builder.num_documents, builder.num_sequences) == (0, 0)


def test_lengths_that_are_no_sequence_are_named(tmp_path):
    builder = IndexedDatasetBuilder(tmp_path / "a.bin", dtype=np.uint16)
    with pytest.raises(TypeError, match="lengths must be a sequence of integers"):
        builder.add_document([1], None)
