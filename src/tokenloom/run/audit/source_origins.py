"""Documents of a run and records of input files: which are which, by the origins beside pairs, and both read again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, MissingObjectError
from tokenloom.forks import cached_property
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import OriginFile, Origins, read_origins
from tokenloom.inputs import STDIN
from tokenloom.inputs.find import inspect_input, whole_file
from tokenloom.inputs.limits import ReadLimits
from tokenloom.inputs.record_format import open_slice
from tokenloom.inputs.records import data_of, records_of
from tokenloom.inputs.streams import size_and_version
from tokenloom.numbers import quoted
from tokenloom.run.audit.span_table import PairRows, SpanTable
from tokenloom.run.lock import RunLock
from tokenloom.storage.settings import ObjectStorageSettings

Int64s = NDArray[np.int64]

HINT = "`tokenloom preprocess` writes PREFIX.origins.npy beside each pair; of other pairs nobody knows what was read"
"""How origins come to be."""


@dataclass(frozen=True, slots=True, eq=False)
class _PairOrigins:
    """The origins of one pair.

    Attributes:
        files: int32[num_files + 1], numbers of its files among those of all pairs; the last is -1.
        boundaries: int64[num_documents + 1], the first sequence of each document of the pair, and the end.
    """

    origins: Origins
    files: NDArray[np.int32]
    boundaries: Int64s


class SourceOrigins:
    """Which record of which input file documents of a run were made of. Safe from several threads.

    The origins of a pair are opened when one of its documents is asked for, and stay open.

    Args:
        data: the run, or the pairs of some sources.
        object_storage: how to read what lies in object storage.

    Attributes:
        files: the input files of the pairs that were looked at, each once.
        missing: prefixes without origins, of those looked at.
    """

    def __init__(self, data: RunLock | PairRows, *, object_storage: ObjectStorageSettings | None = None) -> None:
        self._pairs = data if isinstance(data, PairRows) else PairRows.of_lock(data)
        self._object_storage = object_storage
        self.files: list[OriginFile] = []
        self.missing: list[str] = []
        self._numbers: dict[OriginFile, int] = {}
        self._opened: dict[int, _PairOrigins | None] = {}
        self._opening = threading.Lock()
        self._whole_paths: dict[str, str] = {}

    @property
    def file_names(self) -> list[str]:
        """The paths of `files`, as they were named when they were tokenized."""
        return [file.path for file in self.files]

    def locate(self, source: int, documents: Int64s) -> tuple[NDArray[np.int32], Int64s]:
        """Returns where documents of a source come from.

        Args:
            source: number of the source.
            documents: int64[count], numbers of its documents.

        Returns:
            int32[count], numbers in `files`, and int64[count], records from 1; -1 and 0 where that is not known.

        Raises:
            DatasetFormatError: origins are damaged, or belong to other data.
            DatasetNotFoundError, StorageError: a pair is not there, or a store does not answer.
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
        """Returns the documents that were made of a record, as (source, document), rising; none if it gave none.

        Opens the origins of all pairs.

        Args:
            path: the input file as it was named when it was tokenized, or how that ends: "crawl/0007.jsonl".
            record: line or row, from 1.

        Raises:
            ConfigError: no pair is of such a file, or those of several end like that; the file has fewer records; or
                no pair has origins.
            DatasetFormatError, DatasetNotFoundError, StorageError: see `locate`.
        """
        by_path = self._by_path
        if not by_path:
            message = f"expected pairs that know their input files, found none among {len(self._pairs.prefixes)}"
            raise ConfigError(message, hint=HINT)
        if (whole := self._whole_paths.get(path)) is None:
            whole = self._whole_paths[path] = _path_like(path, sorted(by_path), self.missing)
        counts = [each.origins.files[own].num_records for _, each, own in by_path[whole]]
        last = None if None in counts else max(count for count in counts if count is not None)
        if record < 1 or (last is not None and record > last):
            bound = "from 1 on" if record < 1 else f"of `{whole}`, which has {last}"
            message = f"expected a record {bound}, found {record}"
            raise ConfigError(message, hint="lines and rows count from 1")
        found = []
        for pair, each, own in by_path[whole]:
            source, first = self._pairs.source_of(pair), int(self._pairs.first_documents[pair])
            for entry in each.origins.documents_of(own, record).tolist():
                begin, end = each.boundaries[entry : entry + 2].tolist()
                found += [(source, first + row) for row in range(begin, end)]
        return sorted(set(found))

    @cached_property
    def _by_path(self) -> dict[str, list[tuple[int, _PairOrigins, int]]]:
        """By path the pairs that are of an input file, and its number in each; opens them all."""
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
                origins = read_origins(opened)
                self._opened[pair] = None if origins is None else self._numbered(opened, origins)
                if origins is None:
                    self.missing.append(prefix)
            return self._opened[pair]

    def _numbered(self, pair: IndexedDataset, origins: Origins) -> _PairOrigins:
        numbers = []
        for file in origins.files:
            if file not in self._numbers:
                self._numbers[file] = len(self.files)
                self.files.append(file)
            numbers.append(self._numbers[file])
        return _PairOrigins(origins, np.array([*numbers, -1], dtype=np.int32), pair.document_indices)


