"""The cache of index arrays, in a folder or a bucket, with the reference's names and bytes: either side reads both.

Files appear atomically and have no pickles. Each load checks dtype and shape, some windows, and the record of arrays
and data beside them. An untrusted file counts as absent, with a logged warning. Arrays up to 4 MiB are compared with
their checksums, and may be renamed before fsync; larger ones are fsynced first, and compared by hashes of pieces, or as
a whole under `verify="full"`. So after a power loss an index is whole, or rebuilt.

An entry in a bucket has the names and bytes of a folder's, so copying a folder publishes it. Objects appear whole, the
description last. A node downloads each once, under a name of address and etag, with a checksum.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import AccessDeniedError, ConfigError, IndexCacheError, StorageError
from tokenloom.kernels.arrays import crc32
from tokenloom.kernels.storage import Watch
from tokenloom.setting_types import check_local_folder
from tokenloom.storage.addresses import is_remote, parse_address
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.json_files import read_json
from tokenloom.storage.local import Bytes, map_version, sampled_hash, write_durably
from tokenloom.storage.objects import PendingObject, RemoteFile, local_copy
from tokenloom.storage.resolve import exists, objects_below, remove
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.versions import FileVersion

logger: logging.Logger = logging.getLogger(__name__)

_REMOVE = "remove these files, and the index is built again"
DESCRIPTION = "description.txt"
IDENTITY = "identity.json"

_NUM_WRITERS = 3  # all large files of a dataset are fsynced at the same time
_MOST_COMPARED_BYTES = 4 << 20  # compared as a whole, at 80 us per MiB, and not fsynced, which takes 1 to 40 ms each
_MOST_RECORD_BYTES = 1 << 20
_READ_ONLY = ("http", "https")
_SMALL_BYTES = 1 << 14
_HEADER_BYTES = 4096  # NumPy writes 128 for arrays like ours
_HEADER = re.compile(
    rb"\{'descr': '(?P<dtype>[<>|][biu]\d{1,2})', 'fortran_order': False, 'shape': \((?P<shape>[\d, ]*)\), \} *\n"
)
"""A header as NumPy writes it. NumPy's reader parses it as Python, which fails at random in several threads of CPython
3.11.7 (gh-106905)."""

Arrays = dict[str, NDArray[Any]]
Check = Callable[[Arrays], str | None]
Identity = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Dtype and shape of a cached array; a length of None is known only after building."""

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]

    def fits(self, found: NDArray[Any]) -> bool:
        """Whether an array has this dtype and shape."""
        return (
            found.dtype == self.dtype
            and found.ndim == len(self.shape)
            and all(wanted in (None, length) for wanted, length in zip(self.shape, found.shape, strict=True))
        )

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('any' if length is None else str(length) for length in self.shape)}]"


