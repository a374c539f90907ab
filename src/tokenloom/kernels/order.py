"""Kernels of the stored orders: shuffles, windows, and blends."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.kernels.arrays import Int64s

_SAMPLES_PER_THREAD = 1 << 19
_WARM_UP = 1 << 15  # steps of a thread from guessed to exact counts; nearly always below 4096


class LegacyRandom:
    """The shuffles of `numpy.random.RandomState(seed)`, bit for bit, several times faster.

    Not safe from several threads: the order of the calls is part of the result.
    """

    def __init__(self, seed: int) -> None:
        if not 0 <= seed < 2**32:  # RandomState has the same bound
            raise ValueError(f"seed must be in [0, 2**32), got {seed!r}")
        self._generator = _native.Mt19937(seed)

    def shuffle(self, values: NDArray[Any]) -> None:
        """Shuffles an int32, uint32 or int64 array of one axis in place."""
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
        """Shuffles a stream of documents in place, part by part, and returns its `build_sample_index`.

        A thread finds the windows behind the shuffle, so this takes little more than the shuffle alone.

        Args:
            stream: rows of `lengths`, int32 or int64.
            lengths: int32[num_sequences], tokens per sequence.
            parts: int64[num_parts, 2], documents and tokens of each part that is shuffled by itself.
            window_length, extra, num_windows, dtype: see `build_sample_index`.

        Raises:
            IndexError: see `build_sample_index`; or a part has another number of tokens.
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

    A row is (position in `document_index`, token offset in that document). The next window starts in the document of
    the last token read, `extra` tokens back. A kept partial window ends the index with (last document, its length -
    extra). O(documents + windows).

    Args:
        lengths: int32[num_sequences], tokens per sequence.
        document_index: the stream, as rows of `lengths`.
        window_length: tokens from one window's start to the next.
        extra: tokens read beyond that, 0 or 1.
        num_windows: number of windows; the last may be partial.
        dtype: dtype of the result.

    Raises:
        IndexError: the document index names a sequence that does not exist, or the stream is too short.
    """
    index: NDArray[Any] = np.empty((num_windows + 1, 2), dtype=dtype)
    arrays = np.ascontiguousarray(lengths), np.ascontiguousarray(document_index)
    _native.build_sample_index(*arrays, window_length, extra, index)
    return index


def build_blending_indices(
    weights: NDArray[np.float64], *, size: int, sizes: Int64s | None = None
) -> tuple[NDArray[Any], Int64s]:
    """Returns the dataset of each sample of a blend, and the number of its samples before.

    At step s the dataset with the largest `weight * max(s, 1) - given`, in float64 without fused multiply-add, is next;
    the lowest number on ties. About 3 ns per sample for two datasets, 100 for thousands, shared by all cores.

    Args:
        weights: float64[num_datasets], adding up to 1.
        size: number of samples.
        sizes: int64[num_datasets], most samples of each dataset, adding up to `size`; None without bounds.

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
    """Returns the samples of each dataset in the first `size` of a weighted blend: int64[num_datasets]."""
    counts = np.zeros(len(weights), dtype=np.int64)
    _native.blending_counts(weights, size, counts, _num_threads(size), _WARM_UP)
    return counts


def _num_threads(size: int) -> int:
    return max(1, min(len(os.sched_getaffinity(0)), size // _SAMPLES_PER_THREAD))
