"""The indices of many small datasets in one file: making five files for each takes longer than what is in them.

A pack stands for files of a cache folder, by their names, with their bytes. Packs lie in `FOLDER/packs`, each complete
when it appears and never changed; `unpack_indices` makes the files that they stand for. What a pack holds is checked as
files are, by `cache.py`.

Layout, little-endian: the files, each from a multiple of 64 bytes on; a directory, JSON of
`{base: {affix: [offset, length]}}` for files `BASE-AFFIX`; its offset, its length and its CRC-32 as three uint64; the
magic.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from tokenloom.errors import StorageError
from tokenloom.forks import READING_LOCK
from tokenloom.kernels import crc32
from tokenloom.storage.atomic import PendingFile, publish_bytes, storage_errors
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.storage.local import Bytes, map_version
from tokenloom.storage.versions import FileVersion, version_of

MOST_BYTES = 4 << 20
"""A larger file is written by itself: it costs more to write than to make."""

_FOLDER = "packs"
_SUFFIX = ".pack"
_ALIGNMENT = 64
_END = struct.Struct("<QQQ8s")
_MAGIC = b"TLINDEX1"
_MOST_DIRECTORY_BYTES = 1 << 30

_LOGGER = logging.getLogger(__name__)

Places = dict[str, dict[str, tuple[int, int]]]
"""Offset and length of each file, by the base of its entry and by its affix."""


class PackedFile(NamedTuple):
    """What a pack says of a file.

    Attributes:
        data: uint8[size], its bytes; mapped, but for a pack that is still written.
        version: which file the pack is; None for one that is still written.
    """

    data: Bytes
    version: FileVersion | None


class PackWriter:
    """A pack that is being written; files may be read from it before it appears. Safe from several threads.

    Args:
        folder: the cache folder.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._path = os.path.join(folder, _FOLDER, f"{secrets.token_hex(16)}{_SUFFIX}")
        self._places: Places = {}
        self._file: PendingFile | None = None
        self._size = 0
        self._lock = threading.Lock()

    def add(self, base: str, affix: str, data: bytes) -> None:
        """Adds a file of an entry.

        Raises:
            StorageError: it cannot be written.
        """
        with self._lock:
            if self._file is None:
                with storage_errors("create", self._path):
                    os.makedirs(os.path.dirname(self._path), exist_ok=True)
                self._file = PendingFile(self._path)
            padding = -len(data) % _ALIGNMENT
            self._file.write(data + bytes(padding))
            self._places.setdefault(base, {})[affix] = self._size, len(data)
            self._size += len(data) + padding

    def find(self, base: str, affix: str) -> PackedFile | None:
        """Returns a file that was added; None for another one."""
        with self._lock:
            if self._file is None or (place := self._places.get(base, {}).get(affix)) is None:
                return None
            with storage_errors("read", self._path):
                self._file.stream.flush()
                data = os.pread(self._file.stream.fileno(), place[1], place[0])
        return PackedFile(np.frombuffer(data, dtype=np.uint8), None)

    def publish(self, last: str) -> None:
        """Makes the pack appear, with the entries that are complete; nothing where there are none.

        Args:
            last: affix of the file that is added last to an entry.

        Raises:
            StorageError: it cannot be written.
        """
        with self._lock:
            file, self._file = self._file, None
            if file is None:
                return
            complete = {base: files for base, files in self._places.items() if last in files}
            try:
                if complete:
                    directory = json.dumps(complete).encode()
                    end = _END.pack(self._size, len(directory), _checksum(directory), _MAGIC)
                    file.write(directory + end)
                    file.publish()
            finally:
                file.discard()


_writing: ContextVar[PackWriter | None] = ContextVar("_writing", default=None)


@contextmanager
def packing(folder: str | None, *, last: str) -> Iterator[None]:
    """Within it, small files of a cache folder go into one pack, which appears at the end, also of an error.

    Args:
        folder: the cache folder; None for none.
        last: affix of the file that is added last to an entry.

    Raises:
        StorageError: the pack cannot be written.
    """
    if folder is None:
        yield
        return
    writer = PackWriter(os.path.abspath(folder))
    token = _writing.set(writer)
    try:
        yield
    finally:
        _writing.reset(token)
        writer.publish(last)


def pack_writer(folder: str) -> PackWriter | None:
    """Returns what small files of a folder are written to, here and now; None where each is a file."""
    writer = _writing.get()
    return writer if writer is not None and writer.folder == os.path.abspath(folder) else None


