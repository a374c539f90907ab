"""Opening the files of a dataset: a pair, or an index with a catalogue in place of the tokens."""

from __future__ import annotations

import os

from tokenloom.errors import ConfigError, DatasetNotFoundError, MissingObjectError, StorageError
from tokenloom.indexed.catalogue import Catalogue, read_catalogue
from tokenloom.indexed.layout import bin_path, idx_path
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.copies import local_copy
from tokenloom.storage.local import Bytes, ByteSource, MappedFile, PositionalFile, map_file
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import exists, is_missing, names_in
from tokenloom.storage.settings import ObjectStorageSettings


class DatasetFiles:
    """Where the bytes of a dataset are; pickled, it leads all processes to the same objects and the same catalogue.

    Args:
        prefix: of the dataset.
        mmap: whether to map local tokens.
        settings: of object storage.

    Attributes:
        catalogue: once opened, what takes the place of the `.bin` file; None where there is one.
    """

    def __init__(self, prefix: str, *, mmap: bool, settings: ObjectStorageSettings | None) -> None:
        self.catalogue: Catalogue | None = None
        self._prefix = prefix
        self._mmap = mmap
        self._settings = settings
        self._objects: dict[str, RemoteFile] = {}

    def open(self) -> tuple[ByteSource, Bytes]:
        """Returns the tokens, and all bytes of the index.

        Raises:
            DatasetNotFoundError: one of the files does not exist.
            DatasetFormatError: the catalogue is damaged.
            StorageError: one cannot be opened.
        """
        try:  # opening tells what is missing; asking first would double the calls, which count on shared filesystems
            return self._open_tokens(), map_file(self.index_file())
        except StorageError as error:
            if is_remote(self._prefix) and not isinstance(error, MissingObjectError):
                raise
            paths = [idx_path(self._prefix)] + ([bin_path(self._prefix)] if self.catalogue is None else [])
            missing = [path for path in paths if not exists(path, settings=self._settings)]
            if not missing:
                raise
            message = f"no file {' and '.join(f'`{path}`' for path in missing)}"
            raise DatasetNotFoundError(message, hint=_missing_hint(self._prefix, missing)) from None

    def index_file(self) -> str:
        """Returns the path of a local file with the index."""
        path = idx_path(self._prefix)
        return local_copy(self._object(path)) if is_remote(path) else path

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
                self.catalogue = read_catalogue(self._prefix, settings=self._settings)
                if self.catalogue is None:
                    raise
        return self.catalogue.source(self._prefix, mmap=self._mmap, settings=self._settings)

    def _object(self, path: str) -> RemoteFile:
        if path not in self._objects:
            self._objects[path] = RemoteFile(path, self._settings)
        return self._objects[path]


def _missing_hint(prefix: str, missing: list[str]) -> str:
    if len(missing) == 2:
        folder, name = os.path.split(prefix)
        try:
            candidates = [entry for entry in names_in(folder or ".") if entry.endswith(".idx")]
        except (StorageError, ConfigError):  # no such folder, or no permission to list it
            return "check the folder; a prefix is the path without `.bin` or `.idx`"
        near = [entry.removesuffix(".idx") for entry in candidates if entry.startswith(name)]
        if near:
            return f"did you mean `{os.path.join(folder, near[0])}`?"
        return "a prefix is the path without `.bin` or `.idx`"
    return "the pair is incomplete: it was not finished, or one file was moved"
