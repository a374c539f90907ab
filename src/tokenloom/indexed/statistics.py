"""Counts and length distribution of a dataset, from its index alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import DatasetFormatError

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStatistics:
    """What a dataset holds.

    Attributes:
        num_sequences: rows of the index.
        num_documents: documents, each of zero or more sequences.
        num_tokens: tokens in the `.bin` file.
        num_bytes: bytes in the `.bin` file.
        dtype: name of the token dtype.
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


def dataset_statistics(
    lengths: NDArray[np.int32],
    *,
    num_documents: int,
    num_tokens: int,
    dtype: np.dtype[Any],
    modes: NDArray[np.int8] | None = None,
    path: str = "index",
) -> DatasetStatistics:
    """Returns the statistics of a dataset whose sequences have these lengths: int32[num_sequences].

    Args:
        lengths: lengths of its sequences.
        num_documents: documents.
        num_tokens: number of tokens of all sequences.
        dtype: dtype of the tokens.
        modes: int8[num_sequences], of a multimodal dataset.
        path: path of the index, for messages.

    Raises:
        DatasetFormatError: the lengths are not those of so many tokens.
    """
    empty = len(lengths) == 0
    if (found := int(lengths.sum(dtype=np.int64))) != num_tokens or (not empty and int(lengths.min()) < 0):
        raise damaged_lengths(path, num_tokens, found)
    return DatasetStatistics(
        num_sequences=len(lengths),
        num_documents=num_documents,
        num_tokens=num_tokens,
        num_bytes=num_tokens * dtype.itemsize,
        dtype=dtype.name,
        shortest=0 if empty else int(lengths.min()),
        longest=0 if empty else int(lengths.max()),
        mean_length=0.0 if empty else num_tokens / len(lengths),
        num_empty=int(np.count_nonzero(lengths == 0)),
        percentiles=() if empty else _percentiles(lengths),
        histogram=() if empty else _histogram(lengths),
        modes=() if modes is None else _count_modes(lengths, modes),
    )


def damaged_lengths(path: str, num_tokens: int, found: int) -> DatasetFormatError:
    """Returns the error for lengths that are not those of so many tokens.

    Args:
        path: path of the index.
        num_tokens: tokens of the data.
        found: what the lengths add up to.
    """
    message = f"`{path}`: expected lengths from 0 on that add up to {num_tokens} tokens, found {found}"
    return DatasetFormatError(message, hint="the index is damaged: `tokenloom verify` says where")


def _count_modes(lengths: NDArray[np.int32], modes: NDArray[np.int8]) -> tuple[tuple[int, int, int], ...]:
    chosen = {int(mode): lengths[modes == mode] for mode in np.unique(modes)}
    return tuple((mode, len(part), int(part.sum(dtype=np.int64))) for mode, part in chosen.items())


def _percentiles(lengths: NDArray[np.int32]) -> tuple[tuple[int, int], ...]:
    values = np.percentile(lengths, PERCENTILES, method="lower")
    return tuple((percent, int(value)) for percent, value in zip(PERCENTILES, values, strict=True))


def _histogram(lengths: NDArray[np.int32]) -> tuple[tuple[int, int, int], ...]:
    """Counts per power of two: [0, 1), [1, 2), [2, 4), ... without empty rows at either end."""
    exponents = np.frexp(lengths.astype(np.float64))[1]  # 0 -> 0, 1 -> 1, 2..3 -> 2, 4..7 -> 3
    counts = np.bincount(exponents)
    first = int(np.flatnonzero(counts)[0])
    return tuple(
        (0 if bucket == 0 else 2 ** (bucket - 1), 2**bucket, int(counts[bucket]))
        for bucket in range(first, len(counts))
    )
