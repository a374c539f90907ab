"""Origins: the column that records, for each document of a pair, its input file and its record number in that file.

Documents from consecutive records of one file form a run, which is one row of the column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.columns import Column, ColumnFacts, ColumnWriter, WrittenColumn, open_column, written_column
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import check_choice
from tokenloom.numbers import check_count
from tokenloom.storage.json_files import MAY_BE_MISSING, UnusableJsonError, from_members, members_of
from tokenloom.storage.settings import ObjectStorageSettings

UNITS = ("line", "row", "file", "pair")
"""Kinds of records: a line of text, a row of a table, a whole file, a pair of text and image in a folder."""

_MOST_RECORDS = 1 << 48  # the largest valid number of a record

RUNS = np.dtype([("file", np.int32), ("first_record", np.int64), ("num_documents", np.int64)])
"""The dtype of a run. Records are numbered from 1. If the origin is unknown, `file` is -1 and `first_record` is 0."""

Runs = NDArray[np.void]
"""RUNS[num_runs]: runs in the order of their documents; together, they cover a range of documents without gaps."""

NAME = "origins"
"""Name of the column. A row is (first document, file, first record) of a run, which ends where the next run starts."""

_AT_ONCE = 1 << 18  # maximum number of runs or documents per step


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginFile:
    """The record of an input file of a pair.

    Attributes:
        path, num_bytes, version: see `InputRecord`.
        unit: one of `UNITS`.
        num_records: number of records, with or without a document; None if unknown. Ignored by `==`.
    """

    path: str
    num_bytes: int
    version: str | None = field(default=None, metadata=MAY_BE_MISSING)
    unit: str
    num_records: int | None = field(default=None, compare=False, metadata=MAY_BE_MISSING)

    def __post_init__(self) -> None:
        check_count("num_bytes of the file", self.num_bytes)
        if self.num_records is not None:
            check_count("num_records of the file", self.num_records)
        check_choice("unit", self.unit, UNITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _About:
    files: tuple[OriginFile, ...]


def joined_runs(runs: Runs) -> Runs:
    """Joins adjacent runs if the records of the second continue those of the first; drops runs without documents."""
    held = runs[runs["num_documents"] > 0]
    files, firsts, counts = held["file"], held["first_record"], held["num_documents"]
    goes_on = (files[1:] == files[:-1]) & ((files[1:] < 0) | (firsts[1:] == firsts[:-1] + counts[:-1]))
    if not goes_on.any():
        return held
    starts = np.flatnonzero(np.concatenate([[True], ~goes_on]))
    found = held[starts]
    found["num_documents"] = np.add.reduceat(counts, starts)
    return found


def selected_runs(runs: Runs, mask: NDArray[np.bool_]) -> Runs:
    """Cuts `runs` to the documents that are True in `mask`, bool[num_documents]; does not join the resulting runs."""
    held = runs[runs["num_documents"] > 0]  # an empty run begins at the same document as the next run
    bounds = np.cumsum(held["num_documents"]) - held["num_documents"]
    is_edge = np.concatenate([[False], mask[1:] != mask[:-1]])[: len(mask)]
    is_edge[bounds] = True
    edges = np.flatnonzero(is_edge)
    is_taken = mask[edges]
    begins, ends = edges[is_taken], np.append(edges[1:], len(mask))[is_taken]
    numbers = np.searchsorted(bounds, begins, side="right") - 1
    found = held[numbers]
    found["first_record"] += np.where(found["file"] < 0, 0, begins - bounds[numbers])
    found["num_documents"] = ends - begins
    return found


def _rows_of(runs: Runs, first: int) -> NDArray[np.int64]:
    """Returns runs as rows of the column (see `NAME`), int64[num_runs, 3]; `first` is the first document's index."""
    firsts = np.cumsum(runs["num_documents"]) - runs["num_documents"] + first
    records = np.where(runs["file"] < 0, 0, runs["first_record"])
    return np.column_stack([firsts, runs["file"].astype(np.int64), records])


