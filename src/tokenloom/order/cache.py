"""The cache of index arrays, in a folder or a bucket. It can be shared with the reference, whose files are equal.

Files are renamed into place atomically and contain no pickles. Each load validates dtype, shape and a few samples, and
compares the arrays and the data with a stored record. An invalid entry is logged and rebuilt. Arrays up to 4 MiB
are renamed without fsync, as every load compares their checksums. Larger arrays are fsynced before they are renamed;
loads compare hashes of their pieces or, with `verify="full"`, their checksums. So no index that a power loss damaged is
ever used.

Entries in a bucket have the same names and bytes as in a folder, so copying a folder into the bucket publishes its
entries. Each object is uploaded atomically, and the description is uploaded last. Each node downloads an object once,
to a local file with a checksum. The name of this file depends on the address and the etag of the object.
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
from tokenloom.kernels.storage import Watch, crc32
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

_REMOVE = "delete the files of this index; the next start builds the index again"
DESCRIPTION = "description.txt"
IDENTITY = "identity.json"

_NUM_WRITERS = 3  # fsyncs all large files of a dataset at the same time
_MOST_COMPARED_BYTES = 4 << 20  # comparing takes 80 us per MiB, but fsync, which it replaces, 1 to 40 ms per file
_MOST_RECORD_BYTES = 1 << 20
_READ_ONLY = ("http", "https")
_SMALL_BYTES = 1 << 14
_HEADER_BYTES = 4096  # NumPy writes headers of 128 bytes for these arrays
_HEADER = re.compile(
    rb"\{'descr': '(?P<dtype>[<>|][biu]\d{1,2})', 'fortran_order': False, 'shape': \((?P<shape>[\d, ]*)\), \} *\n"
)
"""A header of a `.npy` file. NumPy's own reader parses headers as Python code, which fails at random in threads of
CPython 3.11.7 (gh-106905)."""

Arrays = dict[str, NDArray[Any]]
Check = Callable[[Arrays], str | None]
Identity = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The dtype and shape of a cached array; a length of None is known only after building."""

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]

    def fits(self, found: NDArray[Any]) -> bool:
        """Returns whether an array has this dtype and shape."""
        return (
            found.dtype == self.dtype
            and found.ndim == len(self.shape)
            and all(expected in (None, length) for expected, length in zip(self.shape, found.shape, strict=True))
        )

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('any' if length is None else str(length) for length in self.shape)}]"


