"""Counts document lengths, read from `.idx` files, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.indexed.dataset import IndexedDataset, damaged_lengths

Int64s = NDArray[np.int64]

_FEW = 1 << 16  # shorter lengths have a bin each
_STEPS = 64  # bins per power of two for longer lengths
_CHUNK = 1 << 20  # documents per read


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LengthHistogram:
    """A histogram of lengths; histograms with equal edges can be added.

    Attributes:
        edges: int64[num_bins + 1], in tokens: bin i contains lengths in [edges[i], edges[i + 1]).
        counts: int64[num_bins], number of documents in each bin.
        tokens: int64[num_bins], number of tokens in each bin.
    """

    edges: Int64s
    counts: Int64s
    tokens: Int64s

    def __add__(self, other: LengthHistogram) -> LengthHistogram:
        return LengthHistogram(edges=self.edges, counts=self.counts + other.counts, tokens=self.tokens + other.tokens)


class DocumentLengths:
    """Statistics of the document lengths of pairs. Counting takes 0.12 s per 10^7 documents, and always 2 MB of memory.

    Percentiles are exact below 65,536 tokens, and at most 1.6 % too low from there on (64 bins per power of two).
    """

    def __init__(self, datasets: Iterable[IndexedDataset] = ()) -> None:
        self.longest: tuple[int, int, int] | None = None
        self.shortest: tuple[int, int, int] | None = None
        self._num_pairs = 0
        steps = np.arange(_STEPS, 2 * _STEPS)
        edges = np.concatenate([np.arange(_FEW), *(steps << shift for shift in range(10, 57)), [2**63 - 1]])
        none = np.zeros(len(edges) - 1, dtype=np.int64)
        self._histogram = LengthHistogram(edges=edges, counts=none, tokens=none)
        for dataset in datasets:
            self.add(dataset)

    def add(self, dataset: IndexedDataset) -> None:
        """Adds the documents of a pair in one pass over its index."""
        lengths, boundaries = dataset.sequence_lengths, dataset.document_indices
        before = self.num_tokens
        for start in range(0, dataset.num_documents, _CHUNK):
            found = _document_lengths(lengths, boundaries[start : start + _CHUNK + 1])
            if int(found.min()) < 0:
                raise damaged_lengths(dataset.idx_path, dataset.num_tokens, int(found.sum()))
            self._histogram += _counted(found, self._histogram.edges)
            place = int(found.argmax())
            if self.longest is None or found[place] > self.longest[0]:
                self.longest = int(found[place]), start + place, self._num_pairs
            place = int(np.where(found == 0, np.iinfo(np.int64).max, found).argmin())
            if found[place] and (self.shortest is None or found[place] < self.shortest[0]):
                self.shortest = int(found[place]), start + place, self._num_pairs
        if (tokens := self.num_tokens - before) != dataset.num_tokens:
            raise damaged_lengths(dataset.idx_path, dataset.num_tokens, tokens)
        self._num_pairs += 1

    @property
    def num_documents(self) -> int:
        return int(self._histogram.counts.sum())

    @property
    def num_tokens(self) -> int:
        return int(self._histogram.tokens.sum())

    @property
    def num_empty(self) -> int:
        return int(self._histogram.counts[0])

    @property
    def commonest(self) -> tuple[int, int]:
        """Returns the most frequent length in [1, 65,536), and the number of documents with this length."""
        length = 1 + int(self._histogram.counts[1:_FEW].argmax())
        return length, int(self._histogram.counts[length])

    @property
    def mean(self) -> float:
        return self.num_tokens / self.num_documents if self.num_documents else 0.0

    def percentiles(self, percents: Sequence[float]) -> list[int]:
        """Returns the document length at each of the percentiles; empty without documents."""
        if not self.num_documents:
            return []
        ranks = np.ceil(np.array(percents) / 100 * self.num_documents).clip(1, self.num_documents)
        bins = np.searchsorted(np.cumsum(self._histogram.counts), ranks)
        return [int(start) for start in self._histogram.edges[bins]]

    def share_of_tokens_in_longest(self, share: float) -> float:
        """Returns the longest documents' share of all tokens; `share` 0.01 means the longest 1 % of the documents."""
        if not self.num_tokens:
            return 0.0
        counts, tokens = self._histogram.counts[::-1], self._histogram.tokens[::-1]
        above = np.cumsum(counts)
        place = int(np.searchsorted(above, wanted := share * self.num_documents))
        before = int(above[place - 1]) if place else 0
        part = (wanted - before) / max(1, int(counts[place]))
        return float((tokens[:place].sum() + part * tokens[place]) / self.num_tokens)

    def histogram(self) -> LengthHistogram:
        """Returns the histogram of non-empty documents, with four bins per power of two."""
        if self.shortest is None or self.longest is None:
            empty = np.empty(0, dtype=np.int64)
            return LengthHistogram(edges=np.array([1]), counts=empty, tokens=empty)
        fine = self._histogram
        steps = [1, 2, 3, *(step << shift for shift in range(60) for step in range(4, 8))]
        first = np.searchsorted(steps, self.shortest[0], side="right") - 1
        last = np.searchsorted(steps, self.longest[0], side="right")
        edges = np.array(steps[first : last + 1], dtype=np.int64)
        places = np.searchsorted(fine.edges, edges)
        counts, tokens = (np.concatenate([[0], np.cumsum(each)])[places] for each in (fine.counts, fine.tokens))
        return LengthHistogram(edges=edges, counts=np.diff(counts), tokens=np.diff(tokens))


def _counted(lengths: Int64s, edges: Int64s) -> LengthHistogram:
    """Returns the histogram of lengths; takes 4 ns per length below 65,536, and a binary search per longer length."""
    counts = np.zeros(len(edges) - 1, dtype=np.int64)
    tokens = np.zeros_like(counts)
    long = lengths[lengths >= _FEW]
    bins = np.searchsorted(edges, long, side="right") - 1
    np.add.at(counts, bins, 1)
    np.add.at(tokens, bins, long)
    few = np.bincount(lengths[lengths < _FEW], minlength=_FEW)
    counts[:_FEW] += few
    tokens[:_FEW] += few * np.arange(_FEW)
    return LengthHistogram(edges=edges, counts=counts, tokens=tokens)


def _document_lengths(lengths: NDArray[np.int32], boundaries: Int64s) -> Int64s:
    """Returns the number of tokens of each document: int64[num_documents]."""
    first, stop = int(boundaries[0]), int(boundaries[-1])
    rows = np.diff(boundaries)
    if stop - first == len(rows) and bool((rows == 1).all()):
        return lengths[first:stop].astype(np.int64)
    sums = np.zeros(len(rows), dtype=np.int64)
    filled = np.flatnonzero(rows > 0)
    if len(filled):  # `reduceat` does not support empty ranges
        sums[filled] = np.add.reduceat(lengths[first:stop], boundaries[filled] - first, dtype=np.int64)
    return sums
