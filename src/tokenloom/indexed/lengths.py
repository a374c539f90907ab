"""How long the sequences of datasets are, counted from their indices in one pass and little memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import DatasetFormatError

if TYPE_CHECKING:
    from tokenloom.indexed.dataset import IndexedDataset

Int64s = NDArray[np.int64]

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)

BINS_PER_DOUBLING = 4
_DOUBLINGS = np.exp2(np.arange(31 * BINS_PER_DOUBLING + 1) / BINS_PER_DOUBLING)

_EDGES = np.array(sorted({0, *np.round(_DOUBLINGS).astype(np.int64).tolist()}))  # `np.unique` imports 25 ms more
"""Where bins begin: 0, then each length, then four per doubling; the last is where lengths of int32 end."""

_FEW = 1 << 16
"""Lengths below this are counted one by one, which takes 4 ns each; longer ones are looked up."""

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStatistics:
    """What a dataset holds.

    Attributes:
        num_bytes: bytes in the `.bin` file.
        shortest, longest, mean_length: lengths of the sequences, in tokens; 0 for an empty dataset.
        num_empty: sequences without tokens.
        percentiles: (percent, tokens) pairs; the tokens are a length that occurs ("lower" interpolation).
        histogram: (start, stop, count) rows: sequences with a length in [start, stop), bounds powers of two.
        modes: (mode, sequences, tokens) rows of a multimodal dataset: 0 is text, 1 images; empty for others.
    """

    num_sequences: int
    num_documents: int
    num_tokens: int
    num_bytes: int
    dtype: str
    shortest: int
    longest: int
    mean_length: float
    num_empty: int
    percentiles: tuple[tuple[int, int], ...]
    histogram: tuple[tuple[int, int, int], ...]
    modes: tuple[tuple[int, int, int], ...] = ()

    @staticmethod
    def of(dataset: IndexedDataset) -> DatasetStatistics:
        """Returns the statistics of a dataset; one pass over its lengths, which must add up to its tokens."""
        lengths, modes, num_tokens = dataset.sequence_lengths, dataset.index.sequence_modes, dataset.num_tokens
        by_mode = {} if modes is None else {int(mode): lengths[modes == mode] for mode in np.unique(modes)}
        empty = len(lengths) == 0
        if (found := int(lengths.sum(dtype=np.int64))) != num_tokens or (not empty and int(lengths.min()) < 0):
            raise damaged_lengths(dataset.idx_path, num_tokens, found)
        percentiles = [] if empty else np.percentile(lengths, PERCENTILES, method="lower").astype(np.int64).tolist()
        return DatasetStatistics(
            num_sequences=len(lengths),
            num_documents=dataset.num_documents,
            num_tokens=num_tokens,
            num_bytes=num_tokens * dataset.dtype.itemsize,
            dtype=dataset.dtype.name,
            shortest=0 if empty else int(lengths.min()),
            longest=0 if empty else int(lengths.max()),
            mean_length=0.0 if empty else num_tokens / len(lengths),
            num_empty=int(np.count_nonzero(lengths == 0)),
            percentiles=() if empty else tuple(zip(PERCENTILES, percentiles, strict=True)),
            histogram=() if empty else _doublings(lengths),
            modes=tuple((mode, len(part), int(part.sum(dtype=np.int64))) for mode, part in by_mode.items()),
        )


def damaged_lengths(path: str, num_tokens: int, found: int) -> DatasetFormatError:
    """Returns the error for lengths in an index that add up to `found`, not to the tokens of the data."""
    message = f"`{path}`: expected lengths from 0 on that add up to {num_tokens} tokens, found {found}"
    return DatasetFormatError(message, hint="the index is damaged: `tokenloom verify` says where")


def _doublings(lengths: NDArray[np.int32]) -> tuple[tuple[int, int, int], ...]:
    """Counts per power of two: [0, 1), [1, 2), [2, 4), ... without empty rows at either end."""
    exponents = np.frexp(lengths.astype(np.float64))[1]  # 0 -> 0, 1 -> 1, 2..3 -> 2, 4..7 -> 3
    counts = np.bincount(exponents)
    first = int(np.flatnonzero(counts)[0])
    return tuple(
        (0 if bucket == 0 else 2 ** (bucket - 1), 2**bucket, int(counts[bucket]))
        for bucket in range(first, len(counts))
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LengthHistogram:
    """Sequences by their length; those of several datasets can be added.

    Attributes:
        edges: int64[num_bins + 1], where bins begin, and where the last one ends, in tokens.
        counts: int64[num_bins], sequences of each bin.
        tokens: int64[num_bins], tokens of these.
    """

    edges: Int64s
    counts: Int64s
    tokens: Int64s

    def __add__(self, other: LengthHistogram) -> LengthHistogram:
        return LengthHistogram(edges=self.edges, counts=self.counts + other.counts, tokens=self.tokens + other.tokens)

    @property
    def num_sequences(self) -> int:
        """All sequences."""
        return int(self.counts.sum())

    @property
    def num_tokens(self) -> int:
        """Tokens of all of them."""
        return int(self.tokens.sum())


def length_histogram(blocks: Iterable[NDArray[Any]], *, edges: Int64s = _EDGES, name: str = "index") -> LengthHistogram:
    """Returns how many sequences there are of each length, from blocks of lengths: 4 s and few MB for a billion."""
    counts = np.zeros(len(edges) - 1, dtype=np.int64)
    tokens = np.zeros_like(counts)
    few = np.zeros(_FEW, dtype=np.int64)
    for block in blocks:
        for first in range(0, len(block), _BLOCK):
            lengths = block[first : first + _BLOCK]
            if int(lengths.min()) < 0:
                message = f"{name}: expected lengths from 0 on, found {int(lengths.min())}"
                raise DatasetFormatError(message, hint="the index is damaged: `tokenloom verify` says where")
            if int(lengths.max()) >= _FEW:
                long = lengths[lengths >= _FEW].astype(np.int64)
                bins = np.searchsorted(edges, long, side="right") - 1
                np.add.at(counts, bins, 1)
                np.add.at(tokens, bins, long)
                lengths = lengths[lengths < _FEW]
            few += np.bincount(lengths, minlength=_FEW)
    starts = edges[:-1][edges[:-1] < _FEW]
    counts[: len(starts)] += np.add.reduceat(few, starts)
    tokens[: len(starts)] += np.add.reduceat(few * np.arange(_FEW), starts)
    return LengthHistogram(edges=edges, counts=counts, tokens=tokens)
