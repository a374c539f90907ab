"""Which record of which input file each document of a pair was made of: the column `origins`, of runs.

Documents that come from consecutive records of one file are a run, a row of the column: a plain JSON-lines file is one
run. With every second record left out at random, a document takes 12 bytes, with every hundredth a fourth of one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.columns import Column, ColumnWriter, WrittenColumn, open_column, written_column
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.numbers import check_count
from tokenloom.storage.json_files import MAY_BE_MISSING, UnusableJsonError, from_members, members_of
from tokenloom.storage.settings import ObjectStorageSettings

UNITS = ("line", "row", "file", "pair")
"""What a record of a file is: a line of text, a row of a table, the whole file, or of a folder a text and its image."""

MOST_RECORDS = 1 << 48
"""Numbers of records and of documents are below."""

RUNS = np.dtype([("file", np.int32), ("first_record", np.int64), ("num_documents", np.int64)])
"""Consecutive documents that come from consecutive records of a file, from 1 on; -1 and 0 where these are not known."""

Runs = NDArray[np.void]
"""RUNS[num_runs], consecutive documents."""

NAME = "origins"
"""Name of the column."""

_DOCUMENT, _FILE, _RECORD = range(3)
"""The values of a row: the first document of a run, which ends where the next one begins, its file, its record."""

_AT_ONCE = 1 << 18
"""Runs or documents that are looked at together."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _About:
    """The files that documents came from."""

    files: tuple[OriginFile, ...]


def joined_runs(runs: Runs) -> Runs:
    """Returns the same documents in the fewest runs, none of them empty."""
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
    """Returns the runs of some of the documents; those around a document that is left out are not joined.

    Args:
        runs: those of all documents.
        mask: bool[documents of all runs], whether each is kept.
    """
    held = runs[runs["num_documents"] > 0]  # an empty run begins where another one does
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


class _Rows:
    """Runs as rows of the column, int64[…, 3], joined where they go on; counts their documents on the way."""

    def __init__(self, runs: Iterable[Runs]) -> None:
        self._runs = runs
        self.num_documents: int = 0

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        last = np.empty(0, dtype=RUNS)  # the next one may go on from it
        for part in self._runs:
            runs = joined_runs(np.concatenate([last, part]))
            yield self._rows_of(runs[:-1])
            last = runs[-1:]
        yield self._rows_of(last)

    def _rows_of(self, runs: Runs) -> NDArray[np.int64]:
        firsts = np.cumsum(runs["num_documents"]) - runs["num_documents"] + self.num_documents
        self.num_documents += int(runs["num_documents"].sum())
        records = np.where(runs["file"] < 0, 0, runs["first_record"])
        return np.column_stack([firsts, runs["file"].astype(np.int64), records])


