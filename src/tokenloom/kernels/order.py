"""Kernels of stored orders: the reference's shuffles, windows and blends."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native

Int64s = NDArray[np.int64]
_SAMPLES_PER_THREAD = 1 << 19
_WARM_UP = 1 << 15  # steps after which a thread has exact counts; fewer than 4096 are nearly always enough


class LegacyRandom:
    """A random generator that shuffles exactly like `numpy.random.RandomState(seed)`, several times faster.

    Not thread-safe: the result depends on the order of calls.
    """

    def __init__(self, seed: int) -> None:
        if not 0 <= seed < 2**32:  # the range of RandomState
            raise ValueError(f"seed must be in [0, 2**32), got {seed!r}")
        self._generator = _native.Mt19937(seed)

    def shuffle(self, values: NDArray[Any]) -> None:
        """Shuffles a one-dimensional int32, uint32 or int64 array in place."""
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
        """Shuffles the parts of a document stream in place; returns its windows as `build_sample_index` does.

        A second thread finds the windows during the shuffle, so this takes little longer than the shuffle alone.

        Args:
            stream: int32 or int64[num_documents], indices into `lengths`.
            lengths: int32[num_sequences], tokens per sequence.
            parts: int64[num_parts, 2], number of documents and number of tokens of each part to shuffle separately.
            window_length, extra, num_windows, dtype: see `build_sample_index`.

        Raises:
            IndexError: see `build_sample_index`; or a part has a wrong number of tokens.
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
    """Returns the starts of all windows and the end of the last one: dtype[num_windows + 1, 2].

    A row is (position in `document_index`, token offset in that document). A window starts `extra` tokens before the
    end of the previous window; its row has the document of the previous window's last token. If the last window is
    partial, the last row is (last document, length of the last document - extra). O(documents + windows).

    Args:
        lengths: int32[num_sequences], tokens per sequence.
        document_index: the concatenated documents, as indices into `lengths`.
        window_length: distance between the starts of windows, in tokens.
        extra: tokens that a window reads beyond `window_length`, 0 or 1.
        num_windows: number of windows; the last one may be partial.
        dtype: dtype of the result.

    Raises:
        IndexError: `document_index` has a sequence that does not exist, or the documents have too few tokens.
    """
    index: NDArray[Any] = np.empty((num_windows + 1, 2), dtype=dtype)
    arrays = np.ascontiguousarray(lengths), np.ascontiguousarray(document_index)
    _native.build_sample_index(*arrays, window_length, extra, index)
    return index


def build_blending_indices(
    weights: NDArray[np.float64], *, size: int, sizes: Int64s | None = None
) -> tuple[NDArray[Any], Int64s]:
    """Returns, for each sample of a blend, the index of its dataset and its sample number within that dataset.

    Step s takes the dataset with the largest `weight * max(s, 1) - samples_so_far`, in float64 without fused
    multiply-add, and on ties the lowest index. Takes about 3 ns per sample for two datasets and 100 ns for thousands,
    divided by the number of cores.

    Args:
        weights: float64[num_datasets], with a sum of 1.
        size: number of samples.
        sizes: int64[num_datasets], maximum samples of each dataset, with a sum of `size`; None for no limits.

    Returns:
        dataset_index: int16[size]; int32[size] for 32,768 datasets or more.
        sample_index: int64[size].
    """
    wide = len(weights) > np.iinfo(np.int16).max
    dataset_index: NDArray[Any] = np.empty(size, dtype=np.int32 if wide else np.int16)
    sample_index = np.empty(size, dtype=np.int64)
    _native.build_blending_indices(weights, sizes, dataset_index, sample_index, _num_threads(size), _WARM_UP)
    return dataset_index, sample_index


def blending_counts(weights: NDArray[np.float64], size: int) -> Int64s:
    """Returns the number of samples of each dataset, int64[num_datasets], in a weighted blend of `size` samples."""
    counts = np.zeros(len(weights), dtype=np.int64)
    _native.blending_counts(weights, size, counts, _num_threads(size), _WARM_UP)
    return counts


def _num_threads(size: int) -> int:
    return max(1, min(len(os.sched_getaffinity(0)), size // _SAMPLES_PER_THREAD))