class IndexCache:
    """The arrays of one dataset under `FOLDER/BASE-NAME.npy`, and their description.

    Once loaded, another load, here or of a pickle of this, gives the same files or equal ones, as of another job that
    built the same index; else an error that names the file.

    Args:
        folder: folder of the files; created by `IndexCacheWriter`.
        base: common part of their names, with the key.
        compares_all: whether every load compares large arrays as a whole, too.
    """

    is_local: ClassVar[bool] = True
    """Whether the files are on this machine, or mounted."""

    def __init__(self, folder: str, base: str, *, compares_all: bool = False) -> None:
        self.folder = folder
        self.base = base
        self._beginning = os.path.join(folder, base)
        self._compares_all = compares_all
        self._versions: dict[str, FileVersion] = {}
        self._checksums: dict[str, Any] = {}

    def path(self, affix: str) -> str:
        """Returns the path or address of one file."""
        return f"{self._beginning}-{affix}"

    def local_path(self, affix: str) -> str:
        """Returns a local path of a file; raises StorageError if a download fails."""
        return self.path(affix)

    def pending(self, affix: str) -> PendingFile:
        """Returns a file to write, which appears when published."""
        return PendingFile(self.path(affix), durable=False)

    def publish(self, affix: str, data: bytes) -> None:
        """Writes and publishes a small file."""
        with self.pending(affix) as file:
            file.write(data)

    def prepare(self) -> None:
        """Creates the folder, and raises StorageError or IndexCacheError if it is not writable."""
        with storage_errors("create", self.folder):
            os.makedirs(self.folder, exist_ok=True)
        if not os.access(self.folder, os.W_OK):
            raise StorageError(f"cannot write into `{self.folder}`")

    def exists(self) -> bool:
        """Whether there is a description, which is written last; one stat."""
        return os.path.isfile(self.path(DESCRIPTION))

    def lookup(self, specs: Mapping[str, ArraySpec], check: Check, identity: Identity | None = None) -> Arrays | None:
        """Returns the arrays, mapped read-only, or None if there is no trusted entry; logs a warning for a bad one."""
        if not self.exists():
            return None
        try:
            return self.load(specs, check, identity)
        except IndexCacheError as error:
            logger.warning("cached index is rebuilt: %s", error.message)
            return None

    def load(self, specs: Mapping[str, ArraySpec], check: Check, identity: Identity | None = None) -> Arrays:
        """Returns the arrays, mapped read-only, after checking dtype, shape, contents and data.

        Args:
            specs: dtype and shape of each array.
            check: returns what is wrong with the contents, or None.
            identity: identifies the data; compared with the record, which entries of the reference do not have.

        Raises:
            IndexCacheError: a file is missing, truncated, or does not fit.
            ChangedFileError: a file was replaced since it was loaded before, by other numbers.
        """
        versions: dict[str, FileVersion] = {}
        arrays = {name: self._load(name, spec, versions) for name, spec in specs.items()}
        watch = Watch(list(arrays.values()))
        self._check_versions(arrays, versions)
        if (problem := check(arrays)) is not None:
            raise IndexCacheError(f"`{self.path('*.npy')}` does not fit the data: {problem}", hint=_REMOVE)
        self._compare(arrays, identity)
        watch.check()
        self._versions = self._versions or versions
        return arrays

    def _compare(self, arrays: Arrays, identity: Identity | None) -> None:
        recorded = self._record()
        if recorded is None:
            return
        path, checksums = self.path(IDENTITY), recorded.get("crc32")
        whole = {name for name, array in arrays.items() if self._compares_all or array.nbytes <= _MOST_COMPARED_BYTES}
        _compare(path, checksums, {name: array_checksum(arrays[name]) for name in whole}, names=whole)
        pieces = arrays.keys() - whole
        _compare(path, recorded.get("arrays"), {name: array_hash(arrays[name]) for name in pieces}, names=pieces)
        if identity is not None:
            _compare(path, recorded.get("data"), identity())
        self._checksums = self._checksums or checksums or {}

    def _check_versions(self, arrays: Arrays, versions: Mapping[str, FileVersion]) -> None:
        """Compares files with those loaded before, or numbers of replaced ones with their checksums."""
        for name, found in versions.items():
            expected, path = self._versions.get(name), self.path(f"{name}.npy")
            if expected is None or expected.is_same(found):
                continue
            if array_checksum(arrays[name]) != self._checksums.get(name):
                expected.check(found, path)

    def _record(self) -> dict[str, Any] | None:
        """Returns the record of data and arrays, made when the entry was built."""
        path = self.path(IDENTITY)
        try:
            recorded = read_json(self.local_path(IDENTITY), most_bytes=_MOST_RECORD_BYTES)
        except FileNotFoundError:
            return None
        except StorageError:
            raise
        except (OSError, ValueError) as error:
            raise IndexCacheError(f"`{path}` cannot be read: {error}", hint=_REMOVE) from error
        if not isinstance(recorded, dict):
            raise IndexCacheError(f"`{path}` is no JSON object", hint=_REMOVE)
        return recorded

    def _load(self, name: str, spec: ArraySpec, versions: dict[str, FileVersion]) -> NDArray[Any]:
        if 0 in spec.shape:  # cannot be mapped, and holds nothing that could be wrong
            return np.empty([length or 0 for length in spec.shape], dtype=spec.dtype)
        path = self.path(f"{name}.npy")
        try:
            data, version = map_version(self.local_path(f"{name}.npy"))
            array = array_in(data)
        except StorageError as error:
            if isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError):
                message = f"no file `{path}`"
                hint = "build the index first, without deferred or fast loading"
                raise IndexCacheError(message, hint=hint) from error
            if not self.is_local:  # do not build for hours because a store does not answer
                raise
            raise IndexCacheError(error.message, hint=error.hint) from error
        except (ValueError, TypeError, OverflowError) as error:
            raise IndexCacheError(f"`{path}` cannot be read: {error}", hint=_REMOVE) from error
        if not spec.fits(array):
            raise IndexCacheError(f"`{path}`: expected {spec}, found {array.dtype}{list(array.shape)}", hint=_REMOVE)
        versions[name] = version
        if is_small(array):
            array = array.copy()
            array.flags.writeable = False
        return array