def _path_like(path: str, paths: Sequence[str], missing: Sequence[str]) -> str:
    """Returns the one path that is, or ends, like this."""
    if path in paths:
        return path
    ending = "/" + path.removeprefix("./").lstrip("/")
    matching = [each for each in paths if each.endswith(ending)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        message = f"expected the end of one input file, found {quoted(path)}, which {len(matching)} end in"
        raise ConfigError(message, hint=f"write more of it: {' or '.join(matching[:2])}")
    message = f"expected one of the {len(paths)} input files of this run, found {quoted(path)}"
    hint = f"it has, for example, {', '.join(paths[:2])}"
    raise ConfigError(message, hint=f"{hint}; {origins_missing(missing)}" if missing else hint)


def records_may_be_elsewhere(prefixes: Sequence[str]) -> str:
    """Returns a warning for denials of records: copies of them may lie in pairs that do not know their input."""
    return f"the same records may be read on from elsewhere: {origins_missing(prefixes)}"


def origins_missing(prefixes: Sequence[str]) -> str:
    """Returns a sentence about pairs without origins, with the way to them."""
    shown = ", ".join(f"`{prefix}`" for prefix in prefixes[:2]) + (", …" if len(prefixes) > 2 else "")
    count = "1 pair" if len(prefixes) == 1 else f"{len(prefixes):,} pairs"
    return f"no origins beside {count} ({shown}), so file and record of documents there are not known; {HINT}"


_BLOCK_BYTES = 4 << 20
_LIMITS = ReadLimits(max_record_bytes=1 << 30)
_TEXT_FORMATS = {"line": "text-lines", "file": "text-files"}
"""How to read text that neither its name nor its first bytes tell: lines of JSON are lines, too."""


def input_problem(file: OriginFile) -> str | None:
    """Returns how an input file differs from what was tokenized, as a sentence; None if nothing is known to differ.

    Sizes are compared, and where they were recorded times of change, or etags of objects.
    """
    if file.path == STDIN:
        return "the input came from standard input, and cannot be read again"
    try:
        num_bytes, version = size_and_version(file.path)
    except (FileNotFoundError, MissingObjectError):
        return f"`{file.path}` is not there any more"
    if num_bytes != file.num_bytes:
        return f"`{file.path}` has {num_bytes:,} bytes, and had {file.num_bytes:,} when it was tokenized"
    if file.version and version and version != file.version:
        return f"`{file.path}` was replaced or written to since it was tokenized"
    return None


def read_records(file: OriginFile, numbers: Iterable[int]) -> dict[int, str]:
    """Returns records of an input file by number: lines as they are, rows as JSON. One pass up to the last of them."""
    wanted = set(numbers)
    inspected = inspect_input(file.path, default_format=_TEXT_FORMATS.get(file.unit))
    reader = open_slice(whole_file(inspected), block_bytes=_BLOCK_BYTES, limits=_LIMITS)
    found: dict[int, str] = {}
    try:
        last, done = max(wanted, default=0), 0
        for block in reader.blocks():
            first, done = done + 1, reader.num_rows
            if not wanted.isdisjoint(range(first, done + 1)):
                records = (record for record in records_of(block) if record.number in wanted)
                found |= {record.number: data_of(record).decode("utf-8", "replace") for record in records}
            if done >= last:
                break
    finally:
        reader.close()
    return found


_TOKENS_AT_ONCE = 1 << 22


def span_tokens(table: SpanTable, *, object_storage: ObjectStorageSettings | None = None) -> list[NDArray[Any]]:
    """Returns the tokens of each span, in the dtype of its pair; none of documents that are denied."""
    found: list[NDArray[Any]] = [np.empty(0, dtype=np.int64)] * len(table)
    pairs, rows = table.pairs()
    wanted = ~table.denied
    for pair in np.unique(pairs[wanted]).tolist():
        opened = IndexedDataset(table.pair_rows.prefixes[pair], object_storage=object_storage)
        chosen = np.flatnonzero(wanted & (pairs == pair))
        pieces = np.cumsum(table.lengths[chosen]) // _TOKENS_AT_ONCE
        for piece in np.unique(pieces).tolist():
            some = chosen[pieces == piece]
            tokens = opened.gather(rows[some], table.starts[some], table.lengths[some])
            for number, part in zip(some.tolist(), np.split(tokens, np.cumsum(table.lengths[some])[:-1]), strict=True):
                found[number] = part
    return found
