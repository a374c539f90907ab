"""Kernels of the stored orders: shuffles, windows, and which dataset of a blend each sample comes from."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.kernels.arrays import Int64s

_SAMPLES_PER_THREAD = 1 << 19
_WARM_UP = 1 << 15
"""Steps a thread takes before its own, to get from guessed to exact counts; measured: nearly always below 4096."""


class LegacyRandom:
    """The shuffles of `numpy.random.RandomState(seed)`, bit for bit, several times faster.

    Not safe from several threads: the order of the calls is part of the result.
    """

    def __init__(self, seed: int) -> None:
        if not 0 <= seed < 2**32:  # RandomState has the same bound
            message = f"seed must be in [0, 2**32), got {seed!r}"
            raise ValueError(message)
        self._generator = _native.Mt19937(seed)

    def shuffle(self, values: NDArray[Any]) -> None:
        """Shuffles an int32, uint32 or int64 array of one axis in place; one draw per element, memory O(1)."""
        self._generator.shuffle(values)

    def shuffle_windows(
        self,
        stream: NDArray[Any],
        lengths: NDArray[np.int32],
        *,
        parts: Int64s,
        window_length: int,
        extra: int,
        num_windows: int,
        dtype: np.dtype[Any],
    ) -> NDArray[Any]:
        """Shuffles a stream of documents in place, part by part, and returns what `build_sample_index` returns of it.

        The same as one after the other, in little more than the time of the shuffle: it works from the back, and a
        thread finds the windows behind it.

        Args:
            stream: rows of `lengths`, int32 or int64.
            lengths: int32[num_sequences], tokens per sequence.
            parts: int64[num_parts, 2], documents and tokens of each part of the stream that is shuffled by itself.
            window_length, extra, num_windows, dtype: the same as for `build_sample_index`.

        Raises:
            IndexError: as of `build_sample_index`; or a part does not hold as many tokens as said.
        """
        index: NDArray[Any] = np.empty((num_windows + 1, 2), dtype=dtype)
        lengths = np.ascontiguousarray(lengths)
        _native.shuffle_windows(self._generator, stream, parts, lengths, window_length, extra, index)
        return index


def build_sample_index(
    lengths: NDArray[np.int32],
    document_index: NDArray[Any],
    *,
    window_length: int,
    extra: int,
    num_windows: int,
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    """Returns the starts of all windows and the end of the last: dtype[num_windows + 1, 2].

    A row is (position in `document_index`, token offset in that document). The next window starts in the document that
    holds the last token read, `extra` before the end of what was read. A kept partial window ends the index with
    (last document, its length - extra). One pass, O(documents + windows).

    Args:
        lengths: int32[num_sequences], tokens per sequence.
        document_index: the stream, as rows of `lengths`.
        window_length: tokens from one window's start to the next.
        extra: tokens that a window reads beyond its length, 0 or 1.
        num_windows: how many; the last may be partial.
        dtype: dtype of the result.

    Raises:
        IndexError: the document index names a sequence that does not exist, or the stream is too short.
    """
    index: NDArray[Any] = np.empty((num_windows + 1, 2), dtype=dtype)
    _native.build_sample_index(
        np.ascontiguousarray(lengths),
        np.ascontiguousarray(document_index),
        window_length,
        extra,
        index,
    )
    return index


def build_blending_indices(
    weights: NDArray[np.float64], *, size: int, sizes: Int64s | None = None
) -> tuple[NDArray[Any], Int64s]:
    """Returns which dataset each sample of a blend comes from, and how many that dataset gave before.

    At step s the dataset with the largest `weight * max(s, 1) - given`, in float64 without fused multiply-add, comes
    next; the lowest number on ties. About 3 ns per sample for two datasets, 10 for 16, 100 for thousands, shared by all
    cores.

    Args:
        weights: float64[num_datasets], adding up to 1.
        size: samples in all.
        sizes: int64[num_datasets], what each dataset gives at most; adding up to `size`. None: without bounds.

    Returns:
        dataset_index: int16[size], or int32 where numbers exceed int16.
        sample_index: int64[size].
    """
    wide = len(weights) > np.iinfo(np.int16).max
    dataset_index: NDArray[Any] = np.empty(size, dtype=np.int32 if wide else np.int16)
    sample_index = np.empty(size, dtype=np.int64)
    _native.build_blending_indices(weights, sizes, dataset_index, sample_index, _num_threads(size), _WARM_UP)
    return dataset_index, sample_index


def blending_counts(weights: NDArray[np.float64], size: int) -> Int64s:
    """Returns how many of the first `size` samples of a weighted blend each dataset gives: int64[num_datasets]."""
    counts = np.zeros(len(weights), dtype=np.int64)
    _native.blending_counts(weights, size, counts, _num_threads(size), _WARM_UP)
    return counts


def _num_threads(size: int) -> int:
    """Returns how many threads share a blend: as many as there are cores, as long as each has enough to do."""
    return max(1, min(len(os.sched_getaffinity(0)), size // _SAMPLES_PER_THREAD))
