"""Orders of spans that are computed, and their root keys: windows or packs of the walks through a source.

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

_ALGORITHM = "tokenloom order 1"
"""Names the version of the order: another one gives other keys throughout."""

_NO_END = 1 << 62
"""Numbers of samples are those of walks and windows: there are gaps, and no last one."""

_MOST_THREADS = 16
_WALKS_PER_THREAD = 128
"""A walk takes 1 us or more, a thread 50 us to begin."""


class Occurrences(NamedTuple):
    """Where documents are read in walks: int64[num_occurrences] each.

    Attributes:
        walks: numbers of the walks.
        documents: numbers of the documents.
        windows: samples of the walks.
        starts: first tokens, from the start of the document.
        lengths: numbers of tokens.
        slots: tokens of the sample before them.
    """

    walks: NDArray[np.int64]
    documents: NDArray[np.int64]
    windows: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    slots: NDArray[np.int64]


class WalkOrder:
    """A `SpanOrder` whose samples have the numbers `walk << WINDOW_BITS | window`. Nothing is built or stored.

    Pairs are opened when a sample needs them. Spans of denied documents have the number -1 - document.

    Args:
        pairs: the pairs of the source.
        reader: what `make_walk_reader` makes over their documents.
        identity: what tells this order from others.
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
        """Adds walks over the same pairs, or says the same again.

        Args:
            first_walk: the first of them; they end where others begin.
            first_pair, last_pair: the pairs; the last is one past them.
            num_windows: windows of a walk.
            part: what they are of a pass that windows of several lengths share; packs have their passes alone.
        """
        self._reader.add_walks(first_walk, first_pair, last_pair, num_windows, part)

    def check(self) -> None:
        """Does nothing: the kernels look at the files that they read."""

    def verify(self) -> list[str]:
        """Returns nothing: no order is stored that could differ."""
        return []

    def native_reader(self) -> WalkReader | PackWalkReader:
        """Returns what turns numbers into spans, for kernels; raises `SectionNeeded`, see `with_pairs`."""
        return self._reader

    def spans(self, positions: NDArray[np.int64], *, keep_empty: bool) -> SpanBatch:
        """Returns the spans of many samples, see `SpanOrder`."""
        found = with_pairs(self._pairs, lambda: self._reader.spans(positions, keep_empty=keep_empty))
        return SpanBatch(*found)

    def conversations(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the conversations of samples, where documents are whole conversations, see `ConversationOrder`."""
        found = self.spans(positions, keep_empty=False)
        return found.documents, found.row_offsets

    def occurrences(self, walks: NDArray[np.int64], documents: NDArray[np.int64]) -> Occurrences:
        """Returns where documents are read in walks, walk by walk; nothing is kept of a walk.

        Nowhere if they are held out or empty, or lie behind the last whole window. A walk costs 2 us for a few
        documents, and 1 ns for each quarter of the blocks of 256 documents of their pairs.

        Args:
            walks: int64[num_walks], numbers of walks that were added.
            documents: int64[num_documents], rising.
        """
        with_pairs(self._pairs, lambda: self._reader.occurrences(walks[:0], documents))  # opens those that are needed
        num_threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS, len(walks) // _WALKS_PER_THREAD)
        if num_threads < 2:
            return Occurrences(*self._reader.occurrences(walks, documents))
        with ThreadPoolExecutor(num_threads) as executor:
            parts = list(
                executor.map(lambda part: self._reader.occurrences(part, documents), np.array_split(walks, num_threads))
            )
        return Occurrences(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def with_pairs(pairs: JoinedPairs, ask: Callable[[], Result]) -> Result:
    """Returns what a kernel says, after opening the pairs that it needs for that.

    Raises:
        DatasetNotFoundError, DatasetFormatError, ChangedFileError: a pair cannot be opened, or is another one.
    """
    while True:
        try:
            return ask()
        except SectionNeeded as needed:
            number = needed.args[0]
        pairs.open(number)  # out here, so that its errors do not show what the kernel raised


def root_key(seed: int, name: str) -> Key:
    """Returns the key of one name: the first 16 bytes of a SHA-256 over the version of the order, seed and name."""
    digest = hashlib.sha256(f"{_ALGORITHM}\0{seed}\0{name}".encode()).digest()
    return Key(int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little"))


def source_key(seed: int, source: str) -> Key:
    """Returns the key from which all permutations of a source are derived."""
    return root_key(seed, f"source {source}")


def mixing_key(seed: int) -> Key:
    """Returns the key from which the permutations of mixing blocks are derived."""
    return root_key(seed, "mixing")
