"""`JoinedPairs`: several pairs as one low-level dataset; a pair is opened on the first access to its sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import SourceDocuments, TokenSections
from tokenloom.errors import DatasetFormatError
from tokenloom.forks import READING_LOCK
from tokenloom.indexed.dataset import IndexedDataset, mapped_bytes
from tokenloom.indexed.layout import DType, bin_path
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.settings import ObjectStorageSettings

Int64s = NDArray[np.int64]

Lengths = Callable[[int, IndexedDataset], NDArray[np.int32]]
"""`lengths(number, pair)` returns the length, int32[num_sequences], of each sequence of the pair at index `number`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairToJoin:
    """A pair to open later; `check(pair)` must raise if the opened pair is not the expected pair."""

    prefix: str
    num_sequences: int
    check: Callable[[IndexedDataset], None]


class JoinedPairs:
    """A low-level dataset of the sequences of several pairs, in order. Thread-safe and fork-safe; not picklable."""

    def __init__(
        self,
        pairs: Sequence[PairToJoin],
        *,
        dtype: np.dtype[Any],
        mmap: bool = True,
        object_storage: ObjectStorageSettings | None = None,
        beside: Sequence[str] = (),
    ) -> None:
        self.pairs: list[PairToJoin] = list(pairs)
        self.beside: Sequence[str] = beside
        """Prefixes of all pairs of the run. If a pair lacks a column, another pair provides the dtype of the column."""
        self.dtype = dtype
        self.mmap = mmap
        self._object_storage = object_storage
        counts = [pair.num_sequences for pair in self.pairs]
        self._firsts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.array(counts, dtype=np.int64))])
        self._opened: dict[int, IndexedDataset] = {}
        self._receivers: list[Callable[[int, IndexedDataset], None]] = []
        self.sections: TokenSections | None = None
        """The mapped tokens of open pairs, for kernels; None if tokens are not mapped."""
        if mmap and not any(is_remote(pair.prefix) for pair in self.pairs):
            self.sections = TokenSections(self._firsts.tolist(), DType.code_from_dtype(dtype))

    def __len__(self) -> int:
        return int(self._firsts[-1])

    @property
    def num_open(self) -> int:
        return len(self._opened)

    @property
    def remote_paths(self) -> list[str]:
        """The addresses of the `.bin` objects; empty for local data."""
        return [bin_path(pair.prefix) for pair in self.pairs if is_remote(pair.prefix)]

    def connect(self, documents: SourceDocuments, lengths: Lengths | None = None) -> None:
        """Passes the lengths of each pair (from `lengths`; default: in tokens) to `documents` as soon as it is open."""

        def receive(number: int, pair: IndexedDataset) -> None:
            told = pair.sequence_lengths if lengths is None else lengths(number, pair)
            try:
                documents.open(number, told)
            except IndexError as error:
                pair.check_index()
                message, hint = f"`{pair.idx_path}`: {error}", "write the pair again: it is damaged or was replaced"
                raise DatasetFormatError(message, hint=hint) from error

        self.on_open(receive)

    def on_open(self, receive: Callable[[int, IndexedDataset], None]) -> None:
        """Calls `receive(index of the pair, pair)` now for each open pair, and later for each pair that is opened."""
        with READING_LOCK:
            self._receivers.append(receive)
            for number, pair in self._opened.items():
                receive(number, pair)

    def open(self, number: int) -> IndexedDataset:
        """Returns the pair with index `number`; the first call opens the pair."""
        if (pair := self._opened.get(number)) is not None:
            return pair
        meant = self.pairs[number]
        pair = IndexedDataset(meant.prefix, mmap=self.mmap, object_storage=self._object_storage)
        meant.check(pair)
        with READING_LOCK:
            if (known := self._opened.get(number)) is not None:  # another thread opened it
                return known
            for receive in self._receivers:
                receive(number, pair)
            if self.sections is not None:
                data = mapped_bytes(pair.byte_source)
                assert data is not None  # `sections` exists only for mapped local pairs
                self.sections.open(number, data, pair.index.sequence_pointers)
            self._opened[number] = pair
            return pair

    def gather(self, sequences: Int64s, starts: Int64s, lengths: Int64s) -> NDArray[Any]:
        """Returns the concatenated tokens of many spans: dtype[sum(lengths)]; see `IndexedDataset.gather`."""
        groups = list(self._by_pair(sequences))
        if len(groups) == 1:
            number, _ = groups[0]
            found: NDArray[Any] = self.open(number).gather(sequences - self._firsts[number], starts, lengths)
            return found
        out = np.empty(int(lengths.sum()), dtype=self.dtype)
        begins = np.cumsum(lengths) - lengths
        for number, chosen in groups:
            own = sequences[chosen] - self._firsts[number]
            part = self.open(number).gather(own, starts[chosen], lengths[chosen])
            ends = np.cumsum(lengths[chosen])
            for row, end in zip(chosen.tolist(), ends.tolist(), strict=True):
                size = int(lengths[row])
                out[int(begins[row]) : int(begins[row]) + size] = part[end - size : end]
        return out

    def get(self, idx: int, offset: int = 0, length: int | None = None) -> NDArray[Any]:
        """Returns tokens [offset, offset + length) of one sequence; all tokens from `offset` on if `length` is None."""
        number = self.holding(idx)
        tokens: NDArray[Any] = self.open(number).get(int(idx) - int(self._firsts[number]), offset, length)
        return tokens

    def __getitem__(self, idx: int) -> NDArray[Any]:
        return self.get(idx)

    def will_need(self, sequences: Int64s, starts: Int64s, lengths: Int64s, *, block_bytes: int | None = None) -> None:
        """Starts fetching spans that will be read; see `IndexedDataset.will_need`."""
        for number, chosen in self._by_pair(sequences):
            pair = self.open(number)
            if pair.remote_paths:
                own = sequences[chosen] - self._firsts[number]
                pair.will_need(own, starts[chosen], lengths[chosen], block_bytes=block_bytes)

    def holding(self, sequence: int) -> int:
        """Returns the index of the pair that contains a sequence."""
        if not 0 <= sequence < len(self):
            raise IndexError(f"sequence {sequence} out of range: there are {len(self)} sequences")
        return int(np.searchsorted(self._firsts, sequence, side="right")) - 1

    def first_of(self, number: int) -> int:
        """Returns the index of the first sequence of the pair with index `number`."""
        return int(self._firsts[number])

    def numbers(self, sequences: Int64s) -> Int64s:
        """Returns the pair index, int64[count], of each sequence."""
        found: Int64s = np.searchsorted(self._firsts, sequences, side="right") - 1
        return found

    def _by_pair(self, sequences: Int64s) -> Iterator[tuple[int, Int64s]]:
        """Yields, for each pair, (index of the pair, places of its sequences in `sequences`: int64[count])."""
        if not len(sequences):
            return
        numbers = self.numbers(sequences)
        for number in np.unique(numbers).tolist():
            yield number, np.flatnonzero(numbers == number)
