"""Publishes datasets: all files of a dataset appear together, and replace all files of an existing dataset."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import StorageError
from tokenloom.indexed.catalogue import catalogue_path
from tokenloom.indexed.columns import WrittenColumn, describe_columns, recorded_columns
from tokenloom.indexed.layout import Header, bin_path, column_path, columns_path, idx_path, prefix_of
from tokenloom.indexed.manifests import manifest_path
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import PendingFile, storage_errors, write_at
from tokenloom.storage.local import ByteSource, MappedFile
from tokenloom.storage.publishing import FileGroup, OutputLock, canonical_name, exists_error, publish_together, recover
from tokenloom.storage.resolve import exists, keep_copy, open_pending, open_source, remove

_COMPARED_BYTES = 64 << 20
MOST_OPEN = 64
"""Maximum number of datasets whose files stay open until publication; with more datasets, all files are closed."""
MOST_LOCKED = 200
"""Maximum number of locks at once: each lock takes a file descriptor, and a process usually has only 1,024."""

REJECTED_SUFFIX = ".rejected.jsonl"
"""Suffix of a file beside a dataset: the bad records of the preprocessing job."""


class IndexWriter:
    """Writes an index in blocks of rows: in each array of the file, a block goes behind the earlier blocks.

    `pointer` is the byte offset of the next sequence; callers may increase `pointer`, which leaves a gap.
    """

    def __init__(self, file: PendingFile, header: Header, *, multimodal: bool) -> None:
        self._file, self._header, self._multimodal = file, header, multimodal
        self.num_rows: int = 0
        self.pointer: int = 0
        self._num_boundaries = 0
        file.write(header.pack())
        file.sync()
        self.add_boundaries(np.zeros(1, dtype=np.int64))

    def add_rows(self, lengths: NDArray[np.int32], modes: NDArray[np.int8] | None = None) -> None:
        """Appends consecutive sequences: int32[count] lengths and, if multimodal, int8[count] modes."""
        if not len(lengths):
            return
        header, row = self._header, self.num_rows
        lengths_offset, pointers_offset, _, modes_offset = header.offsets
        ends = np.cumsum(lengths, dtype=np.int64) * header.dtype.itemsize + self.pointer
        pointers = np.concatenate([np.array([self.pointer], dtype=np.int64), ends[:-1]])
        self._put(lengths_offset + 4 * row, lengths)
        self._put(pointers_offset + 8 * row, pointers)
        if self._multimodal:
            assert modes is not None
            self._put(modes_offset + row, modes)
        self.num_rows += len(lengths)
        self.pointer = int(ends[-1])

    def add_boundaries(self, ends: NDArray[np.int64]) -> None:
        """Appends document boundaries, int64[count]: the index of the last sequence of each document, plus 1."""
        self._put(self._header.offsets[2] + 8 * self._num_boundaries, ends)
        self._num_boundaries += len(ends)

    def finish(self) -> None:
        """Checks that all rows were written, and syncs the file."""
        header, found = self._header, (self.num_rows, self._num_boundaries)
        if found != (expected := (header.num_sequences, header.num_boundaries)):
            message = f"`{self._file.path}`: expected {expected} sequences and boundaries, found {found}"
            raise StorageError(message, hint="do not modify the inputs while they are joined")
        self._file.sync()

    def _put(self, offset: int, values: NDArray[Any]) -> None:
        if len(values):
            with storage_errors("write", self._file.path):
                write_at(self._file.stream.fileno(), np.ascontiguousarray(values).view(np.uint8).data, offset)


def dataset_paths(prefix: str) -> list[str]:
    """Returns the paths of all files that a dataset may have, the index first."""
    paths = [path(prefix) for path in (idx_path, bin_path, catalogue_path, manifest_path, columns_path)]
    return paths + [column_path(prefix, name) for name in recorded_columns(prefix)]


def existing_path(prefix: str) -> str | None:
    """Returns the path of one existing file of a dataset; None if none exists."""
    recover(idx_path(prefix))
    return next((path for path in dataset_paths(prefix) if exists(path)), None)


@dataclass(kw_only=True)
class PendingDataset:
    """The written but unpublished files of a dataset; `tokens` is the `.bin` file or the catalogue.

    `beside` lists more files to publish, `replaced` more paths to remove when an existing dataset is replaced.
    """

    prefix: str
    tokens: PendingFile
    index: PendingFile
    manifest: bytes | None = None
    columns: dict[str, WrittenColumn] = field(default_factory=dict)
    beside: Sequence[PendingFile] = ()
    replaced: Sequence[str] = ()
    _description: bytes | None = field(default=None, init=False, repr=False)
    _records: list[PendingFile] = field(default_factory=list, init=False, repr=False)

    def describe(self, tokens: ByteSource) -> None:
        """Makes the contents of `PREFIX.columns.json` from the complete index and `tokens`."""
        if self.columns:
            facts = {name: column[1] for name, column in self.columns.items()}
            index = MappedFile(self.index.readable_path)
            self._description = describe_columns(self.prefix, facts, index, tokens)

    def _files(self) -> list[PendingFile]:
        columns = [file for file, _ in self.columns.values()]
        return [self.tokens, *columns, *self.beside, *self._records, self.index]

    def files(self) -> list[PendingFile]:
        """Returns all files in publication order, the index last."""
        if not self._records:
            records = {columns_path(self.prefix): self._description, manifest_path(self.prefix): self.manifest}
            for path, data in records.items():
                if data is not None:
                    self._records.append(open_pending(path, durable=self.tokens.is_durable))
                    self._records[-1].write(data)
        return self._files()

    def seal(self) -> None:
        """Closes all files, which must be complete; the files keep their hidden names."""
        for file in self.files():
            file.seal()

    def discard(self) -> None:
        for file in self._files():
            file.discard()

    def names(self) -> list[str]:
        """Returns the paths that publishing replaces or removes; not `PREFIX.bin` if `tokens` has another prefix."""
        names = dataset_paths(self.prefix)
        if prefix_of(self.tokens.path) != prefix_of(self.index.path):
            names.remove(bin_path(self.prefix))
        if os.path.lexists(self.index.path):
            names.append(f"{self.prefix}{REJECTED_SUFFIX}")  # written by an earlier preprocessing job
        return [*names, *self.replaced]


def publish_datasets(
    datasets: Sequence[PendingDataset], *, overwrite: bool, exclusive: bool = True, locks: Iterable[OutputLock] = ()
) -> None:
    """Publishes all datasets or none (remote datasets: one by one). Old files stay until all new files are complete.

    Without `overwrite`, an existing dataset is an error. If `exclusive`, locks each local dataset, except datasets that
    the caller has locked: their locks must be in `locks`.
    """
    with ExitStack() as own, ExitStack() as written:  # removes unpublished files before it releases locks
        for dataset in datasets:
            written.callback(dataset.discard)
        local = {each.index.path: each for each in datasets if not is_remote(each.index.path)}
        held = {canonical_name(lock.key) for lock in locks}
        locked = {key for key in local if not exclusive or canonical_name(key) in held}
        for key in [key for key in list(local)[:MOST_LOCKED] if key not in locked]:
            own.enter_context(OutputLock(key))
            locked.add(key)
        groups = [FileGroup(key=key, files=each.files(), names=each.names()) for key, each in local.items()]
        for dataset in datasets:
            if is_remote(dataset.index.path):
                _upload(dataset, overwrite=overwrite)
        publish_together(groups, replace=overwrite, locked=locked)


def is_published(pending: PendingDataset) -> bool:
    """Returns whether equal index, tokens and columns exist already; `OutputExistsError` if index or tokens differ."""
    if (path := existing_path(pending.prefix)) is None:
        return False
    if not all(exists(file.path) and _is_same_file(file) for file in (pending.index, pending.tokens)):
        raise exists_error(path)
    there = recorded_columns(pending.prefix)
    return all(there.get(name) == facts for name, (_, facts) in pending.columns.items())


def _is_same_file(file: PendingFile) -> bool:
    """Returns whether the published file has the bytes of the complete pending file."""
    file.sync()
    there, data = open_source(file.path), MappedFile(file.readable_path).mapped
    pieces = ((begin, data[begin : begin + _COMPARED_BYTES]) for begin in range(0, len(data), _COMPARED_BYTES))
    is_equal = (np.array_equal(there.read(begin, len(piece)), piece) for begin, piece in pieces)
    return there.num_bytes == len(data) and all(is_equal)


def _upload(dataset: PendingDataset, *, overwrite: bool) -> None:
    """Removes the old index, then uploads the files, the index last.

    If the tokens cannot be uploaded, the old index is restored, as the old tokens still exist.
    """
    if not overwrite and (path := existing_path(dataset.prefix)) is not None:
        raise exists_error(path)
    names = dataset.names()
    kept = keep_copy(dataset.index.path)
    files = dataset.files()
    remove(dataset.index.path)
    try:
        files[0].publish()
    except BaseException:
        if kept is not None:
            with suppress(StorageError):
                kept.publish()
        raise
    for name in names:
        if name not in {file.path for file in files}:
            remove(name)
    for file in files[1:]:
        file.publish()