def packed_file(folder: str, base: str, affix: str) -> PackedFile | None:
    """Returns a file of an entry from the packs of a folder; None where none has it.

    Raises:
        StorageError: a pack cannot be read.
    """
    if (writer := pack_writer(folder)) is not None and (found := writer.find(base, affix)) is not None:
        return found
    return _Packs.of(folder).find(base, affix)


def unpack_indices(folder: str) -> int:
    """Makes the files that the packs of a cache folder stand for, and returns how many; what is there stays as it is.

    Packs are left: files are looked for first. Other programs, such as Megatron, read these files.

    Args:
        folder: the cache folder.

    Raises:
        StorageError: a pack cannot be read, or a file cannot be written.
    """
    count = 0
    packs = _Packs.of(folder)
    for base, affix in packs.names():
        path = os.path.join(folder, f"{base}-{affix}")
        found = packs.find(base, affix)
        if found is not None and not os.path.exists(path):
            publish_bytes(path, found.data.tobytes())
            count += 1
    return count


class _Packs:
    """The packs of a folder, opened when they are first asked for, and again when there are others."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, _FOLDER)
        self._seen: int | None = None
        self._opened: dict[str, tuple[PackedFile, Places]] = {}
        self._entries: dict[str, list[str]] = {}

    @classmethod
    def of(cls, folder: str) -> _Packs:
        """Returns the packs of a folder."""
        path = os.path.abspath(folder)
        with READING_LOCK:
            packs = _known.get(path) or _known.setdefault(path, cls(path))
            packs._look()
        return packs

    def find(self, base: str, affix: str) -> PackedFile | None:
        """Returns a file of an entry; None where no pack has it."""
        for name in self._entries.get(base, ()):
            pack, places = self._opened[name]
            if (place := places[base].get(affix)) is not None:
                return PackedFile(pack.data[place[0] : place[0] + place[1]], pack.version)
        return None

    def names(self) -> Iterator[tuple[str, str]]:
        """Yields base and affix of each file."""
        for base, packs in self._entries.items():
            for name in packs:
                for affix in self._opened[name][1][base]:
                    yield base, affix

    def _look(self) -> None:
        try:
            changed = os.stat(self._folder).st_mtime_ns
        except OSError:
            changed = None
        if changed == self._seen:
            return
        with storage_errors("list", self._folder):
            names = sorted(each for each in os.listdir(self._folder) if each.endswith(_SUFFIX)) if changed else []
        opened = {name: self._open(name) for name in names}
        self._opened = {name: pack for name, pack in opened.items() if pack is not None}
        self._entries = {}
        for name, (_, places) in self._opened.items():
            for base in places:
                self._entries.setdefault(base, []).append(name)
        self._seen = changed

    def _open(self, name: str) -> tuple[PackedFile, Places] | None:
        path, known = os.path.join(self._folder, name), self._opened.get(name)
        with suppress(StorageError):
            if known is not None and known[0].version == version_of(path):
                return known
        return _opened(path)


def _opened(path: str) -> tuple[PackedFile, Places] | None:
    """Returns a pack and its directory; None, with a logged warning, for a file that is none."""
    try:
        data, version = map_version(path)
        places = _places_of(data)
    except (StorageError, UnusableJsonError) as error:
        _LOGGER.warning("`%s` is no pack of indices, and is passed over: %s", path, str(error).removeprefix(": "))
        return None
    return PackedFile(data, version), places


def _places_of(data: Bytes) -> Places:
    if len(data) < _END.size:
        message = f"expected {_END.size} bytes or more, found {len(data)}"
        raise UnusableJsonError(message)
    offset, length, checksum, magic = _END.unpack(data[-_END.size :].tobytes())
    if magic != _MAGIC or offset + length + _END.size != len(data):
        message = "expected a directory at its end, found none"
        raise UnusableJsonError(message)
    directory = data[offset : offset + length].tobytes()
    if _checksum(directory) != checksum:
        message = "its directory does not hold what was written"
        raise UnusableJsonError(message)
    found: Any = parse_json(directory, most_bytes=_MOST_DIRECTORY_BYTES)
    return {
        base: {affix: (int(first), int(size)) for affix, (first, size) in files.items()}
        for base, files in found.items()
    }


def _checksum(data: bytes) -> int:
    return crc32(np.frombuffer(data, dtype=np.uint8))


_known: dict[str, _Packs] = {}
"""The packs of each folder that was asked."""
