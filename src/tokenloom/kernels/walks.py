"""Kernels that compute the order of runs: spans of windows and packs along shuffled walks through a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom._native import PackWalkReader, SourceDocuments, WalkReader
from tokenloom.kernels.packs import ANY_NUMBER
from tokenloom.kernels.permutation import Key, Purpose, derive

Int64s = NDArray[np.int64]
NOT_KNOWN = -1  # number of tokens of a pair whose samples are packs; the number of packs is checked instead
WINDOW_BITS = 40  # a sample number is `walk << WINDOW_BITS | window`


class PassPart(NamedTuple):
    """The part of a pass over a source that one walk covers, if walks of several window lengths share the pass.

    The tokens of the pass are divided into stretches of equal length, and the order of the stretches is shuffled. Walks
    read whole stretches in this order, walk after walk. A walk shuffles its windows within groups of 1,024 stretches.

    Attributes:
        pass_walk: number of the walk that began the pass; -1 if this walk begins it.
        first_token: number of tokens of the permuted pass before the first window of the walk.
        num_tokens: number of tokens of the pass, without the extra token of its last window.
        stretch_length: tokens per stretch; 0 if the walk covers the whole pass and permutes all its windows.
        num_first: number of windows at the start of the walk that are permuted separately.
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
    """Returns the documents of a source; call `open(number, lengths)` of the result with the lengths of each pair.

    Args:
        sections: four numbers per pair: documents; tokens to read, or `NOT_KNOWN`; blocks in the validation split;
            documents in the validation split, used only if the number of blocks is 0.
        key: key of the source.
        reads_held: True reads the validation split, False the training split.
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
    """Returns a reader of windows or best-fit packs of a source; add walks to the reader before reading.

    Packs are made within groups of 32,768 consecutive documents of a pair, and are the same in all walks. The spans of
    a denied document d have the document number -1 - d.

    Args:
        documents: the documents of the source.
        is_shuffled: whether each walk shuffles (windows: pairs, blocks of 256 documents, and documents within blocks;
            packs: pairs and groups). Within every 16 groups, packs are permuted even if this is False.
        sequence_length: distance between the starts of windows, or tokens of a pack.
        extra: tokens that a sample reads beyond `sequence_length`, 0 or 1.
        denied: documents whose tokens are not read.
        num_packs: number of packs per pair, from `count_packs_of`; None to read windows.
        most_pieces: maximum number of pieces in a pack; None for no limit.
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
    """Returns the number of packs that a walk reads from one pair; takes about 10 ns per document.

    Args:
        lengths: int32[num_documents], tokens per document.
        sequence_length, extra, most_pieces: see `make_walk_reader`.
        key: key of the source.
        pair: index of the pair in the source.
        held_blocks, held_documents, reads_held: see `make_source_documents`.

    Raises:
        IndexError: a length is negative.
    """
    held = (derive(key, Purpose.HOLDOUT, pair), held_blocks, held_documents, reads_held)
    return _native.count_section_packs(lengths, *held, sequence_length, extra, most_pieces or ANY_NUMBER)


def sample_numbers(walks: Int64s, windows: Int64s) -> Int64s:
    """Returns the sample number of window `windows[i]` of walk `walks[i]`, int64[num_windows]."""
    return (walks << WINDOW_BITS) | windows
