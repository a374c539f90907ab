"""Runs of documents that come from consecutive records of one file, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.numbers import check_count
from tokenloom.storage.typed_json import MAY_BE_MISSING

UNITS = ("line", "row", "file", "pair")
"""What a record of a file is: a line of text, a row of a table, the whole file, or of a folder a text and its image."""

MOST_RECORDS = 1 << 48
"""Numbers of records and of documents are below, so that sums over a block fit 64 bits."""

_DOCUMENTS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginFile:
    """An input file that documents came from.

    Attributes:
        path: its path or address, as it was named.
        num_bytes: its size.
        version: what changes when the file does, see `InputRecord`; None where it is not known.
        unit: what its records are, one of `UNITS`.
        num_records: records of the file, those that gave no document included; None where it is not known.
    """

    path: str
    num_bytes: int
    version: str | None = field(default=None, metadata=MAY_BE_MISSING)
    unit: str
    num_records: int | None = field(default=None, metadata=MAY_BE_MISSING)

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_count("num_bytes of the file", self.num_bytes)
        if self.num_records is not None:
            check_count("num_records of the file", self.num_records)
        if self.unit not in UNITS:
            message = f"expected a unit out of {', '.join(UNITS)}, found {self.unit!r}"
            raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OriginRuns:
    """Consecutive documents, as runs of those that come from consecutive records of one file.

    Attributes:
        file_numbers: int32[num_runs], number of the file; -1 for documents whose origin is not known.
        first_records: int64[num_runs], record of the first document, from 1; 0 where it is not known.
        num_documents: int64[num_runs], documents of the run.
    """

    file_numbers: NDArray[np.int32]
    first_records: NDArray[np.int64]
    num_documents: NDArray[np.int64]

    def __len__(self) -> int:
        """The number of runs."""
        return len(self.num_documents)

    @staticmethod
    def unknown(num_documents: int) -> OriginRuns:
        """Returns the runs of documents whose origin is not known: one, or none of no documents."""
        return OriginRuns.of([(-1, 0, num_documents)] if num_documents else [])

    @staticmethod
    def of(runs: Sequence[tuple[int, int, int]]) -> OriginRuns:
        """Returns runs from a file number, a first record and a number of documents each.

        Example:
            >>> OriginRuns.of([(0, 1, 3), (1, 7, 1)]).first_records.tolist()
            [1, 7]
        """
        columns = np.array(runs, dtype=np.int64).reshape(-1, 3)
        return OriginRuns(
            file_numbers=columns[:, 0].astype(np.int32),
            first_records=np.ascontiguousarray(columns[:, 1]),
            num_documents=np.ascontiguousarray(columns[:, 2]),
        )

    @staticmethod
    def concatenated(parts: Sequence[OriginRuns]) -> OriginRuns:
        """Returns the runs of all parts, in order, none of them joined."""
        return OriginRuns(
            file_numbers=np.concatenate([np.empty(0, np.int32), *(part.file_numbers for part in parts)]),
            first_records=np.concatenate([np.empty(0, np.int64), *(part.first_records for part in parts)]),
            num_documents=np.concatenate([np.empty(0, np.int64), *(part.num_documents for part in parts)]),
        )

    def joined(self) -> OriginRuns:
        """Returns the same documents in the fewest runs, none of them empty."""
        held = self if self.num_documents.all() else self._taken(np.flatnonzero(self.num_documents))
        files, firsts, counts = held.file_numbers, held.first_records, held.num_documents
        goes_on = (files[1:] == files[:-1]) & ((files[1:] < 0) | (firsts[1:] == firsts[:-1] + counts[:-1]))
        if not goes_on.any():
            return held
        starts = np.flatnonzero(np.concatenate([[True], ~goes_on]))
        return OriginRuns(
            file_numbers=files[starts],
            first_records=firsts[starts],
            num_documents=np.add.reduceat(counts, starts),
        )

    def renumbered(self, numbers: NDArray[np.int32]) -> OriginRuns:
        """Returns the same runs with other numbers of files.

        Args:
            numbers: int32[num_files], the new number of each file.
        """
        known = self.file_numbers >= 0
        files = np.full(len(self), -1, dtype=np.int32)
        files[known] = numbers[self.file_numbers[known]]
        return OriginRuns(file_numbers=files, first_records=self.first_records, num_documents=self.num_documents)

    def pieces(self, num_documents: int = _DOCUMENTS_AT_ONCE) -> Iterator[OriginRuns]:
        """Yields the same in pieces of so many documents, the last one of fewer; runs are cut where need be."""
        ends = np.cumsum(self.num_documents)
        total = int(ends[-1]) if len(ends) else 0
        for start in range(0, total, num_documents):
            yield self._clipped(ends, start, min(start + num_documents, total))

    def clipped(self, start: int, stop: int) -> OriginRuns:
        """Returns the runs of documents [start, stop), counted from the first of these; O(runs)."""
        return self._clipped(np.cumsum(self.num_documents), start, stop)

    def _clipped(self, ends: NDArray[np.int64], start: int, stop: int) -> OriginRuns:
        first, last = np.searchsorted(ends, [start, stop - 1], side="right").tolist() if start < stop else (0, -1)
        chosen = slice(first, last + 1)
        files, firsts, counts = self.file_numbers[chosen], self.first_records[chosen], self.num_documents[chosen]
        if len(counts):
            before = start - int(ends[first] - counts[0])
            behind = int(ends[last]) - stop
            if before or behind:
                firsts, counts = firsts.copy(), counts.copy()
                firsts[0] += before if files[0] >= 0 else 0
                counts[0] -= before
                counts[-1] -= behind
        return OriginRuns(file_numbers=files, first_records=firsts, num_documents=counts)

    def select(self, mask: NDArray[np.bool_]) -> OriginRuns:
        """Returns the runs of some of the documents; those around a document that is left out are not joined.

        Args:
            mask: bool[documents of all runs], whether each is kept.
        """
        held = np.flatnonzero(self.num_documents)  # an empty run begins where another one does
        bounds = (np.cumsum(self.num_documents) - self.num_documents)[held]
        is_edge = np.concatenate([[False], mask[1:] != mask[:-1]])[: len(mask)]
        is_edge[bounds] = True
        edges = np.flatnonzero(is_edge)
        is_taken = mask[edges]
        begins, ends = edges[is_taken], np.append(edges[1:], len(mask))[is_taken]
        numbers = np.searchsorted(bounds, begins, side="right") - 1
        runs = held[numbers]
        files = self.file_numbers[runs]
        return OriginRuns(
            file_numbers=files,
            first_records=self.first_records[runs] + np.where(files < 0, 0, begins - bounds[numbers]),
            num_documents=ends - begins,
        )

    def _taken(self, numbers: NDArray[np.int64]) -> OriginRuns:
        return OriginRuns(
            file_numbers=self.file_numbers[numbers],
            first_records=self.first_records[numbers],
            num_documents=self.num_documents[numbers],
        )
