"""Indices in a bucket: published by whoever builds them, read by everybody else, who then builds nothing.

An entry has the names and bytes of one in a folder, so copying such a folder there publishes as well. Objects appear
whole, the description last. A reader downloads each once per node, into a folder of its user's, under a name made
of address and etag; what is there has a checksum, and what was read is checked as any entry is.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from tokenloom.errors import AccessDeniedError, ConfigError, IndexCacheError, StorageError
from tokenloom.order.cache import DESCRIPTION, IndexCache
from tokenloom.setting_types import check_local_folder
from tokenloom.storage.addresses import is_remote, parse_address
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.copies import PendingObject, local_copy
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import exists, objects_below, remove
from tokenloom.storage.settings import ObjectStorageSettings

_LOGGER = logging.getLogger(__name__)

_READ_ONLY = ("http", "https")

_known: dict[tuple[str, ObjectStorageSettings], set[str]] = {}
"""Descriptions that were seen, by folder; a folder is listed once, and asked for those that were not there."""

_said: set[str] = set()
"""Folders of which a warning has said that they do not have all."""

_known_lock = threading.Lock()


def check_cache_folder(name: str, path: str) -> None:
    """Checks a folder for indices: a local one, or the address of one in a bucket.

    Args:
        name: name of the setting.
        path: its path or address.

    Raises:
        ConfigError: it is empty, no address, or names a server that nothing can be written to.
    """
    if not is_remote(path):
        check_local_folder(name, path)
    elif parse_address(path, is_folder=True).scheme in _READ_ONLY:
        message = f"expected a local folder or a folder in a bucket as {name}, found `{path}`"
        raise ConfigError(message, hint="such as s3://bucket/indices")


def index_cache(
    folder: str, base: str, settings: ObjectStorageSettings | None = None, *, compares_all: bool = False
) -> IndexCache:
    """Returns the place of an entry, in a folder or in a bucket.

    Args:
        folder: where indices are kept, or its address.
        base: the common part of the names.
        settings: how object storage is read.
        compares_all: whether every load compares all of the arrays, however large, with their checksums.
    """
    if is_remote(folder):
        return BucketIndexCache(folder, base, settings or ObjectStorageSettings(), compares_all=compares_all)
    return IndexCache(folder, base, compares_all=compares_all)


class BucketIndexCache(IndexCache):
    """An entry in a bucket; see `IndexCache`.

    Args:
        folder: the address of the folder.
        base: the common part of the names, which carries the key.
        settings: how object storage is read.
        compares_all: as in `IndexCache`.
    """

    is_local = False

    def __init__(self, folder: str, base: str, settings: ObjectStorageSettings, *, compares_all: bool = False) -> None:
        super().__init__(str(parse_address(folder, is_folder=True)).rstrip("/"), base, compares_all=compares_all)
        self._settings = settings

    def exists(self) -> bool:
        """Whether there is an entry, going by its description; the folder is listed with the first question."""
        place, path = (self.folder, self._settings), self.path(DESCRIPTION)
        with _known_lock:
            if (known := _known.get(place)) is None:
                found = objects_below(self.folder, settings=self._settings)
                known = _known[place] = {each for each in found if each.endswith(DESCRIPTION)}
        if path not in known and exists(path, settings=self._settings):
            known.add(path)
        return path in known

    def packed(self, affix: str) -> None:
        """Returns None: packs are of local folders."""

    def local_path(self, affix: str) -> str:
        return local_copy(RemoteFile(self.path(affix), self._settings))

    def pending(self, affix: str) -> PendingFile:
        return PendingObject(self.path(affix), self._settings)

    def publish(self, affix: str, data: bytes) -> None:
        with self.pending(affix) as file:
            file.write(data)

    def prepare(self) -> None:
        """Makes sure that objects may be written, before hours of building."""
        level = logging.INFO if self.folder in _said else logging.WARNING
        _said.add(self.folder)
        _LOGGER.log(level, "`%s` has no entry %s: it is built here, and published there", self.folder, self.base)
        path = self.path("probe")
        try:
            with PendingObject(path, self._settings):
                pass
        except AccessDeniedError as error:
            message = f"`{self.folder}` has no entry {self.base}, and none may be written: {error.message}"
            hint = "publish it with `tokenloom prepare-cache` and the same settings, or name a local `path_to_cache`"
            raise IndexCacheError(message, hint=hint) from error
        with suppress(StorageError):
            remove(path, settings=self._settings)