class Origins:
    """Where the documents of a pair come from. Safe from several threads; not picklable (owners open it again).

    What is asked for is compared with the bounds of what there can be; all of it is compared with its checksum where
    pairs are verified or joined.

    Example:
        >>> import numpy as np
        >>> file = OriginFile(path="a.jsonl", num_bytes=100, unit="line")
        >>> origins = Origins.from_runs([file], [np.array([(0, 1, 2), (0, 4, 3)], dtype=RUNS)])
        >>> [numbers.tolist() for numbers in origins.locate(np.array([1, 2]))]
        [[0, 0], [2, 4]]
        >>> origins.documents_of(0, 5).tolist()
        [3]

    Attributes:
        num_documents: number of documents of the pair, entries of its document index.
        files: the input files, in the order of their numbers; some may have given no document.
    """

    def __init__(
        self,
        files: Collection[OriginFile],
        rows: NDArray[np.int64],
        num_documents: int,
        *,
        column: Column | None = None,
    ) -> None:
        self.files: tuple[OriginFile, ...] = tuple(files)
        self.num_documents = num_documents
        self._rows = rows
        self._column = column

    @property
    def num_known(self) -> int:
        """Documents whose origin is known; O(runs)."""
        return sum(int(runs["num_documents"][runs["file"] >= 0].sum()) for runs in self.pieces())

    @staticmethod
    def from_runs(files: Collection[OriginFile], runs: Iterable[Runs]) -> Origins:
        """Returns origins in memory.

        Args:
            files: the files that runs are of.
            runs: all documents, in order; adjacent runs are joined, empty ones left out.
        """
        rows = _Rows(runs)
        return Origins(files, np.concatenate(list(rows)), rows.num_documents)

    def pieces(self, documents: range | None = None) -> Iterator[Runs]:
        """Yields the runs of consecutive documents, some 260,000 of them at once.

        Args:
            documents: which; None for all.

        Raises:
            DatasetFormatError: they are damaged.
        """
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
        """Returns where documents come from; O(log runs) each.

        Args:
            documents: int64[num_asked], in any order.

        Returns:
            int32[num_asked], the numbers of their files in `files`, and int64[num_asked], records of these, from 1;
            -1 and 0 where that is not known.

        Raises:
            ConfigError: there is no such document.
            DatasetFormatError: what they need of the file is damaged.
        """
        asked = np.asarray(documents, dtype=np.int64)
        if len(asked) and not 0 <= int(asked.min()) <= int(asked.max()) < self.num_documents:
            message = f"expected documents from 0 to {self.num_documents - 1}, found {asked.min()} to {asked.max()}"
            raise ConfigError(message)
        rows, _ = self._take(self._runs_of(asked))
        firsts, files, records = rows.T
        return files.astype(np.int32), np.where(files < 0, 0, records + asked - firsts)

    def documents_of(self, file: int, record: int) -> NDArray[np.int64]:
        """Returns the documents that were made of a record, rising; none if it gave none. O(runs).

        Args:
            file: number of the file in `files`.
            record: number of its record, from 1.

        Raises:
            ConfigError: there is no such file.
            DatasetFormatError: what it needs of the file is damaged.
        """
        if not 0 <= file < len(self.files):
            message = f"expected a file from 0 to {len(self.files) - 1}, found {file}"
            raise ConfigError(message)
        found = [np.empty(0, dtype=np.int64)]
        for begin in range(0, len(self._rows), _AT_ONCE):
            rows, behind = self._rows[begin : begin + _AT_ONCE], self._rows[begin + 1 : begin + _AT_ONCE + 1]
            ends = np.append(behind[:, _DOCUMENT], self.num_documents)[: len(rows)]
            firsts, files, records = rows.T
            documents = firsts + record - records
            holds = (files == file) & (records <= record) & (documents < ends)
            self._take(begin + np.flatnonzero(holds))  # are they sound?
            found.append(documents[holds])
        return np.concatenate(found)

    def _runs_of(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the number of the run of each document, by halving: `np.searchsorted` would copy the column."""
        starts = self._rows[:, _DOCUMENT]
        low, high = np.zeros(len(documents), dtype=np.int64), np.full(len(documents), len(starts), dtype=np.int64)
        for _ in range(len(starts).bit_length()):
            middle = (low + high) // 2
            is_right = starts[middle] <= documents
            low, high = np.where(is_right, middle, low), np.where(is_right, high, middle)
        return low

    def _take(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns runs, and one past the last document of each: int64[count, 3], int64[count]."""
        rows, behind = self._rows[numbers], np.minimum(numbers + 1, len(self._rows) - 1)
        ends = np.where(numbers + 1 < len(self._rows), self._rows[behind, _DOCUMENT], self.num_documents)
        if self._column is None:
            return rows, ends
        self._column.check()
        firsts, files, records = rows.T
        counts = ends - firsts
        wrong = (files < -1) | (files >= len(self.files)) | (counts < 1) | (counts > self.num_documents)
        wrong |= np.where(files < 0, records != 0, (records < 1) | (records > MOST_RECORDS))
        wrong |= (numbers == 0) & (firsts != 0)
        if wrong.any():
            run = numbers[int(np.argmax(wrong))]
            raise self._column.damaged(expected=f"documents and records of a file as run {run}", found="others")
        return rows, ends


OriginsPart = tuple[Origins | None, range, NDArray[np.bool_] | None]
"""Origins of a pair, None where they are not known; documents of it; and which documents of the pair are taken:
bool[num_documents], None for all."""


def read_origins(pair: IndexedDataset | str, *, object_storage: ObjectStorageSettings | None = None) -> Origins | None:
    """Returns the origins beside a pair, mapped; None if there are none. Those in object storage come as a local copy.

    Args:
        pair: the pair, or its prefix.
        object_storage: settings of object storage, where a prefix is given.

    Raises:
        DatasetNotFoundError: there is no such pair.
        DatasetFormatError: they are damaged, or belong to other data.
        StorageError: a store denies access, or does not answer.
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
    """Writes the origins of a pair from runs as they come, which are not kept.

    Returns the file, which has no name yet, and what it is.

    Args:
        prefix: prefix of the pair.
        files: the files that runs are of; more may be there with each run.
        runs: those of all documents, in order.
        durable: whether it survives a loss of power once it is published.
    """
    writer = ColumnWriter(prefix, NAME, kind="runs", dtype=np.int64, made_by="tokenloom", durable=durable)

    def rows() -> Iterator[NDArray[np.int64]]:
        yield from _Rows(runs)
        writer.about = members_of(_About(files=tuple(files)))

    return written_column(writer, rows())


def joined_origins(parts: Iterable[OriginsPart]) -> tuple[Collection[OriginFile], Iterator[Runs]]:
    """Returns what `write_origins` takes for documents of many pairs, in order, as those of one; runs pass in pieces.

    Files are the same if path, size, version and unit are. Of several numbers of records, the largest counts.
    """
    files: dict[tuple[str, int, str | None, str], OriginFile] = {}
    places: dict[tuple[str, int, str | None, str], int] = {}

    def numbers_of(table: Sequence[OriginFile]) -> NDArray[np.int32]:
        """Returns the numbers of files among all: int32[num_files]."""
        numbers = np.empty(len(table), dtype=np.int32)
        for number, file in enumerate(table):
            key = file.path, file.num_bytes, file.version, file.unit
            numbers[number] = places.setdefault(key, len(places))
            known = files.setdefault(key, file)
            if (known.num_records or 0) < (file.num_records or 0):
                files[key] = replace(known, num_records=file.num_records)
        return numbers

    def all_runs() -> Iterator[Runs]:
        for origins, documents, mask in parts:
            numbers = None if origins is None else np.append(numbers_of(origins.files), np.int32(-1))
            for begin in range(documents.start, documents.stop, _AT_ONCE):
                chosen = range(begin, min(begin + _AT_ONCE, documents.stop))
                runs = np.array([(-1, 0, len(chosen))], dtype=RUNS)
                if origins is not None and numbers is not None:
                    runs = np.concatenate(list(origins.pieces(chosen)))
                    runs["file"] = numbers[runs["file"]]
                yield runs if mask is None else selected_runs(runs, mask[chosen.start : chosen.stop])

    return files.values(), all_runs()
