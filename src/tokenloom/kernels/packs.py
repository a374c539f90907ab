"""Kernels that pack documents and conversations into samples, and sub-samples into microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native

Int64s = NDArray[np.int64]
ANY_NUMBER: int = np.iinfo(np.int64).max


def count_packs(histogram: Int64s, *, most_pieces: int | None = None) -> int:
    """Returns the number of packs that `pack_documents` makes; `histogram[n]` is the number of pieces of length n."""
    return _native.count_packs(histogram, most_pieces or ANY_NUMBER)


def pack_documents(
    lengths: NDArray[np.int32],
    documents: NDArray[Any],
    *,
    sequence_length: int,
    extra: int,
    most_pieces: int | None = None,
    first_piece: int,
    packs: NDArray[Any],
    pieces: NDArray[Any],
) -> None:
    """Packs documents by best-fit decreasing into given arrays; takes about 0.1 µs per document. Deterministic.

    Args:
        lengths: int32[num_sequences], tokens per sequence.
        documents: indices into `lengths` of the documents to pack; documents of equal length keep their order.
        sequence_length, extra: tokens per sample, and tokens that a sample reads beyond `sequence_length`, 0 or 1.
        most_pieces: maximum number of pieces in a pack; None for no limit.
        first_piece: number of pieces of earlier calls, from which `packs` counts the pieces of this call.
        packs: [num_packs], filled with the index of the first piece of each pack.
        pieces: [num_pieces, 2], of the dtype of `packs`, filled with (document, start) of each piece.

    Raises:
        IndexError: a document does not exist, or the sizes of `packs` or `pieces` are wrong.
    """
    most = most_pieces or ANY_NUMBER
    _native.pack_documents(lengths, documents, sequence_length, extra, most, first_piece, packs, pieces)


def next_fit(
    slots: NDArray[np.int32], *, capacity: int, most_items: int | None, row: tuple[int, int]
) -> tuple[Int64s, tuple[int, int]]:
    """Packs items by next fit; returns the indices of items that begin a pack, and (slots, items) of the last pack.

    Args:
        slots: int32[num_items], slots per item, at most `capacity`.
        capacity, most_items: maximum slots and maximum items of a pack; None for any number of items.
        row: number of slots and items in the pack that the first item may join; (-1, 0) if it must begin a pack.
    """
    return _native.next_fit(slots, capacity, most_items or ANY_NUMBER, row)


def pack_to_levels(
    lengths: Int64s,
    costs: Int64s,
    *,
    capacity: int,
    most_items: int,
    widths: Int64s,
    levels: Int64s,
    bases: Int64s,
    num_ranks: int,
    by_length: bool,
    short_first: int = 0,
) -> Int64s | None:
    """Packs sub-samples so that the packs of a step have similar costs; returns None if the sub-samples do not fit.

    Returns the pack index of each sub-sample, int64[num_subsamples]. Packs are numbered in the order of steps, and no
    pack is empty. Takes about 250 ns per sub-sample.

    Args:
        lengths: int64[num_subsamples], tokens, in [1, capacity], in descending order.
        costs: int64[num_subsamples], in descending order, with a sum below 2**61.
        capacity, most_items: maximum tokens and maximum sub-samples of a pack, each at least 1.
        widths: int64[num_steps], packs per step; their sum is at most the number of sub-samples.
        levels: int64[num_steps], cost that the costliest rank of each step already has, in descending order.
        bases: int64[num_steps], cost that all ranks of each step together already have.
        num_ranks: ranks of a step, including ranks without a pack.
        by_length: ignore costs and fill packs one after another, longest sub-samples first, for the fewest packs.
        short_first: number of short sub-samples that a pack gets early, in quarters of the mean number, 0 to 4.
    """
    pack_of = np.empty(len(lengths), dtype=np.int64)
    fits = _native.pack_to_levels(
        lengths, costs, capacity, most_items, widths, levels, bases, num_ranks, by_length, short_first, pack_of
    )
    return pack_of if fits else None


def order_by_prefix(sequences: Sequence[NDArray[Any]]) -> tuple[Int64s, Int64s]:
    """Sorts sequences depth-first by common prefixes.

    Args:
        sequences: int32[length] or int64[length] arrays of the same dtype.

    Returns:
        order: int64[n], indices of the sequences in sorted order.
        shared: int64[n], number of leading tokens that each sorted sequence shares with the sequence before it.
    """
    order, shared = np.empty(len(sequences), dtype=np.int64), np.empty(len(sequences), dtype=np.int64)
    _native.order_by_prefix(list(sequences), order, shared)
    return order, shared
