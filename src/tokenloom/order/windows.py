"""Windows of fixed length over concatenated documents: their number, and the spans of documents in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import SpanReader
from tokenloom.storage.local import spread_evenly

_INT32_MAX = np.iinfo(np.int32).max
_CHECKED_SAMPLES = 32  # each check may cost a page fault on a cold cache


def num_windows(num_tokens: int, window_length: int, *, extra: int, keep_partial: bool) -> int:
    """Returns the exact number of windows over `num_tokens` tokens; the reference rounds to float32 if `keep_partial`.

    Windows start every `window_length` tokens and read `extra` more (0 or 1). `keep_partial` adds a partial window.
    """
    usable = max(num_tokens - extra, 0)
    return -(-usable // window_length) if keep_partial else usable // window_length


def sample_index_dtype(num_documents: int) -> np.dtype[Any]:
    """Returns the dtype of a sample index (starts of windows) over a document index of length `num_documents`."""
    return np.dtype(np.int32 if num_documents <= _INT32_MAX else np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """The spans of one sample in reading order, without empty spans.

    Attributes:
        documents: int64[num_spans], index of each span's sequence in the `.idx` file; in GPT data, of its document.
        starts: int64[num_spans], offset of each span's first token in its sequence.
        lengths: int64[num_spans], number of tokens of each span.
    """

    documents: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def stops(self) -> NDArray[np.int64]:
        """int64[num_spans], end of each span: the offset of its last token in its sequence, plus 1."""
        return self.starts + self.lengths

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all spans."""
        return int(self.lengths.sum())

    @property
    def boundaries(self) -> NDArray[np.int64]:
        """int64[num_spans + 1]; span i has tokens [boundaries[i], boundaries[i + 1]) of the sample."""
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.lengths)])


@dataclass(frozen=True, slots=True, eq=False)
class SpanBatch:
    """The spans of several samples; sample i has spans [row_offsets[i], row_offsets[i + 1])."""

    documents: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    row_offsets: NDArray[np.int64]

    def __getitem__(self, row: int) -> Spans:
        """Returns the spans of one sample, as views."""
        begin, end = int(self.row_offsets[row]), int(self.row_offsets[row + 1])
        return Spans(self.documents[begin:end], self.starts[begin:end], self.lengths[begin:end])

    def __iter__(self) -> Iterator[Spans]:
        return (self[row] for row in range(len(self)))

    def __len__(self) -> int:
        return len(self.row_offsets) - 1


def span_mismatch(reader: SpanReader, num_samples: int) -> str | None:
    """Returns why indices do not match their data, or None if a few checked samples match; O(1).

    The reader checks that a window has the right number of tokens, and that no pack has more tokens than its capacity.
    If the data were replaced, nearly every sample would fail this check.
    """
    samples = spread_evenly(num_samples, _CHECKED_SAMPLES)
    try:
        reader.spans(samples, keep_empty=False)
    except IndexError as error:
        return str(error)
    return None