class Origins:
    """The origin of each document of a pair. Thread-safe; not picklable.

    Each method checks only the rows that it reads; verifying or joining the pair checks all rows of the column.

    Example:
        >>> import numpy as np
        >>> file = OriginFile(path="a.jsonl", num_bytes=100, unit="line")
        >>> origins = Origins.from_runs([file], [np.array([(0, 1, 2), (0, 4, 3)], dtype=RUNS)])
        >>> [numbers.tolist() for numbers in origins.locate(np.array([1, 2]))]
        [[0, 0], [2, 4]]
        >>> origins.documents_of(0, 5).tolist()
        [3]

    Attributes:
        num_documents: number of documents of the pair.
        files: the input files; a file may have no documents.
    """

    def __init__(
        self, files: Iterable[OriginFile], rows: NDArray[np.int64], num_documents: int, *, column: Column | None = None
    ) -> None:
        self.files: tuple[OriginFile, ...] = tuple(files)
        self.num_documents = num_documents
        self._rows = rows
        self._column = column

    @property
    def num_known(self) -> int:
        """The number of documents whose origin is known; O(number of runs)."""
        return sum(int(runs["num_documents"][runs["file"] >= 0].sum()) for runs in self.pieces())

    @staticmethod
    def from_runs(files: Iterable[OriginFile], runs: Iterable[Runs]) -> Origins:
        """Makes origins in memory from the runs of all documents of a pair, in document order."""
        joined = joined_runs(np.concatenate([np.empty(0, dtype=RUNS), *runs]))
        return Origins(files, _rows_of(joined, 0), int(joined["num_documents"].sum()))

    def pieces(self, documents: range | None = None) -> Iterator[Runs]:
        """Yields the runs of records (`RUNS`) of a range of documents (default: all), up to 2**18 runs per array."""
        chosen = range(self.num_documents) if documents is None else documents
        if not len(chosen):
            return
        first, last = self._runs_of(np.array([chosen.start, chosen.stop - 1])).tolist()
        for begin in range(first, last + 1, _AT_ONCE):
            numbers = np.arange(begin, min(begin + _AT_ONCE, last + 1))
            rows, ends = self._take(numbers)
            firsts, files, records = rows.T
            starts = np.maximum(firsts, chosen.start)
            runs = np.empty(len(rows), dtype=RUNS)
            runs["file"] = files
            runs["first_record"] = records + np.where(files < 0, 0, starts - firsts)
            runs["num_documents"] = np.minimum(ends, chosen.stop) - starts
            yield runs

    def locate(self, documents: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the origins of `documents`, int64[count] in any order; O(log(number of runs)) per document.

        The result is, for each document, the index of its file in `files`, int32[count], and the number of its record
        in that file, int64[count], counted from 1. If the origin is unknown, the index is -1 and the number is 0.

        Raises:
            ConfigError: a document is out of range.
            DatasetFormatError: the rows of these documents are damaged.
        """
        asked = np.asarray(documents, dtype=np.int64)
        if len(asked) and not 0 <= int(asked.min()) <= int(asked.max()) < self.num_documents:
            raise ConfigError(f"documents {asked.min()} to {asked.max()} out of range: only {self.num_documents} exist")
        rows, _ = self._take(self._runs_of(asked))
        firsts, files, records = rows.T
        return files.astype(np.int32), np.where(files < 0, 0, records + asked - firsts)

    def documents_of(self, file: int, record: int) -> NDArray[np.int64]:
        """Returns the ascending indices, int64[count], of the documents made from one record; O(number of runs).

        `file` is an index into `files`; `record` is the number of the record in that file, counted from 1. Raises a
        `ConfigError` if `file` is out of range, or a `DatasetFormatError` if the rows of these documents are damaged.
        """
        if not 0 <= file < len(self.files):
            raise ConfigError(f"file {file} out of range: there are {len(self.files)} files")
        found = [np.empty(0, dtype=np.int64)]
        for begin in range(0, len(self._rows), _AT_ONCE):
            rows, behind = self._rows[begin : begin + _AT_ONCE], self._rows[begin + 1 : begin + _AT_ONCE + 1]
            ends = np.append(behind[:, 0], self.num_documents)[: len(rows)]
            firsts, files, records = rows.T
            documents = firsts + record - records
            holds = (files == file) & (records <= record) & (documents < ends)
            self._take(begin + np.flatnonzero(holds))  # validates the rows
            found.append(documents[holds])
        return np.concatenate(found)

    def _runs_of(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Finds the run index of each document by bisection; `np.searchsorted` would copy the column."""
        starts = self._rows[:, 0]
        low, high = np.zeros(len(documents), dtype=np.int64), np.full(len(documents), len(starts), dtype=np.int64)
        for _ in range(len(starts).bit_length()):
            middle = (low + high) // 2
            is_right = starts[middle] <= documents
            low, high = np.where(is_right, middle, low), np.where(is_right, high, middle)
        return low

    def _take(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns rows `numbers` of the column, int64[count, 3], and the document after each run, int64[count]."""
        rows, behind = self._rows[numbers], np.minimum(numbers + 1, len(self._rows) - 1)
        ends = np.where(numbers + 1 < len(self._rows), self._rows[behind, 0], self.num_documents)
        if self._column is None:
            return rows, ends
        self._column.check()
        firsts, files, records = rows.T
        counts = ends - firsts
        wrong = (files < -1) | (files >= len(self.files)) | (counts < 1) | (counts > self.num_documents)
        wrong |= np.where(files < 0, records != 0, (records < 1) | (records > _MOST_RECORDS))
        wrong |= (numbers == 0) & (firsts != 0)
        if wrong.any():
            run = numbers[int(np.argmax(wrong))]
            raise self._column.damaged(expected=f"valid values in row {run}", found=self._rows[run].tolist())
        return rows, ends


OriginsPart = tuple[Origins | None, range, NDArray[np.bool_] | None]
"""From one pair: origins (None: unknown), a range of documents, and a mask over all documents (None: keep all)."""


def read_origins(pair: IndexedDataset | str, *, object_storage: ObjectStorageSettings | None = None) -> Origins | None:
    """Opens the origins of a pair, memory-mapped; returns None if the pair has no column `origins`.

    Raises:
        DatasetNotFoundError: the pair does not exist.
        DatasetFormatError: the column is damaged, or belongs to another pair.
    """
    if not isinstance(pair, IndexedDataset):
        pair = IndexedDataset(pair, object_storage=object_storage)
    if (column := open_column(pair, NAME)) is None:
        return None
    try:
        files = from_members(_About, dict(column.facts.about)).files
    except UnusableJsonError as error:
        raise column.damaged(expected="a description with files", found=str(error).removeprefix(": ")) from error
    if len(column.data) == 0 and pair.num_documents:
        raise column.damaged(expected=f"runs of {pair.num_documents} documents", found="none")
    return Origins(files, column.data, pair.num_documents, column=column)


def write_origins(
    prefix: str, files: Collection[OriginFile], runs: Iterable[Runs], *, durable: bool = True
) -> WrittenColumn:
    """Writes the origins of a pair from the runs of all its documents, in order. Reading `runs` may add to `files`."""
    facts = ColumnFacts(kind="runs", dtype="int64", shape=(0, 3), made_by="tokenloom")
    writer = ColumnWriter(prefix, NAME, facts, durable=durable)

    def rows() -> Iterator[NDArray[np.int64]]:
        first, last = 0, np.empty(0, dtype=RUNS)  # the next part may continue the last run
        for part in runs:
            joined = joined_runs(np.concatenate([last, part]))
            ready, last = joined[:-1], joined[-1:]
            yield _rows_of(ready, first)
            first += int(ready["num_documents"].sum())
        yield _rows_of(last, first)
        writer.facts = replace(facts, about=members_of(_About(files=tuple(files))))

    return written_column(writer, rows())


def joined_origins(parts: Iterable[OriginsPart]) -> tuple[Collection[OriginFile], Iterator[Runs]]:
    """Returns `files` and `runs` for `write_origins` from parts of pairs; `files` is complete after the last run.

    A file that several parts list occurs once in `files`, with the largest `num_records` of these parts.
    """
    files: list[OriginFile] = []
    places: dict[OriginFile, int] = {}

    def number_of(file: OriginFile) -> int:
        number = places.setdefault(file, len(files))
        if number == len(files):
            files.append(file)
        elif (files[number].num_records or 0) < (file.num_records or 0):
            files[number] = file
        return number

    def all_runs() -> Iterator[Runs]:
        for origins, documents, mask in parts:
            numbers = np.array([*map(number_of, () if origins is None else origins.files), -1], dtype=np.int32)
            for begin in range(documents.start, documents.stop, _AT_ONCE):
                chosen = range(begin, min(begin + _AT_ONCE, documents.stop))
                if origins is None:
                    runs = np.array([(-1, 0, len(chosen))], dtype=RUNS)
                else:
                    runs = np.concatenate(list(origins.pieces(chosen)))
                    runs["file"] = numbers[runs["file"]]
                yield runs if mask is None else selected_runs(runs, mask[chosen.start : chosen.stop])

    return files, all_runs()