def _compare(path: str, recorded: Any, found: Mapping[str, Any], names: Iterable[str] | None = None) -> None:
    """Compares a record with what was found, by these names or all that either has."""
    if not isinstance(recorded, dict):
        raise IndexCacheError(f"`{path}` has no record of data and arrays", hint=_REMOVE)
    for name in sorted({*recorded, *found} if names is None else names):
        if recorded.get(name) != found.get(name):
            message = f"`{path}`: expected {name} {recorded.get(name)!r}, found {found.get(name)!r}"
            raise IndexCacheError(message, hint=f"the data, an option or the file changed since; {_REMOVE}")


class IndexCacheWriter:
    """Writes the arrays of an entry while others are built, and the description last.

    Args:
        cache: the entry.
        description: the text behind the key.
        identity: identity of the data, for the record.

    Raises:
        IndexCacheError: the folder cannot be written: on entry if that is known, else on exit. `add` never fails.
    """

    def __init__(self, cache: IndexCache, description: str, identity: dict[str, Any] | None = None) -> None:
        self._cache = cache
        self._description = description
        self._identity = identity
        self._hashes: dict[str, str] = {}
        self._checksums: dict[str, str] = {}
        self._at_exit: list[tuple[str, NDArray[Any]]] = []
        self._written: list[Future[None]] = []
        self._executor: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        with _cache_errors():
            self._cache.prepare()
        return self

    def add(self, name: str, array: NDArray[Any]) -> None:
        """Takes an array, which must not change any more."""
        self._hashes[name] = self._checksums[name] = ""  # keeps the order of names
        if is_small(array) or self._may_be_lost(array):  # a thread would take longer to start
            self._at_exit.append((name, array))
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=_NUM_WRITERS, thread_name_prefix="tokenloom-cache")
        self._written.append(self._executor.submit(self._write, name, array))

    def _write(self, name: str, array: NDArray[Any]) -> None:
        self._hashes[name], self._checksums[name] = array_hash(array), array_checksum(array)
        # `np.save` loses the reason when the disk is full, and `write_array` copies the array.
        header = npy_header(array)
        if is_small(array):
            self._cache.publish(f"{name}.npy", header + array.tobytes())
            return
        with self._cache.pending(f"{name}.npy") as file, storage_errors("write", file.path):
            numbers = array.reshape(-1).view(np.uint8).data
            if self._may_be_lost(array):
                file.write(header)
                file.write(numbers)
            else:
                write_durably(file.stream, memoryview(header), numbers)

    def _may_be_lost(self, array: NDArray[Any]) -> bool:
        """Whether an array is renamed without fsync: a load compares all of it, and rebuilds a lost one."""
        return self._cache.is_local and array.nbytes <= _MOST_COMPARED_BYTES

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=kind is not None)
        if kind is not None:
            return
        with _cache_errors():
            for name, array in self._at_exit:
                self._write(name, array)
            for future in self._written:
                future.result()
            record = {"data": self._identity, "arrays": self._hashes, "crc32": self._checksums}
            self._cache.publish(IDENTITY, json.dumps(record).encode())
            self._cache.publish(DESCRIPTION, self._description.encode())


