"""The computed order of runs: windows or packs along shuffled walks through a source, and the keys of the shuffles.

A walk reads some pairs of a source once. `native/walks.hpp` and `native/pack_walks.hpp` define the algorithm.
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
_NO_END = 1 << 62  # sample numbers encode walk and window, so they have gaps and no end
_MOST_THREADS = 16
_WALKS_PER_THREAD = 128  # searching a walk takes at least 1 us, starting a thread 50 us


class Occurrences(NamedTuple):
    """Spans found in walks; each field is int64[num_spans]. `slots` is the first slot of each span in its sample."""

    walks: NDArray[np.int64]
    documents: NDArray[np.int64]
    windows: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    slots: NDArray[np.int64]


class WalkOrder:
    """A `SpanOrder` that is computed, not stored; its sample numbers are `walk << WINDOW_BITS | window`.

    Opens a pair when a sample first needs the pair. Spans of a denied document d have document index -1 - d. `reader`
    is the result of `make_walk_reader` for the documents of the pairs.
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
        """Defines the walks from `first_walk` on: each has `num_windows` windows over pairs [first_pair, last_pair)."""
        self._reader.add_walks(first_walk, first_pair, last_pair, num_windows, part)

    def check(self) -> None:
        """Does nothing, as kernels check the files that they read."""

    def verify(self) -> list[str]:
        """Returns an empty list, as no arrays are stored."""
        return []

    def native_reader(self) -> WalkReader | PackWalkReader:
        """Returns the native reader for kernels. It raises `SectionNeeded` for unopened pairs; see `with_pairs`."""
        return self._reader

    def spans(self, positions: NDArray[np.int64], *, keep_empty: bool) -> SpanBatch:
        found = with_pairs(self._pairs, lambda: self._reader.spans(positions, keep_empty=keep_empty))
        return SpanBatch(*found)

    def conversations(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the conversations of samples, and row offsets; see `ConversationOrder.conversations`."""
        found = self.spans(positions, keep_empty=False)
        return found.documents, found.row_offsets

    def occurrences(self, walks: NDArray[np.int64], documents: NDArray[np.int64]) -> Occurrences:
        """Finds all spans of `documents` in `walks`, sorted by walk; 2 us per walk plus 1 ns per 1,024 documents in it.

        Args:
            walks: int64[num_walks], numbers of added walks.
            documents: int64[num_documents], in ascending order.
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


def with_pairs(pairs: JoinedPairs, call: Callable[[], Result]) -> Result:
    """Calls a kernel; if the kernel needs a pair that is not open, opens the pair and repeats the call."""
    while True:
        try:
            return call()
        except SectionNeeded as needed:
            number = needed.args[0]
        pairs.open(number)  # not within `except`, as errors of `open` would have the kernel error as context


def root_key(seed: int, name: str) -> Key:
    """Returns a key: the first 16 bytes of the SHA-256 of the version of the order, the seed and the name."""
    digest = hashlib.sha256(f"{_ALGORITHM}\0{seed}\0{name}".encode()).digest()
    return Key(int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little"))


def source_key(seed: int, source: str) -> Key:
    """Returns the key from which all permutations of a source are derived."""
    return root_key(seed, f"source {source}")


def mixing_key(seed: int) -> Key:
    """Returns the key from which the permutations of mixing blocks are derived."""
    return root_key(seed, "mixing")
