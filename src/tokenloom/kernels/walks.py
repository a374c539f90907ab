"""Kernels of computed orders: the spans of windows and packs of walks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom._native import PackWalkReader, SourceDocuments, WalkReader
from tokenloom.kernels.arrays import Int64s
from tokenloom.kernels.packs import ANY_NUMBER
from tokenloom.kernels.permutation import Key, Purpose, derive

NOT_KNOWN = -1  # tokens of a pair whose samples are packs; their number is checked instead
WINDOW_BITS = 40  # the number of a sample is `walk << WINDOW_BITS | window`


class PassPart(NamedTuple):
    """The part of a walk in a pass that windows of several lengths share.

    Stretches of the pass are permuted, and windows within groups of 1,024 of them, so that a part reads whole stretches
    and the next part goes on behind them.

    Attributes:
        pass_walk: the walk that began the pass; -1 for the walk itself.
        first_token: tokens before its first window, in the order of stretches.
        num_tokens: tokens of the pass, without those that the last window reads beyond its length.
        stretch_length: tokens of a stretch; 0 if the walk has the pass alone, and permutes its windows.
        num_first: windows that are permuted among themselves, before the others.
    """

    pass_walk: int = -1
    first_token: int = 0
    num_tokens: int = 0
    stretch_length: int = 0
    num_first: int = 0


WHOLE_PASS = PassPart()


def make_source_documents(
    sections: Sequence[tuple[int, int, int, int]], *, key: tuple[int, int], reads_held: bool
) -> SourceDocuments:
    """Returns the documents of a source, pair by pair; `open(number, lengths)` gives the lengths of one.

    Args:
        sections: of each pair, its documents, tokens of those read (or `NOT_KNOWN`), and blocks, or documents, that are
            held out.
        key: key of the source.
        reads_held: whether to read those held out, else all others.
    """
    facts = np.array(sections, dtype=np.int64).reshape(-1, 4)
    return SourceDocuments(facts, key, reads_held=reads_held)


def make_walk_reader(
    documents: SourceDocuments,
    *,
    is_shuffled: bool,
    sequence_length: int,
    extra: int,
    denied: Sequence[int] = (),
    num_packs: Sequence[int] | None = None,
    most_pieces: int | None = None,
) -> WalkReader | PackWalkReader:
    """Returns a reader, without walks, of windows or best-fit packs of the documents of a source.

    Packs are made within groups of 128 blocks of 256 documents of a pair, by `pack_documents`, and are the same in
    every walk. Spans of a denied document have the number -1 - document.

    Args:
        documents: the documents.
        is_shuffled: whether pairs, blocks and documents (or groups) come in an order of the walk. Packs are permuted
            among 16 groups anyway.
        sequence_length: tokens from one window's start to the next, or tokens of a pack.
        extra: tokens read beyond that, 0 or 1.
        denied: documents that are not read.
        num_packs: of each pair, see `count_packs_of`; None for windows.
        most_pieces: most documents, or parts of them, of a pack; None for any number.
    """
    none: NDArray[np.int64] = np.empty((0, 4), dtype=np.int64)
    order: Any = {"is_shuffled": is_shuffled, "extra": extra, "denied": list(denied)}
    if num_packs is None:
        return WalkReader(documents, none, window_length=sequence_length, **order)
    limits: Any = {"most_pieces": most_pieces or ANY_NUMBER, "num_packs": list(num_packs)}
    return PackWalkReader(documents, none, sequence_length=sequence_length, **limits, **order)


def count_packs_of(
    lengths: NDArray[np.int32],
    *,
    sequence_length: int,
    extra: int,
    key: Key,
    pair: int,
    held_blocks: int = 0,
    held_documents: int = 0,
    reads_held: bool = False,
    most_pieces: int | None = None,
) -> int:
    """Returns the packs of a walk of a pair; about 10 ns per document.

    Args:
        lengths: int32[num_documents], tokens of each.
        sequence_length, extra, most_pieces: see `make_walk_reader`.
        key: key of the source.
        pair: number of the pair in its source.
        held_blocks, held_documents, reads_held: see `make_source_documents`.

    Raises:
        IndexError: a length is negative.
    """
    held = (derive(key, Purpose.HOLDOUT, pair), held_blocks, held_documents, reads_held)
    return _native.count_section_packs(lengths, *held, sequence_length, extra, most_pieces or ANY_NUMBER)


def sample_numbers(walks: Int64s, windows: Int64s) -> Int64s:
    """Returns the numbers of samples of a source: int64[count]."""
    return (walks << WINDOW_BITS) | windows
