"""Maps documents of a run to records of input files, and back, using the origins that are stored beside pairs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.forks import cached_property
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import OriginFile, Origins, read_origins
from tokenloom.numbers import quoted
from tokenloom.run.audit.trace import PairRows, checked_documents
from tokenloom.run.lock import Int64s, LockedSource, RunLock
from tokenloom.run.settings import DocumentName
from tokenloom.run.toml_file import did_you_mean
from tokenloom.storage.settings import ObjectStorageSettings

HINT = "make pairs with `tokenloom preprocess`, which writes PREFIX.origins.npy beside each pair"
"""Hint for pairs without origins."""


class _PairOrigins(NamedTuple):
    """A pair's origins and document boundaries; `files`: index in `SourceOrigins.files` per input file, then -1."""

    origins: Origins
    files: NDArray[np.int32]
    boundaries: Int64s


class SourceOrigins:
    """The input file and record of each document of a run. Thread-safe.

    The origins of a pair are opened when first needed and stay open.

    Args:
        data: the lock of the run, or the pairs of some sources.
        object_storage: how to read object storage; None for the defaults.

    Attributes:
        files: input files of opened pairs, without repeats.
        missing: prefixes of opened pairs that have no origins.
    """

    def __init__(self, data: RunLock | PairRows, *, object_storage: ObjectStorageSettings | None = None) -> None:
        self._pairs = data if isinstance(data, PairRows) else PairRows.of_lock(data)
        self._object_storage = object_storage
        self.files: list[OriginFile] = []
        self.missing: list[str] = []
        self._numbers: dict[OriginFile, int] = {}
        self._opened: dict[int, _PairOrigins | None] = {}
        self._opening = threading.Lock()
        self._whole_path = cache(self._path_like)

    @property
    def file_names(self) -> list[str]:
        """The paths of `files` at the time of tokenization."""
        return [file.path for file in self.files]

    def locate(self, source: int, documents: Int64s) -> tuple[NDArray[np.int32], Int64s]:
        """Returns the input file and record of each document of a source.

        Files: int32[count], indices in `files`; -1 if unknown. Records: int64[count], counted from 1; 0 if unknown.

        Raises:
            DatasetFormatError: origins are damaged or belong to other data.
            DatasetNotFoundError, StorageError: a pair is missing or cannot be reached.
        """
        files, records = np.full(len(documents), -1, dtype=np.int32), np.zeros(len(documents), dtype=np.int64)
        pairs, rows = self._pairs.locate(np.full(len(documents), source, dtype=np.int32), documents)
        for pair in np.unique(pairs).tolist():
            if (opened := self._open(pair)) is not None:
                chosen = np.flatnonzero(pairs == pair)
                entries = np.searchsorted(opened.boundaries, rows[chosen], side="right") - 1
                found, records[chosen] = opened.origins.locate(entries)
                files[chosen] = opened.files[found]
        return files, records

    def documents_of(self, path: str, record: int) -> list[tuple[int, int]]:
        """Returns a sorted list of (source, document) for the documents made from a record; opens all pairs of the run.

        Args:
            path: path of the input file at the time of tokenization, or the end of that path, such as
                "crawl/0007.jsonl".
            record: record number, counted from 1.

        Raises:
            ConfigError: no file or several files match `path`; `record` is not in the file; or no pair has origins.
            DatasetFormatError, DatasetNotFoundError, StorageError: see `locate`.
        """
        if not self._by_path:
            raise ConfigError(f"input files unknown: none of {len(self._pairs.prefixes)} pairs records them", hint=HINT)
        whole = self._whole_path(path)
        counts = [each.origins.files[own].num_records for _, each, own in self._by_path[whole]]
        last = None if None in counts else max(count for count in counts if count is not None)
        if record < 1 or (last is not None and record > last):
            known = "numbered from 1" if last is None else f"1 to {last}"
            raise ConfigError(f"record {record} of `{whole}` out of range: records are {known}")
        found = []
        for pair, each, own in self._by_path[whole]:
            source, first = self._pairs.source_of(pair), int(self._pairs.first_documents[pair])
            for entry in each.origins.documents_of(own, record).tolist():
                begin, end = each.boundaries[entry : entry + 2].tolist()
                found += [(source, first + row) for row in range(begin, end)]
        return sorted(set(found))

    def _path_like(self, path: str) -> str:
        """Returns the only input file path that equals `path` or ends with `path`."""
        if path in self._by_path:
            return path
        paths, ending = sorted(self._by_path), "/" + path.removeprefix("./").lstrip("/")
        matching = [each for each in paths if each.endswith(ending)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            message = f"{len(matching)} input files end with {quoted(path)}"
            raise ConfigError(message, hint=f"write more of the path: {' or '.join(matching[:2])}")
        message = f"{quoted(path)} is not one of the {len(paths)} input files of this run"
        hint = f"write an input file, such as {' or '.join(paths[:2])}"
        raise ConfigError(message, hint=f"{hint}; {origins_missing(self.missing)}" if self.missing else hint)

    @cached_property
    def _by_path(self) -> dict[str, list[tuple[int, _PairOrigins, int]]]:
        """{path: [(index of a pair made from the file, the pair's origins, file index in these)]}; opens all pairs."""
        by_path: dict[str, list[tuple[int, _PairOrigins, int]]] = {}
        for pair in range(len(self._pairs.prefixes)):
            if (opened := self._open(pair)) is not None:
                for own, file in enumerate(opened.origins.files):
                    by_path.setdefault(file.path, []).append((pair, opened, own))
        return by_path

    def _open(self, pair: int) -> _PairOrigins | None:
        with self._opening:
            if pair not in self._opened:
                prefix = self._pairs.prefixes[pair]
                opened = IndexedDataset(prefix, object_storage=self._object_storage)
                if (origins := read_origins(opened)) is None:
                    self.missing.append(prefix)
                    self._opened[pair] = None
                else:
                    numbers = [self._numbers.setdefault(file, len(self._numbers)) for file in origins.files]
                    self.files = list(self._numbers)
                    files = np.array([*numbers, -1], dtype=np.int32)
                    self._opened[pair] = _PairOrigins(origins, files, opened.document_indices)
            return self._opened[pair]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDocuments:
    """Documents by source, ascending; `of_records`: those named by a record. For other attributes see `LockedRun`."""

    by_source: tuple[tuple[int, tuple[int, ...]], ...]
    of_records: frozenset[tuple[int, int]]
    empty_records: tuple[str, ...]
    unknown_pairs: tuple[str, ...]


def resolve_names(
    names: Iterable[DocumentName],
    sources: Sequence[LockedSource],
    *,
    object_storage: ObjectStorageSettings | None = None,
) -> NamedDocuments:
    """Resolves names of documents and records to indices of documents."""
    numbers = {source.name: number for number, source in enumerate(sources)}
    pairs = PairRows.of([[(pair.prefix, pair.num_documents) for pair in source.pairs] for source in sources])
    origins = SourceOrigins(pairs, object_storage=object_storage)
    named: set[tuple[int, int]] = set()
    of_records: set[tuple[int, int]] = set()
    empty = []
    for name, number in names:
        if (source := numbers.get(name)) is not None:
            named.add((source, number))
            continue
        try:
            found = origins.documents_of(name, number)
        except ConfigError as error:
            message = f"`{name}:{number}`: {error.message}"
            raise ConfigError(message, hint=did_you_mean(name, numbers) or error.hint) from error
        of_records.update(found)
        if not found:
            empty.append(f"{name}:{number}")
    groups = groupby(sorted(named | of_records), key=itemgetter(0))
    by_source = tuple((source, tuple(document for _, document in chosen)) for source, chosen in groups)
    for source, chosen in by_source:
        checked_documents(sources[source], chosen)
    return NamedDocuments(
        by_source=by_source,
        of_records=frozenset(of_records),
        empty_records=tuple(empty),
        unknown_pairs=tuple(origins.missing),
    )


def records_may_be_elsewhere(prefixes: Sequence[str]) -> str:
    """Returns a warning that pairs without origins may contain copies of denied records."""
    return f"copies of these records may still be read: {origins_missing(prefixes)}"


def origins_missing(prefixes: Sequence[str]) -> str:
    shown = ", ".join(f"`{prefix}`" for prefix in prefixes[:2]) + (", …" if len(prefixes) > 2 else "")
    count = "1 pair" if len(prefixes) == 1 else f"{len(prefixes):,} pairs"
    return f"input files are unknown for {count} without origins ({shown}); {HINT}"