class IndexCache:
    """A cache entry in a folder: the arrays of one dataset as `FOLDER/BASE-NAME.npy`, and their description.

    Every later load, also by a pickled copy of this object, returns arrays equal to those of the first load, or raises
    an error that names the changed file. A file may be replaced by a file with equal content.

    Args:
        folder: folder of the files; `IndexCacheWriter` creates it.
        base: beginning of all file names; it contains the cache key.
        compares_all: compare all bytes of large arrays at every load.
    """

    is_local: ClassVar[bool] = True
    """Whether the files are in a local or mounted folder."""

    def __init__(self, folder: str, base: str, *, compares_all: bool = False) -> None:
        self.folder = folder
        self.base = base
        self._beginning = os.path.join(folder, base)
        self._compares_all = compares_all
        self._versions: dict[str, FileVersion] = {}
        self._checksums: dict[str, Any] = {}

    def path(self, affix: str) -> str:
        """Returns the path or address of one file of the entry."""
        return f"{self._beginning}-{affix}"

    def local_path(self, affix: str) -> str:
        """Returns a local path of a file, after a download if needed; raises StorageError if the download fails."""
        return self.path(affix)

    def pending(self, affix: str) -> PendingFile:
        """Returns a file to write, which is renamed to its final name when it is complete."""
        return PendingFile(self.path(affix), durable=False)

    def publish(self, affix: str, data: bytes) -> None:
        """Writes a small file atomically."""
        with self.pending(affix) as file:
            file.write(data)

    def prepare(self) -> None:
        """Creates the folder; raises StorageError or IndexCacheError if the folder is not writable."""
        with storage_errors("create", self.folder):
            os.makedirs(self.folder, exist_ok=True)
        if not os.access(self.folder, os.W_OK):
            raise StorageError(f"cannot write into `{self.folder}`")

    def exists(self) -> bool:
        """Returns whether the entry is complete, which means that its description exists. Costs one stat."""
        return os.path.isfile(self.path(DESCRIPTION))

    def lookup(self, specs: Mapping[str, ArraySpec], check: Check, identity: Identity | None = None) -> Arrays | None:
        """Returns the result of `load`, or None if the entry is missing or invalid; logs why an entry is invalid."""
        if not self.exists():
            return None
        try:
            return self.load(specs, check, identity)
        except IndexCacheError as error:
            logger.warning("rebuilding an invalid cached index: %s", error.message)
            return None

    def load(self, specs: Mapping[str, ArraySpec], check: Check, identity: Identity | None = None) -> Arrays:
        """Maps the arrays read-only; validates their dtype, shape and content, and that the arrays match the data.

        Args:
            specs: dtype and shape of each array.
            check: function that gets the arrays, and returns a problem or None.
            identity: function that returns the identity of the data as a dict, to compare with a recorded identity.

        Raises:
            IndexCacheError: a file is missing, truncated or invalid.
            ChangedFileError: a file was replaced by a file with other content since an earlier load.
        """
        versions: dict[str, FileVersion] = {}
        arrays = {name: self._load(name, spec, versions) for name, spec in specs.items()}
        watch = Watch(list(arrays.values()))
        self._check_versions(arrays, versions)
        if (problem := check(arrays)) is not None:
            raise IndexCacheError(f"`{self.path('*.npy')}` does not match the data: {problem}", hint=_REMOVE)
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
        """Raises if a file was replaced since the first load, unless its new content has the old checksum."""
        for name, found in versions.items():
            expected, path = self._versions.get(name), self.path(f"{name}.npy")
            if expected is None or expected.is_same(found):
                continue
            if array_checksum(arrays[name]) != self._checksums.get(name):
                expected.check(found, path)

    def _record(self) -> dict[str, Any] | None:
        """Returns the record of data and arrays; None if the reference built the entry."""
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
            raise IndexCacheError(f"`{path}` is not a JSON object", hint=_REMOVE)
        return recorded

    def _load(self, name: str, spec: ArraySpec, versions: dict[str, FileVersion]) -> NDArray[Any]:
        if 0 in spec.shape:  # an empty array cannot be mapped
            return np.empty([length or 0 for length in spec.shape], dtype=spec.dtype)
        path = self.path(f"{name}.npy")
        try:
            data, version = map_version(self.local_path(f"{name}.npy"))
            array = array_in(data)
        except StorageError as error:
            if isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError):
                message = f"no file `{path}`"
                hint = "build the index first, without `defer_npy_index_mmap` and `fast_cache_load`"
                raise IndexCacheError(message, hint=hint) from error
            if not self.is_local:  # a store that does not respond must not cause hours of building
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
    """Raises if recorded values differ from the values found; compares only the keys `names`, or all keys for None."""
    if not isinstance(recorded, dict):
        raise IndexCacheError(f"`{path}` does not record its data and arrays", hint=_REMOVE)
    for name in sorted({*recorded, *found} if names is None else names):
        if recorded.get(name) != found.get(name):
            message = f"`{path}`: expected {name} {recorded.get(name)!r}, found {found.get(name)!r}"
            raise IndexCacheError(message, hint=f"the data, a setting or the file changed; {_REMOVE}")


