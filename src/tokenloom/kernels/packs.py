"""Kernels that pack documents, conversations and sub-samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.kernels.arrays import Int64s

ANY_NUMBER: int = np.iinfo(np.int64).max


def count_packs(histogram: Int64s, *, most_pieces: int | None = None) -> int:
    """Returns the number of rows of `pack_documents`, from the number of pieces of each length."""
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
    """Packs documents into rows by best-fit decreasing; about 0.1 µs each. Deterministic.

    Args:
        lengths: int32[num_sequences], tokens per sequence.
        documents: the rows of `lengths` to pack; of equal lengths, the earlier one is placed first.
        sequence_length, extra: tokens of a sample; tokens read beyond that, 0 or 1.
        most_pieces: most documents, or parts of them, of a row; None for any number.
        first_piece: number of the first piece.
        packs: [num_packs], filled with the first piece of each row.
        pieces: [num_pieces, 2], filled with (document, start) of each piece; of the dtype of `packs`.

    Raises:
        IndexError: a document does not exist, or they make other numbers of rows or pieces.
    """
    most = most_pieces or ANY_NUMBER
    _native.pack_documents(lengths, documents, sequence_length, extra, most, first_piece, packs, pieces)


def next_fit(
    slots: NDArray[np.int32], *, capacity: int, most_items: int | None, row: tuple[int, int]
) -> tuple[Int64s, tuple[int, int]]:
    """Returns the items that begin a row if each joins the last row when it fits, and the last row.

    Args:
        slots: int32[num_items], size of each, at most `capacity`.
        capacity, most_items: capacity of a row, and most items; None for any number.
        row: slots and items of the row that the first item may join; (-1, 0) for none.
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
    """Returns the pack of each sub-sample, int64[num_subsamples], with even costs per step; None if they do not fit.

    Packs are numbered step by step, and none is empty. About 250 ns per sub-sample.

    Args:
        lengths: int64[num_subsamples], tokens, in [1, capacity]; longest first.
        costs: int64[num_subsamples]; a longer one costs no less. They add up to less than 2**61.
        capacity, most_items: most tokens and sub-samples of a pack, at least 1.
        widths: int64[num_steps], packs of each step; together no more than sub-samples.
        levels: int64[num_steps], given cost per rank of a step; costliest steps first.
        bases: int64[num_steps], given cost of all ranks of a step.
        num_ranks: ranks of a step, those without a pack included.
        by_length: fill packs one by one, longest first, whatever the cost, for the fewest packs.
        short_first: quarters of the mean number of sub-samples, 0 to 4, that packs get of short ones first.
    """
    pack_of = np.empty(len(lengths), dtype=np.int64)
    fits = _native.pack_to_levels(
        lengths, costs, capacity, most_items, widths, levels, bases, num_ranks, by_length, short_first, pack_of
    )
    return pack_of if fits else None


def order_by_prefix(sequences: Sequence[NDArray[Any]]) -> tuple[Int64s, Int64s]:
    """Returns the depth-first order of sequences by common prefixes, and the tokens that each shares with the last.

    Args:
        sequences: int32 or int64[length] each, all of one dtype.

    Returns:
        (order int64[n], shared tokens int64[n]); a sequence that shares none begins a tree.
    """
    order, shared = np.empty(len(sequences), dtype=np.int64), np.empty(len(sequences), dtype=np.int64)
    _native.order_by_prefix(list(sequences), order, shared)
    return order, shared
