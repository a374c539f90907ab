"""Fixed-length windows over a stream of documents: their number, and their spans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import SpanReader
from tokenloom.storage.local import spread_evenly

_INT32_MAX = np.iinfo(np.int32).max
_CHECKED_SAMPLES = 32  # each may cost a page fault on a cold cache


def num_windows(num_tokens: int, window_length: int, *, extra: int, keep_partial: bool) -> int:
    """Returns the number of windows of a stream, exact. (The reference counts partial windows in 32-bit float.)

    Args:
        num_tokens: tokens of the stream.
        window_length: tokens from one window's start to the next.
        extra: tokens read beyond that, 0 or 1.
        keep_partial: whether a last, incomplete window counts.
    """
    usable = max(num_tokens - extra, 0)
    return -(-usable // window_length) if keep_partial else usable // window_length


def sample_index_dtype(num_documents: int) -> np.dtype[Any]:
    """Returns the dtype of a sample index over that many stream entries."""
    return np.dtype(np.int32 if num_documents <= _INT32_MAX else np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """The pieces of documents of a sample, in order; none is empty.

    Attributes:
        documents: int64[num_spans], the row in the `.idx` file (a sequence of the format; a document of GPT data).
        starts: int64[num_spans], the first token, from the document's start.
        lengths: int64[num_spans], number of tokens.
    """

    documents: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def stops(self) -> NDArray[np.int64]:
        """int64[num_spans], one past the last token."""
        return self.starts + self.lengths

    @property
    def num_tokens(self) -> int:
        """Tokens of all spans."""
        return int(self.lengths.sum())

    @property
    def boundaries(self) -> NDArray[np.int64]:
        """int64[num_spans + 1], the start of each span in the sample, and the end."""
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.lengths)])


@dataclass(frozen=True, slots=True, eq=False)
class SpanBatch:
    """The spans of several samples: sample i owns rows [row_offsets[i], row_offsets[i + 1])."""

    documents: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    row_offsets: NDArray[np.int64]

    def __getitem__(self, row: int) -> Spans:
        """Returns the spans of one sample; views."""
        begin, end = int(self.row_offsets[row]), int(self.row_offsets[row + 1])
        return Spans(self.documents[begin:end], self.starts[begin:end], self.lengths[begin:end])

    def __iter__(self) -> Iterator[Spans]:
        return (self[row] for row in range(len(self)))

    def __len__(self) -> int:
        return len(self.row_offsets) - 1


def span_misfit(reader: SpanReader, num_samples: int) -> str | None:
    """Returns why indices do not fit their data, or None, from a few samples, O(1).

    The reader checks that a window's documents have exactly its tokens, and a pack's no more than its capacity; for
    replaced data, that fails for nearly every sample.
    """
    samples = spread_evenly(num_samples, _CHECKED_SAMPLES)
    try:
        reader.spans(samples, keep_empty=False)
    except IndexError as error:
        return str(error)
    return None
