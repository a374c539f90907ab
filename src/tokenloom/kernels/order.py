"""Kernels of the orders: shuffles, windows, and the samples of masked datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.kernels.arrays import Int64s


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
