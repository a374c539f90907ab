"""The kernels of orders, compared with their readable references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.reference import shuffle, windows

from tokenloom.kernels.order import LegacyRandom, build_sample_index

SHUFFLED_DTYPES = [np.int32, np.uint32, np.int64]
SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 65535, 65536, 65537]


@given(
    seed=st.integers(0, 2**32 - 1) | st.sampled_from([0, 2**31, 2**32 - 1]),
    calls=st.lists(st.tuples(st.integers(0, 3000), st.sampled_from(SHUFFLED_DTYPES)), max_size=6),
)
@example(seed=57, calls=[(size, dtype) for size in SIZES for dtype in SHUFFLED_DTYPES])
def test_several_shuffles_of_one_generator_equal_numpy(seed, calls):
    random, reference = LegacyRandom(seed), np.random.RandomState(seed)
    for size, dtype in calls:
        ours, theirs = np.arange(size, dtype=dtype), np.arange(size, dtype=dtype)
        random.shuffle(ours)
        reference.shuffle(theirs)
        assert np.array_equal(ours, theirs)


def sample_index(lengths, document_index, **settings):
    arrays = (np.array(values, dtype=np.int32) for values in (lengths, document_index))
    return build_sample_index(*arrays, dtype=np.int32, **settings)


def test_a_long_sample_index_equals_its_twin(rng):
    lengths = rng.integers(0, 30, size=5000)
    document_index = rng.integers(0, 5000, size=20_000)  # several blocks of the kernel
    settings = {"window_length": 17, "extra": 1, "num_windows": int(lengths[document_index].sum() - 1) // 17}
    index = sample_index(lengths, document_index, **settings)
    expected = windows.build_sample_index(lengths.tolist(), document_index.tolist(), **settings)
    assert index.tolist() == [list(row) for row in expected]


def shuffle_windows(random, lengths, parts, *, documents=np.int32, dtype=np.int32, num_windows=None, **settings):
    """Shuffles the documents of every part; returns the stream and its windows."""
    stream = np.concatenate([np.array(part, dtype=documents) for part in parts])
    counts = np.array([[len(part), int(lengths[part].sum())] for part in parts], dtype=np.int64)
    if num_windows is None:
        num_windows = max(0, int(counts[:, 1].sum()) - settings["extra"]) // settings["window_length"]
    windows = random.shuffle_windows(
        stream, lengths, parts=counts, dtype=np.dtype(dtype), num_windows=num_windows, **settings
    )
    return stream, windows


@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(0, 12) | st.just(0), min_size=1, max_size=12),
    repeats=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    window_length=st.integers(1, 15),
    extra=st.integers(0, 1),
    keep_partial=st.booleans(),
    dtype=st.sampled_from([np.int32, np.int64]),
    documents=st.sampled_from([np.int32, np.int64]),
)
def test_shuffling_with_windows_equals_one_after_the_other(
    seed, lengths, repeats, window_length, extra, keep_partial, dtype, documents
):
    lengths = np.array(lengths, dtype=np.int32)
    parts = [np.tile(np.arange(len(lengths)), times) for times in repeats]
    num_tokens = max(0, sum(repeats) * int(lengths.sum()) - extra)
    settings = {"window_length": window_length, "extra": extra}
    settings["num_windows"] = -(-num_tokens // window_length) if keep_partial else num_tokens // window_length
    random, reference = LegacyRandom(seed), np.random.RandomState(seed)
    stream, index = shuffle_windows(random, lengths, parts, documents=documents, dtype=dtype, **settings)
    for part in parts:
        shuffle.legacy_shuffle(part, reference)
    expected = np.concatenate(parts)
    assert stream.tolist() == expected.tolist()
    assert index.dtype == dtype
    assert index.tolist() == [list(row) for row in windows.build_sample_index(lengths, expected, **settings)]
    rest = np.arange(50)
    random.shuffle(rest)
    assert rest.tolist() == reference.permutation(50).tolist()  # the generator is in the same state


@pytest.mark.parametrize("extra", [0, 1])
def test_a_thread_finds_the_windows_of_a_long_stream(seed, rng, extra):
    lengths = rng.integers(0, 30, size=200_000, dtype=np.int32)  # many blocks, enough for a thread
    parts = [np.tile(np.arange(len(lengths)), 2), np.arange(len(lengths))]
    stream, index = shuffle_windows(LegacyRandom(seed), lengths, parts, window_length=17, extra=extra)
    reference = np.random.RandomState(seed)
    for part in parts:
        reference.shuffle(part)
    assert np.array_equal(stream, np.concatenate(parts))
    settings = {"window_length": 17, "extra": extra, "num_windows": len(index) - 1}
    assert np.array_equal(index, sample_index(lengths, stream, **settings))


@pytest.mark.parametrize("size", [5, 200_000])
@pytest.mark.parametrize(
    ("first", "missing", "tokens", "num_windows", "message"),
    [
        (0, 0, 7, 1, "expected documents 0 to {size} of the stream to hold 7 tokens, found {tokens}"),
        (1, 0, None, 1, "document index holds sequence {size}, but there are {size}"),
        (0, 0, None, None, "the documents hold {tokens} tokens, too few for {size} windows"),
        (0, 1, 7, 1, "parts must make up the stream"),
    ],
)
def test_a_stream_of_other_lengths_than_said_is_refused(size, first, missing, tokens, num_windows, message):
    lengths, stream = np.full(size, 3, dtype=np.int32), np.arange(first, first + size)
    parts = np.array([[size - missing, 3 * size if tokens is None else tokens]])
    settings = {"window_length": 4, "extra": 1, "num_windows": num_windows or size, "dtype": np.dtype(np.int32)}
    with pytest.raises((IndexError, ValueError), match=message.format(size=size, tokens=3 * size)):
        LegacyRandom(0).shuffle_windows(stream, lengths, parts=parts, **settings)


@pytest.mark.parametrize(
    ("lengths", "documents", "num_windows", "message"),
    [
        *(([3, 3], [0, wrong], 1, f"document index holds sequence {wrong}, but") for wrong in (2, -1, 2**31 - 1)),
        ([3, 3], [0, 1], 3, "the documents hold 6 tokens, too few for 3 windows"),
        ([], [], 1, "the documents hold 0 tokens, too few for 1 windows"),
    ],
)
def test_wrong_streams_are_refused(lengths, documents, num_windows, message):
    with pytest.raises(IndexError, match=message):
        sample_index(lengths, documents, window_length=4, extra=0, num_windows=num_windows)
    assert sample_index([], [], window_length=4, extra=1, num_windows=0).tolist() == [[0, 0]]
