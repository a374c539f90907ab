"""The compiled kernels, with their arguments checked and their errors worded. The only importer of `_native`.

All of them release the GIL while they work. Arrays are C-contiguous; a wrong dtype or shape is our own bug and shows
as a `TypeError` or `ValueError` of the extension.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom._native import GptFiller, RecordBuilder, WindowReader

__all__ = [
    "GptFiller",
    "LegacyRandom",
    "RecordBuilder",
    "WindowReader",
    "blending_counts",
    "build_blending_indices",
    "build_sample_index",
    "gather_spans",
    "map_file",
]

Int64s = NDArray[np.int64]


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

    A row is (position in `document_index`, token offset in that document). One pass, O(documents + windows).

    Args:
        lengths: int32[num_sequences], tokens per sequence.
        document_index: the stream, as rows of `lengths`.
        window_length: tokens from one window's start to the next.
        extra: tokens that a window reads beyond its length, 0 or 1.
        num_windows: how many; the last may be partial.
        dtype: of the result.

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


def map_file(path: str) -> NDArray[np.uint8]:
    """Returns a read-only view of a whole file, uint8[size], without keeping the file open; one open and one stat.

    The mapping lives as long as any view of it.

    Raises:
        OSError: the file cannot be opened or mapped.
    """
    return _native.map_file(os.fsencode(path))


def build_blending_indices(
    weights: NDArray[np.float64], *, size: int, sizes: Int64s | None = None
) -> tuple[NDArray[Any], Int64s]:
    """Returns which dataset each sample of a blend comes from, and how many that dataset gave before.

    At step s the dataset with the largest `weight * max(s, 1) - given`, in float64 without fused multiply-add, comes
    next; the lowest number on ties. About 10 ns per sample for two datasets, 100 for thousands, shared by all cores.

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
    _native.build_blending_indices(weights, sizes, dataset_index, sample_index, _blend_threads(size), _BLEND_WARM_UP)
    return dataset_index, sample_index


def blending_counts(weights: NDArray[np.float64], size: int) -> Int64s:
    """Returns how many of the first `size` samples of a weighted blend each dataset gives: int64[num_datasets]."""
    counts = np.zeros(len(weights), dtype=np.int64)
    _native.blending_counts(weights, size, counts, _blend_threads(size), _BLEND_WARM_UP)
    return counts


def _blend_threads(size: int) -> int:
    """Returns how many threads share a blend: as many as there are cores, as long as each has enough to do."""
    return max(1, min(len(os.sched_getaffinity(0)), size // _BLEND_SAMPLES_PER_THREAD))


_BLEND_SAMPLES_PER_THREAD = 1 << 19
_BLEND_WARM_UP = 1 << 15
"""Steps a thread takes before its own, to get from guessed to exact counts; measured: nearly always below 4096."""


def gather_spans(
    data: NDArray[np.uint8],
    pointers: Int64s,
    *,
    dtype_code: int,
    sequences: Int64s,
    starts: Int64s,
    lengths: Int64s,
    out: NDArray[np.generic],
) -> None:
    """Copies the tokens of the spans, back to back, from mapped bytes into `out`."""
    _native.gather_spans(data, pointers, dtype_code, sequences, starts, lengths, out)
