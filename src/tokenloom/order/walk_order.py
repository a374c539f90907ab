"""Computed orders of spans, windows or packs of walks through a source, and their root keys.

See `native/walks.hpp` and `native/pack_walks.hpp`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import PackWalkReader, SectionNeeded, WalkReader
from tokenloom.indexed.joined import JoinedPairs
from tokenloom.kernels.permutation import Key
from tokenloom.kernels.walks import WHOLE_PASS, PassPart
from tokenloom.order.windows import SpanBatch

Result = TypeVar("Result")

_ALGORITHM = "tokenloom order 1"  # part of all keys
_NO_END = 1 << 62  # numbers of samples are those of walks and windows, with gaps and without a last one
_MOST_THREADS = 16
_WALKS_PER_THREAD = 128  # a walk takes 1 us or more, a thread 50 us to start


class Occurrences(NamedTuple):
    """Spans of documents in walks, int64[num_occurrences] each; `slots` are tokens of the sample before a span."""

    walks: NDArray[np.int64]
    documents: NDArray[np.int64]
    windows: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    slots: NDArray[np.int64]


class WalkOrder:
    """A computed `SpanOrder` whose samples have the numbers `walk << WINDOW_BITS | window`.

    Pairs are opened when needed. Spans of denied documents have the number -1 - document.

    Args:
        pairs: the pairs of the source.
        reader: result of `make_walk_reader` over their documents.
        identity: see `Order`.
    """

    num_samples = _NO_END
    is_built = True

    def __init__(self, pairs: JoinedPairs, reader: WalkReader | PackWalkReader, *, identity: str) -> None:
        self.identity = identity
        self._pairs = pairs
        self._reader = reader

    def add_walks(
        self, first_walk: int, first_pair: int, last_pair: int, num_windows: int, part: PassPart = WHOLE_PASS
    ) -> None:
        """Adds walks from `first_walk` on, over pairs [first_pair, last_pair), of `num_windows` each; idempotent."""
        self._reader.add_walks(first_walk, first_pair, last_pair, num_windows, part)

    def check(self) -> None:
        """Does nothing: kernels check the files that they read."""

    def verify(self) -> list[str]:
        """Returns nothing: no arrays are stored."""
        return []

    def native_reader(self) -> WalkReader | PackWalkReader:
        """See `SpanOrder`; the reader raises `SectionNeeded`, see `with_pairs`."""
        return self._reader

    def spans(self, positions: NDArray[np.int64], *, keep_empty: bool) -> SpanBatch:
        """See `SpanOrder`."""
        found = with_pairs(self._pairs, lambda: self._reader.spans(positions, keep_empty=keep_empty))
        return SpanBatch(*found)

    def conversations(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the conversations of samples, see `ConversationOrder`."""
        found = self.spans(positions, keep_empty=False)
        return found.documents, found.row_offsets

    def occurrences(self, walks: NDArray[np.int64], documents: NDArray[np.int64]) -> Occurrences:
        """Returns where documents are read in walks, walk by walk, at 2 us per walk and 1 ns per 1,024 documents.

        Args:
            walks: int64[num_walks], numbers of walks that were added.
            documents: int64[num_documents], rising.
        """
        with_pairs(self._pairs, lambda: self._reader.occurrences(walks[:0], documents))  # opens the pairs
        num_threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS, len(walks) // _WALKS_PER_THREAD)
        if num_threads < 2:
            return Occurrences(*self._reader.occurrences(walks, documents))
        with ThreadPoolExecutor(num_threads) as executor:
            parts = list(
                executor.map(lambda part: self._reader.occurrences(part, documents), np.array_split(walks, num_threads))
            )
        return Occurrences(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def with_pairs(pairs: JoinedPairs, ask: Callable[[], Result]) -> Result:
    """Calls a kernel, and opens the pairs that it needs; raises their errors."""
    while True:
        try:
            return ask()
        except SectionNeeded as needed:
            number = needed.args[0]
        pairs.open(number)  # out here: its errors have no context of the kernel's


def root_key(seed: int, name: str) -> Key:
    """Returns the key of a name: the first 16 bytes of a SHA-256 over the version of the order, seed and name."""
    digest = hashlib.sha256(f"{_ALGORITHM}\0{seed}\0{name}".encode()).digest()
    return Key(int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little"))


def source_key(seed: int, source: str) -> Key:
    """Returns the key from which all permutations of a source are derived."""
    return root_key(seed, f"source {source}")


def mixing_key(seed: int) -> Key:
    """Returns the key from which the permutations of mixing blocks are derived."""
    return root_key(seed, "mixing")
