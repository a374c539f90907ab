"""Which documents of a source are held out: how many of each pair, and which.

Whole blocks of documents where a source has many, so that what is left keeps its blocks; else single documents. What is
held out of a pair depends on its place in the source and on nothing that comes after it: a source that grows does not
move what was held out before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from tokenloom.kernels import Key, Permutation, Purpose, derive
from tokenloom.order.computed_keys import source_key
from tokenloom.run.lock import BLOCK_DOCUMENTS, LockedPair, RunLock

FEWEST_BLOCKS = 32
"""A source holds out single documents where its share would be fewer blocks: a holdout of one block says little."""


def num_blocks(pair: LockedPair) -> int:
    """Returns the number of blocks of a pair; the last one may be shorter."""
    return -(-pair.num_documents // BLOCK_DOCUMENTS)


def holds_blocks(pairs: Sequence[LockedPair], share: Fraction) -> bool:
    """Whether a source that is locked for the first time holds out blocks, not documents."""
    return sum(map(num_blocks, pairs)) * share >= FEWEST_BLOCKS


def with_holdout(
    pairs: Sequence[LockedPair], share: Fraction | None, *, by_blocks: bool, after: Sequence[LockedPair] = ()
) -> list[LockedPair]:
    """Returns pairs with as many held-out blocks or documents as the share says; their tokens are not counted yet.

    The numbers of all pairs up to any one come to the share of those pairs, rounded to the nearest, half up.

    Args:
        pairs: the pairs.
        share: share of the source, in (0, 1/2]; None for none.
        by_blocks: whether blocks are held out.
        after: pairs of the source before them.
    """
    if share is None:
        return list(pairs)
    total = sum(_units(pair, by_blocks=by_blocks) for pair in after)
    chosen = []
    for pair in pairs:
        before, total = total, total + _units(pair, by_blocks=by_blocks)
        held = _rounded(total * share) - _rounded(before * share)
        chosen.append(replace(pair, held_blocks=held) if by_blocks else replace(pair, held_documents=held))
    return chosen


def held_numbers(pair: LockedPair, *, key: Key, number: int) -> NDArray[np.int64]:
    """Returns the blocks, or the documents, of a pair that are held out: int64[held], rising.

    Args:
        pair: the pair, of which `held_blocks` or `held_documents` says which.
        key: key of the source.
        number: place of the pair in the source.
    """
    held = pair.held_blocks or pair.held_documents
    units = num_blocks(pair) if pair.held_blocks else pair.num_documents
    permutation = Permutation(units, derive(key, Purpose.HOLDOUT, number))
    return np.sort(permutation.inverse(np.arange(held, dtype=np.int64)))


def held_tokens(pair: LockedPair, lengths: NDArray[np.int32], *, key: Key, number: int) -> int:
    """Returns the tokens of all that is held out of a pair.

    Args:
        pair: the pair.
        lengths: int32[num_documents], tokens per document.
        key: key of the source.
        number: place of the pair in the source.
    """
    if not (pair.held_blocks or pair.held_documents):
        return 0
    held = held_numbers(pair, key=key, number=number)
    if pair.held_blocks:
        starts = np.arange(0, pair.num_documents, BLOCK_DOCUMENTS)
        lengths = np.add.reduceat(lengths, starts, dtype=np.int64)
    return int(lengths[held].sum(dtype=np.int64))


def are_held_out(lock: RunLock, source: int, documents: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns which documents of a source are held out: bool[num_documents]; opens nothing.

    Args:
        lock: the run.
        source: number of the source.
        documents: int64[num_documents], numbers of its documents.
    """
    pairs = lock.sources[source].pairs
    firsts = np.cumsum([0, *(pair.num_documents for pair in pairs)], dtype=np.int64)
    key = source_key(lock.seed, lock.sources[source].name)
    found = np.zeros(len(documents), dtype=np.bool_)
    numbers = np.searchsorted(firsts, documents, side="right") - 1
    for number in np.unique(numbers).tolist():
        pair, here = pairs[number], np.flatnonzero(numbers == number)
        units = documents[here] - firsts[number]
        if pair.held_blocks or pair.held_documents:
            units = units // BLOCK_DOCUMENTS if pair.held_blocks else units
            found[here] = np.isin(units, held_numbers(pair, key=key, number=number))
    return found


def _units(pair: LockedPair, *, by_blocks: bool) -> int:
    return num_blocks(pair) if by_blocks else pair.num_documents


def _rounded(number: Fraction) -> int:
    return (2 * number.numerator + number.denominator) // (2 * number.denominator)