@contextmanager
def _cache_errors() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        hint = error.hint or "name a writable folder with `path_to_cache`"
        raise IndexCacheError(error.message, hint=hint) from error


def is_small(array: NDArray[Any]) -> bool:
    """Whether an array is kept in memory: the number of mappings is limited, and a run may have 10,000 datasets."""
    return array.nbytes <= _SMALL_BYTES


def array_checksum(array: NDArray[Any]) -> str:
    """Returns the CRC-32 of the bytes of an array, in hexadecimal."""
    return f"{crc32(np.ascontiguousarray(array)):08x}"


def array_hash(array: NDArray[Any]) -> str:
    """Returns a hash of pieces of an array, or of all of a small one."""
    return sampled_hash(array.reshape(-1).view(np.uint8))


def array_in(data: Bytes) -> NDArray[Any]:
    """Returns the array in a `.npy` file, a view; no pickles, no column order."""
    head = data[:_HEADER_BYTES].tobytes()
    end = 10 + int.from_bytes(head[8:10], "little")
    said = _HEADER.fullmatch(head[10:end])
    if head[:7] != b"\x93NUMPY\x01" or said is None:
        raise ValueError(f"no `.npy` file of format version 1.0 with numbers in row order: {head[:end]!r}")
    dtype, numbers = np.dtype(said["dtype"].decode()), data[end:]
    shape = tuple(int(length) for length in said["shape"].split(b",") if length.strip())
    if len(numbers) != (num_bytes := dtype.itemsize * math.prod(shape)):
        raise ValueError(f"expected {num_bytes} bytes of numbers, found {len(numbers)}")
    return numbers.view(dtype).reshape(shape)


def npy_header(array: NDArray[Any]) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return header.getvalue()


def check_cache_folder(name: str, path: str) -> None:
    """Raises a ConfigError unless the setting `name` is a local folder or the address of one in a bucket."""
    if not is_remote(path):
        check_local_folder(name, path)
    elif parse_address(path, is_folder=True).scheme in _READ_ONLY:
        message = f"`{name}` must be a local folder or a folder in a bucket, got `{path}`"
        raise ConfigError(message, hint="such as s3://bucket/indices")


def index_cache(folder: str, base: str, settings: ObjectStorageSettings, *, compares_all: bool) -> IndexCache:
    """Returns the `IndexCache` or `BucketIndexCache` of an entry."""
    if is_remote(folder):
        return BucketIndexCache(folder, base, settings, compares_all=compares_all)
    return IndexCache(folder, base, compares_all=compares_all)


_known: dict[tuple[str, ObjectStorageSettings], set[str]] = {}  # descriptions by folder, which is listed once
_known_lock = threading.Lock()
_warned_folders: set[str] = set()


class BucketIndexCache(IndexCache):
    """An `IndexCache` in a bucket, below the address `folder`."""

    is_local = False

    def __init__(self, folder: str, base: str, settings: ObjectStorageSettings, *, compares_all: bool = False) -> None:
        super().__init__(str(parse_address(folder, is_folder=True)).rstrip("/"), base, compares_all=compares_all)
        self._settings = settings

    def exists(self) -> bool:
        place, path = (self.folder, self._settings), self.path(DESCRIPTION)
        with _known_lock:
            if (known := _known.get(place)) is None:
                found = objects_below(self.folder, settings=self._settings)
                known = _known[place] = {each for each in found if each.endswith(DESCRIPTION)}
        if path not in known and exists(path, settings=self._settings):
            known.add(path)
        return path in known

    def local_path(self, affix: str) -> str:
        return local_copy(RemoteFile(self.path(affix), self._settings))

    def pending(self, affix: str) -> PendingFile:
        return PendingObject(self.path(affix), self._settings)

    def prepare(self) -> None:
        level = logging.INFO if self.folder in _warned_folders else logging.WARNING
        _warned_folders.add(self.folder)
        logger.log(level, "`%s` has no entry %s: it is built here, and published there", self.folder, self.base)
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
