"""Opening the files of a dataset: a pair, or an index with a catalogue in place of the tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial

from tokenloom.errors import DatasetNotFoundError, MissingObjectError, StorageError
from tokenloom.indexed.catalogue import Catalogue, catalogue_path, parse_catalogue, read_catalogue
from tokenloom.indexed.layout import bin_path, idx_path, prefix_of
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.copies import local_copy
from tokenloom.storage.ending import beside
from tokenloom.storage.local import Bytes, ByteSource, MappedFile, PositionalFile, map_version
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.publishing import recover
from tokenloom.storage.resolve import did_you_mean, exists, is_missing
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.versions import FileVersion, version_of

_PINNED: ContextVar[dict[str, dict[str, FileVersion]]] = ContextVar("_PINNED", default={})  # noqa: B039 - never changed


@contextmanager
def inputs_stay(prefixes: Sequence[str]) -> Iterator[None]:
    """Within it, a dataset that is opened again by its prefix must consist of the files it was opened from first.

    For what looks at its inputs first and copies them later, one at a time.
    """
    outer = _PINNED.get()
    token = _PINNED.set({**outer, **{prefix: outer.get(prefix, {}) for prefix in map(prefix_of, prefixes)}})
    try:
        yield
    finally:
        _PINNED.reset(token)


class DatasetFiles:
    """Where the bytes of a dataset are; pickled, it leads all processes to the same files, objects and catalogue.

    Which files those are is taken from the descriptors that are read or mapped. A file that has another version when it
    is opened again, by this process or another, is an error that names it.

    Attributes:
        catalogue: once opened, what takes the place of the `.bin` file; None where there is one.
    """

    def __init__(self, prefix: str, *, mmap: bool, settings: ObjectStorageSettings | None) -> None:
        self.catalogue: Catalogue | None = None
        self._prefix = prefix
        self._mmap = mmap
        self._settings = settings
        self._objects: dict[str, RemoteFile] = {}
        self._versions: dict[str, FileVersion] = _PINNED.get().get(prefix, {})

    def open(self) -> tuple[ByteSource, MappedFile]:
        """Returns the tokens, and the mapped index; `check` compares these files with those opened before."""
        if is_remote(self._prefix) and self.catalogue is None:
            self._ask_at_once()
        before = dict(self._versions)
        try:  # opening tells what is missing; asking first would double the calls, which count on shared filesystems
            tokens, index = self._open_tokens(), self._open_index()
            self._check_catalogue()
        except StorageError as error:
            if error.__cause__ is None if not is_remote(self._prefix) else not isinstance(error, MissingObjectError):
                raise  # what is there is no file, or another one
            if recover(idx_path(self._prefix)):  # a process died while it replaced the dataset
                self.catalogue = None
                self._versions.clear()  # of files that are gone
                self._versions.update(before)
                return self.open()
            paths = [idx_path(self._prefix)] + ([bin_path(self._prefix)] if self.catalogue is None else [])
            missing = [path for path in paths if not exists(path, settings=self._settings)]
            if not missing:
                raise
            message = f"no file {' and '.join(f'`{path}`' for path in missing)}"
            raise DatasetNotFoundError(message, hint=_missing_hint(self._prefix, missing)) from None
        return tokens, index

    def check(self, *sources: ByteSource) -> None:
        """Compares opened files with what they were when they were opened before, if they were."""
        for source in sources:
            if isinstance(source, (MappedFile, PositionalFile)) and not is_remote(self._prefix):
                self._check(source.path, source.version)

    def map_beside(self, path: str) -> Bytes:
        """Returns all bytes of a local file of the dataset beside the pair, the same one each time: uint8[size]."""
        data, version = map_version(path)
        self._check(path, version)
        return data

    def index_file(self) -> str:
        """Returns the path of a local file with the index."""
        path = idx_path(self._prefix)
        return local_copy(self._object(path)) if is_remote(path) else path

    def _check(self, path: str, found: FileVersion) -> None:
        if (expected := self._versions.setdefault(path, found)) is not found:
            expected.check(found, path)

    def _open_index(self) -> MappedFile:
        return MappedFile(self.index_file(), at_once=True)

    def _check_catalogue(self) -> None:
        """Compares the catalogue with what it was read as: reading looks at the files of a pair alone."""
        path = catalogue_path(self._prefix)
        if self.catalogue is not None and not is_remote(path) and path in self._versions:
            self._check(path, version_of(path))

    def _open_tokens(self) -> ByteSource:
        if self.catalogue is None:
            path = bin_path(self._prefix)
            try:
                if is_remote(path):
                    return self._object(path)
                return MappedFile(path) if self._mmap else PositionalFile(path)
            except StorageError as error:  # only now is there a catalogue to look for
                if not is_missing(error):
                    raise
                self.catalogue = self._read_catalogue()
                if self.catalogue is None:
                    raise
        return self.catalogue.source(self._prefix, mmap=self._mmap, settings=self._settings)

    def _read_catalogue(self) -> Catalogue | None:
        if is_remote(self._prefix):
            return read_catalogue(self._prefix, settings=self._settings)
        try:
            data = self.map_beside(catalogue_path(self._prefix))
        except StorageError as error:
            if is_missing(error):
                return None
            raise
        return parse_catalogue(data.tobytes(), prefix=self._prefix)

    def _ask_at_once(self) -> None:
        """Asks the store for both files of a pair in one round trip; who opens one finds the answer."""
        index = beside(partial(self._find, idx_path(self._prefix)))
        self._find(bin_path(self._prefix))
        index.result()

    def _find(self, path: str) -> None:
        with suppress(MissingObjectError):  # who opens it says so
            self._object(path)

    def _object(self, path: str) -> RemoteFile:
        if path not in self._objects:
            self._objects[path] = RemoteFile(path, self._settings)
        return self._objects[path]


def _missing_hint(prefix: str, missing: list[str]) -> str:
    if len(missing) == 2:
        return did_you_mean(prefix, suffix=".idx") or "a prefix is the path without `.bin` or `.idx`"
    return "the pair is incomplete: it was not finished, or one file was moved"
