"""How long documents are, counted from indices in bounded memory: of one pair, or of many together.

Lengths below 65,536 are counted one by one, longer ones in 64 steps of each power of two, so that percentiles are exact
up to there and within 1.6 % beyond. 10^7 documents take 0.12 s, and any number of them 1 MB of counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.dataset import IndexedDataset

Int64s = NDArray[np.int64]

_EXACT = 1 << 16
_STEPS = 64
_STEP_BITS = 6
_EXACT_BITS = 16
_NUM_BUCKETS = _EXACT + (63 - _EXACT_BITS) * _STEPS
_CHUNK = 1 << 20
"""Documents that are looked at together."""


@dataclass(slots=True, kw_only=True, eq=False)
class DocumentLengths:
    """How long documents are, counted.

    Attributes:
        num_documents, num_tokens: of all that was added.
        longest: tokens of the longest document, its number, and the number of the pair as it was added; None if none.
        shortest: the same of the shortest document that has tokens.
    """

    num_documents: int = 0
    num_tokens: int = 0
    longest: tuple[int, int, int] | None = None
    shortest: tuple[int, int, int] | None = None
    _num_pairs: int = 0
    _counts: Int64s = field(default_factory=lambda: np.zeros(_NUM_BUCKETS, dtype=np.int64))
    _tokens: Int64s = field(default_factory=lambda: np.zeros(_NUM_BUCKETS, dtype=np.int64))

    @classmethod
    def of(cls, datasets: Iterable[IndexedDataset]) -> DocumentLengths:
        """Returns the lengths of the documents of pairs.

        Raises:
            DatasetFormatError: an index is damaged: its lengths do not add up to its tokens.
        """
        found = cls()
        for dataset in datasets:
            found.add(dataset)
        return found

    def add(self, dataset: IndexedDataset) -> None:
        """Counts the documents of a pair too; one pass over its index.

        Raises:
            DatasetFormatError: the index is damaged: its lengths do not add up to its tokens.
        """
        lengths, boundaries = dataset.sequence_lengths, dataset.document_indices
        before = self.num_tokens
        for start in range(0, dataset.num_documents, _CHUNK):
            found = _document_lengths(lengths, boundaries[start : start + _CHUNK + 1])
            if int(found.min()) < 0:
                message = f"`{dataset.idx_path}`: expected lengths from 0 on, found {int(found.min())}"
                raise DatasetFormatError(message, hint="the index is damaged: `tokenloom verify` says where")
            self._add(found, first=start)
        if (tokens := self.num_tokens - before) != dataset.num_tokens:
            message = (
                f"`{dataset.idx_path}`: expected lengths that add up to {dataset.num_tokens} tokens, found {tokens}"
            )
            raise DatasetFormatError(message, hint="the index is damaged: `tokenloom verify` says where")
        self._num_pairs += 1

    def _add(self, lengths: Int64s, *, first: int) -> None:
        self.num_documents += len(lengths)
        self.num_tokens += int(lengths.sum())
        place = int(lengths.argmax())
        if self.longest is None or lengths[place] > self.longest[0]:
            self.longest = int(lengths[place]), first + place, self._num_pairs
        filled = np.where(lengths == 0, np.iinfo(np.int64).max, lengths)
        place = int(filled.argmin())
        if lengths[place] and (self.shortest is None or lengths[place] < self.shortest[0]):
            self.shortest = int(lengths[place]), first + place, self._num_pairs
        buckets = lengths
        if int(lengths.max()) >= _EXACT:
            is_long = lengths >= _EXACT
            buckets = lengths.copy()
            buckets[is_long] = _long_buckets(lengths[is_long])
            np.add.at(self._tokens, buckets[is_long], lengths[is_long])
        self._counts += np.bincount(buckets, minlength=_NUM_BUCKETS)

    @property
    def num_empty(self) -> int:
        """Documents without tokens."""
        return int(self._counts[0])

    @property
    def commonest(self) -> tuple[int, int]:
        """The length below 65,536 that most documents with tokens have, and how many; 0 documents if there is none."""
        length = 1 + int(self._counts[1:_EXACT].argmax())
        return length, int(self._counts[length])

    @property
    def mean(self) -> float:
        """Tokens of a document, on average; 0 if there are none."""
        return self.num_tokens / self.num_documents if self.num_documents else 0.0

    def percentiles(self, percents: Sequence[float]) -> list[int]:
        """Returns the lengths that so many percent of the documents do not exceed; none without documents."""
        if not self.num_documents:
            return []
        below = np.cumsum(self._counts)
        ranks = [min(int(np.ceil(percent / 100 * self.num_documents)), self.num_documents) for percent in percents]
        buckets = np.searchsorted(below, np.maximum(ranks, 1))
        return [min(int(_bucket_starts()[bucket]), self.longest[0] if self.longest else 0) for bucket in buckets]

    def share_of_tokens_in_longest(self, share: float) -> float:
        """Returns which share of the tokens the longest documents hold, if so large a share of all is taken."""
        if not self.num_tokens:
            return 0.0
        wanted = share * self.num_documents
        counts, tokens = self._counts[::-1], self._bucket_tokens()[::-1]
        above = np.cumsum(counts)
        place = int(np.searchsorted(above, wanted))
        before = int(above[place - 1]) if place else 0
        part = (wanted - before) / max(1, int(counts[place]))
        return float((tokens[:place].sum() + part * tokens[place]) / self.num_tokens)

    def histogram(self, *, most_bars: int = 50) -> tuple[Int64s, Int64s, Int64s]:
        """Returns documents with tokens by length, in steps that are even on a logarithmic axis.

        Args:
            most_bars: bars at most; one more where the last step is short.

        Returns:
            edges: int64[num_bars + 1], rising, from 1 on; the first bar begins with the shortest document.
            counts: int64[num_bars], documents with a length in [edges[i], edges[i + 1]).
            tokens: int64[num_bars], tokens of these.
        """
        empty = np.empty(0, dtype=np.int64)
        if self.shortest is None or self.longest is None:
            return np.array([1], dtype=np.int64), empty, empty
        low, high = self.shortest[0], self.longest[0] + 1
        edges = _log_edges(low, high, most_bars)
        starts = _bucket_starts()
        places = np.searchsorted(starts, edges)
        places[0], places[-1] = 1, _NUM_BUCKETS  # the first and the last bar begin and end within a bucket
        counts = np.concatenate([[0], np.cumsum(self._counts)])
        tokens = np.concatenate([[0], np.cumsum(self._bucket_tokens())])
        return edges, np.diff(counts[places]), np.diff(tokens[places])

    def _bucket_tokens(self) -> Int64s:
        tokens = self._tokens.copy()
        tokens[:_EXACT] = self._counts[:_EXACT] * np.arange(_EXACT)
        return tokens


def _document_lengths(lengths: NDArray[np.int32], boundaries: Int64s) -> Int64s:
    """Returns the tokens of consecutive documents: int64[num_documents]."""
    first, stop = int(boundaries[0]), int(boundaries[-1])
    rows = np.diff(boundaries)
    if stop - first == len(rows) and bool((rows == 1).all()):
        return lengths[first:stop].astype(np.int64)
    sums = np.zeros(len(rows), dtype=np.int64)
    filled = np.flatnonzero(rows > 0)
    if len(filled):  # `reduceat` takes an empty stretch for one of a single row
        sums[filled] = np.add.reduceat(lengths[first:stop], boundaries[filled] - first, dtype=np.int64)
    return sums


def _long_buckets(lengths: Int64s) -> Int64s:
    exponents = np.frexp(lengths.astype(np.float64))[1].astype(np.int64) - 1
    steps = (lengths >> (exponents - _STEP_BITS)) - _STEPS
    buckets: Int64s = _EXACT + (exponents - _EXACT_BITS) * _STEPS + steps
    return buckets


def _bucket_starts() -> Int64s:
    """Returns the least length of each bucket: int64[num_buckets]."""
    steps = np.arange(_NUM_BUCKETS - _EXACT)
    exponents = _EXACT_BITS + steps // _STEPS
    long = (_STEPS + steps % _STEPS) << (exponents - _STEP_BITS)
    return np.concatenate([np.arange(_EXACT), long])


def _log_edges(low: int, high: int, most: int) -> Int64s:
    """Returns rising bounds whose steps never get shorter, each but the last one the start of a bucket: int64[count].

    Bounds that are rounded one by one would make bars of one and of two lengths by turns, which look like peaks.
    """
    growth = (high / low) ** (1 / most) - 1
    starts = _bucket_starts()
    edges = [low]
    while True:
        step = max(1, math.ceil(edges[-1] * growth - 1e-9))
        if edges[-1] + step + step // 2 >= high:
            break
        place = int(np.searchsorted(starts, edges[-1] + step))
        if place == len(starts) or starts[place] >= high:
            break
        edges.append(int(starts[place]))
    return np.array([*edges, high], dtype=np.int64)
