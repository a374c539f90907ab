"""The files of a dataset as one thing to write: all of them appear together, and replace all of an earlier one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import numpy as np

from tokenloom.errors import StorageError
from tokenloom.indexed.catalogue import catalogue_path
from tokenloom.indexed.columns import WrittenColumn, columns_there, describe_columns
from tokenloom.indexed.layout import bin_path, column_path, columns_path, idx_path, prefix_of
from tokenloom.indexed.manifests import manifest_path
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.local import ByteSource, MappedFile
from tokenloom.storage.publishing import FileGroup, OutputLock, canonical_name, exists_error, publish_together, recover
from tokenloom.storage.resolve import exists, keep_copy, open_pending, open_source, remove

_COMPARED_BYTES = 64 << 20
_MOST_OPEN = 64
"""Datasets whose files stay open until they are published; those of more are closed under hidden names."""
MOST_LOCKED = 200
"""Locks held at once: each takes a descriptor, of which a process has 1,024 as a rule."""

REJECTED_SUFFIX = ".rejected.jsonl"
"""Suffix of the file of the records that a run set aside beside a dataset."""


def dataset_paths(prefix: str) -> list[str]:
    """Returns the paths of all files that a dataset may have; that of the index, which opens the others, is first."""
    return [
        idx_path(prefix),
        bin_path(prefix),
        catalogue_path(prefix),
        manifest_path(prefix),
        columns_path(prefix),
        *(column_path(prefix, name) for name in columns_there(prefix)),
    ]


def existing_path(prefix: str) -> str | None:
    """Returns the path of a file of a dataset that is there, None if there is none."""
    recover(idx_path(prefix))
    return next((path for path in dataset_paths(prefix) if exists(path)), None)


@dataclass(kw_only=True)
class PendingDataset:
    """A dataset that is written, and does not appear before it is published.

    Attributes:
        prefix: prefix that its index will have.
        tokens: the `.bin` file, or the catalogue in place of it.
        index: the `.idx` file.
        manifest: the contents of the manifest; None for none.
        columns: the columns beside it, by name; `describe` makes them known.
        beside: further files that appear with it.
        replaced: paths of further files that belong to what it replaces.
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
        """Describes the columns; index and tokens are complete, and these are their bytes."""
        if self.columns:
            facts = {name: column[1] for name, column in self.columns.items()}
            index = MappedFile(self.index.readable_path)
            self._description = describe_columns(self.prefix, facts, index, tokens)

    def _files(self) -> list[PendingFile]:
        columns = [file for file, _ in self.columns.values()]
        return [self.tokens, *columns, *self.beside, *self._records, self.index]

    def files(self, *, durable: bool) -> list[PendingFile]:
        """Returns all files in the order in which they appear, the index last."""
        if not self._records:
            records = {columns_path(self.prefix): self._description, manifest_path(self.prefix): self.manifest}
            for path, data in records.items():
                if data is not None:
                    self._records.append(open_pending(path, durable=durable))
                    self._records[-1].write(data)
        return self._files()

    def seal(self, *, durable: bool = True) -> None:
        """Closes all files, which are complete, under hidden names."""
        for file in self.files(durable=durable):
            file.seal()

    def discard(self) -> None:
        """Gives all of it up; harmless when repeated, and once it is published."""
        for file in self._files():
            file.discard()

    def names(self) -> list[str]:
        """Returns the paths of all files that a dataset of this prefix may have; its tokens may lie elsewhere."""
        names = dataset_paths(self.prefix)
        if os.path.dirname(self.tokens.path) != os.path.dirname(self.index.path) or prefix_of(
            self.tokens.path
        ) != prefix_of(self.index.path):
            names = [name for name in names if name != bin_path(self.prefix)]
        if os.path.lexists(self.index.path):
            names.append(f"{self.prefix}{REJECTED_SUFFIX}")  # of a run of another kind
        return [*names, *self.replaced]


def publish_datasets(
    datasets: Sequence[PendingDataset],
    *,
    overwrite: bool,
    durable: bool = True,
    exclusive: bool = True,
    locks: Iterable[OutputLock] = (),
) -> None:
    """Makes datasets appear, all or none; what they replace stays whole until all are complete, and then goes."""
    with ExitStack() as own, ExitStack() as written:  # given up before others may write
        for dataset in datasets:
            written.callback(dataset.discard)
        local = [dataset for dataset in datasets if not is_remote(dataset.index.path)]
        held = {canonical_name(lock.key) for lock in locks}
        keys = [dataset.index.path for dataset in local]
        locked = {key for key in keys if not exclusive or canonical_name(key) in held}
        for key in [key for key in keys[:MOST_LOCKED] if key not in locked]:
            own.enter_context(OutputLock(key))
            locked.add(key)
        groups = [
            FileGroup(key=each.index.path, files=each.files(durable=durable), names=each.names()) for each in local
        ]
        for dataset in datasets:
            if is_remote(dataset.index.path):
                _upload(dataset, overwrite=overwrite)
        publish_together(groups, replace=overwrite, locked=locked)


def is_same_file(file: PendingFile) -> bool:
    """Whether what has the final name of a file holds the same bytes; the file is complete."""
    file.sync()
    there, data = open_source(file.path), MappedFile(file.readable_path).mapped
    return there.num_bytes == len(data) and all(
        np.array_equal(there.read(begin, len(piece)), piece)
        for begin in range(0, len(data), _COMPARED_BYTES)
        for piece in [data[begin : begin + _COMPARED_BYTES]]
    )


def is_published(pending: PendingDataset) -> bool:
    """Whether a dataset with the same bytes is there already, the manifest aside, which also says who wrote it."""
    if (path := existing_path(pending.prefix)) is None:
        return False
    if not all(exists(file.path) and is_same_file(file) for file in (pending.index, pending.tokens)):
        raise exists_error(path)
    there = columns_there(pending.prefix)
    return all(there.get(name) == facts for name, (_, facts) in pending.columns.items())


def should_seal(num_datasets: int) -> bool:
    """Whether so many datasets are too many to keep their files open until they are published."""
    return num_datasets > _MOST_OPEN


def _upload(dataset: PendingDataset, *, overwrite: bool) -> None:
    """Makes objects appear one by one, the index last, after the one it replaces is gone.

    When the tokens cannot be uploaded the old index is put back; the old tokens are still there then.
    """
    if not overwrite and (path := existing_path(dataset.prefix)) is not None:
        raise exists_error(path)
    names = dataset.names()
    kept = keep_copy(dataset.index.path)
    files = dataset.files(durable=True)
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