class IndexCacheWriter:
    """A context manager that writes a cache entry: each array while the next one is built, and the description last.

    Args:
        cache: the entry.
        description: text from which the key is computed.
        identity: the identity of the data, for the record.

    Raises:
        IndexCacheError: the folder cannot be written; raised on entry or on exit, but not by `add`.
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
        """Starts to write an array in the background; do not change the array afterwards."""
        self._hashes[name] = self._checksums[name] = ""  # keeps the order of names
        if is_small(array) or self._skips_fsync(array):  # writing it is faster than starting a thread
            self._at_exit.append((name, array))
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=_NUM_WRITERS, thread_name_prefix="tokenloom-cache")
        self._written.append(self._executor.submit(self._write, name, array))

    def _write(self, name: str, array: NDArray[Any]) -> None:
        self._hashes[name], self._checksums[name] = array_hash(array), array_checksum(array)
        # `np.save` hides the error of a full disk, and `write_array` copies the array.
        header = npy_header(array)
        if is_small(array):
            self._cache.publish(f"{name}.npy", header + array.tobytes())
            return
        with self._cache.pending(f"{name}.npy") as file, storage_errors("write", file.path):
            numbers = array.reshape(-1).view(np.uint8).data
            if self._skips_fsync(array):
                file.write(header)
                file.write(numbers)
            else:
                write_durably(file.stream, memoryview(header), numbers)

    def _skips_fsync(self, array: NDArray[Any]) -> bool:
        """Returns whether every load compares all bytes of an array, so that no fsync is needed before the rename."""
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
        hint = error.hint or "set `path_to_cache` to a writable folder"
        raise IndexCacheError(error.message, hint=hint) from error


def is_small(array: NDArray[Any]) -> bool:
    """Returns whether loads copy an array to memory: a process cannot keep the files of 10,000 datasets mapped."""
    return array.nbytes <= _SMALL_BYTES


def array_checksum(array: NDArray[Any]) -> str:
    """Returns the CRC-32 of the bytes of an array, in hexadecimal."""
    return f"{crc32(np.ascontiguousarray(array)):08x}"


def array_hash(array: NDArray[Any]) -> str:
    """Returns a hash of a few pieces of a large array, or of all bytes of a small array."""
    return sampled_hash(array.reshape(-1).view(np.uint8))


def array_in(data: Bytes) -> NDArray[Any]:
    """Returns a view of the array in the bytes of a `.npy` file; accepts neither pickles nor Fortran order."""
    head = data[:_HEADER_BYTES].tobytes()
    end = 10 + int.from_bytes(head[8:10], "little")
    header = _HEADER.fullmatch(head[10:end])
    if head[:7] != b"\x93NUMPY\x01" or header is None:
        raise ValueError(f"not a `.npy` file of version 1.0 with numbers in C order: {head[:end]!r}")
    dtype, numbers = np.dtype(header["dtype"].decode()), data[end:]
    shape = tuple(int(length) for length in header["shape"].split(b",") if length.strip())
    if len(numbers) != (num_bytes := dtype.itemsize * math.prod(shape)):
        raise ValueError(f"expected {num_bytes} bytes of numbers, found {len(numbers)}")
    return numbers.view(dtype).reshape(shape)


def npy_header(array: NDArray[Any]) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return header.getvalue()


def check_cache_folder(name: str, path: str) -> None:
    """Raises ConfigError unless the setting `name` is a local folder or the address of a folder in a bucket."""
    if not is_remote(path):
        check_local_folder(name, path)
    elif parse_address(path, is_folder=True).scheme in _READ_ONLY:
        message = f"`{name}` must be a local folder or a folder in a bucket, got `{path}`"
        raise ConfigError(message, hint="pass an address such as s3://bucket/indices")


def index_cache(folder: str, base: str, settings: ObjectStorageSettings, *, compares_all: bool) -> IndexCache:
    """Returns the cache entry whose file names begin with `base`, in a local folder or in a bucket."""
    if is_remote(folder):
        return BucketIndexCache(folder, base, settings, compares_all=compares_all)
    return IndexCache(folder, base, compares_all=compares_all)


_known: dict[tuple[str, ObjectStorageSettings], set[str]] = {}  # addresses of descriptions; each folder is listed once
_known_lock = threading.Lock()
_warned_folders: set[str] = set()


class BucketIndexCache(IndexCache):
    """A cache entry in a bucket, below the address `folder`."""

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
        logger.log(level, "`%s` has no entry %s: building and uploading it", self.folder, self.base)
        path = self.path("probe")
        try:
            with PendingObject(path, self._settings):
                pass
        except AccessDeniedError as error:
            message = f"`{self.folder}` has no entry {self.base}, and the entry cannot be written: {error.message}"
            hint = "upload it with `tokenloom prepare-cache` and the same settings, or set a local `path_to_cache`"
            raise IndexCacheError(message, hint=hint) from error
        with suppress(StorageError):
            remove(path, settings=self._settings)
