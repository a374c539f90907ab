"""Indices on disk or in a bucket, under the reference's names and with its bytes: either side can use the other's.

Files appear atomically and hold no pickles. Every load checks dtype and shape, the ends of some windows, and what the
record beside the arrays says of them and of the data they were built from. A file that cannot be trusted counts as
absent, with a logged warning that says why. Arrays of up to 4 MiB are compared with their checksums as a whole, and
may get their names before they are on the disk. Larger ones may not; they are compared by hashes of pieces, or as a
whole under `verify="full"`. So after a loss of power an index is whole, or built again.

An entry in a bucket has the names and bytes of one in a folder, so copying such a folder there publishes as well.
Objects appear whole, the description last. A reader downloads each once per node, under a name made of address and
etag; what is there has a checksum, and what was read is checked as any entry is.
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

DESCRIPTION = "description.txt"
IDENTITY = "identity.json"

_NUM_WRITERS = 3  # large files are waited for until they are on the disk: all of a dataset at the same time
_MOST_COMPARED_BYTES = 4 << 20
"""Up to this size, every load compares all of an array, at 80 us per MiB, and nobody waits for the disk, which takes
1 to 40 ms over each."""

_MOST_RECORD_BYTES = 1 << 20

_READ_ONLY = ("http", "https")

_SMALL_BYTES = 1 << 14
_HEADER_BYTES = 4096  # NumPy writes 128 for arrays like ours
_HEADER = re.compile(
    rb"\{'descr': '(?P<dtype>[<>|][biu]\d{1,2})', 'fortran_order': False, 'shape': \((?P<shape>[\d, ]*)\), \} *\n"
)
"""A header as NumPy writes it. NumPy's reader parses it as Python: in CPython 3.11.7 that fails at random with a
SystemError where several threads do so (gh-106905)."""

Arrays = dict[str, NDArray[Any]]
Check = Callable[[Arrays], str | None]
Identity = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """What a cached array must be; a length of None may be any, for what only building can tell."""

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]

    def fits(self, found: NDArray[Any]) -> bool:
        """Whether an array is that."""
        return (
            found.dtype == self.dtype
            and found.ndim == len(self.shape)
            and all(wanted in (None, length) for wanted, length in zip(self.shape, found.shape, strict=True))
        )

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('any' if length is None else str(length) for length in self.shape)}]"


class IndexCache:
    """The arrays of one dataset under `FOLDER/BASE-NAME.npy`, and their description.

    Once arrays were loaded, loading them again, here or where this was pickled to, gives the same files, or others that
    hold the same numbers, as when another job built the same index; else it is an error that names the file.

    Args:
        folder: where the files are; created by `IndexCacheWriter`.
        base: the common part of their names, which carries the key.
        compares_all: whether every load compares all of the arrays, however large, with their checksums.
    """

    is_local: ClassVar[bool] = True
    """Whether the files lie on this machine, or what it mounts."""

    def __init__(self, folder: str, base: str, *, compares_all: bool = False) -> None:
        self.folder = folder
        self.base = base
        self._beginning = os.path.join(folder, base)
        self._compares_all = compares_all
        self._versions: dict[str, FileVersion] = {}
        self._checksums: dict[str, Any] = {}

    def path(self, affix: str) -> str:
        """Returns the path of one file."""
        return f"{self._beginning}-{affix}"

    def local_path(self, affix: str) -> str:
        """Returns the path under which a file can be opened.

        Raises:
            StorageError: it cannot be brought here.
        """
        return self.path(affix)

    def pending(self, affix: str) -> PendingFile:
        """Returns a file to write to, which appears when it is published."""
        return PendingFile(self.path(affix), durable=False)

    def publish(self, affix: str, data: bytes) -> None:
        """Makes a small file appear."""
        with self.pending(affix) as file:
            file.write(data)

    def prepare(self) -> None:
        """Makes the folder, and sure that it can be written to, before hours of building.

        Raises:
            StorageError, IndexCacheError: it cannot.
        """
        with storage_errors("create", self.folder):
            os.makedirs(self.folder, exist_ok=True)
        if not os.access(self.folder, os.W_OK):
            message = f"cannot write into `{self.folder}`"
            raise StorageError(message)

    def exists(self) -> bool:
        """Whether there is an entry, going by its description, which is written last; one stat."""
        return os.path.isfile(self.path(DESCRIPTION))

    def lookup(self, specs: Mapping[str, ArraySpec], check: Check, identity: Identity | None = None) -> Arrays | None:
        """Returns the arrays, mapped read-only, or None when there is no entry that can be trusted.

        An entry that exists and is unusable is named in a logged warning.
        """
        if not self.exists():
            return None
        try:
            return self.load(specs, check, identity)
        except IndexCacheError as error:
            logger.warning("cached index is rebuilt: %s", error.message)
            return None

    def load(self, specs: Mapping[str, ArraySpec], check: Check, identity: Identity | None = None) -> Arrays:
        """Returns the arrays, mapped read-only, after checking dtype, shape, contents and what they were built from.

        Args:
            specs: what each array must be.
            check: returns what is wrong with the contents, or None.
            identity: returns what the arrays are built from; compared with what was recorded, if anything was (an
                entry of the reference has no record).

        Raises:
            IndexCacheError: a file is missing, truncated, or not what it must be.
            ChangedFileError: a file is another one than when it was loaded before, with other numbers.
        """
        versions: dict[str, FileVersion] = {}
        arrays = {name: self._load(name, spec, versions) for name, spec in specs.items()}
        watch = Watch(list(arrays.values()))
        self._check_versions(arrays, versions)
        if (problem := check(arrays)) is not None:
            message = f"`{self.path('*.npy')}` does not fit the data: {problem}"
            raise IndexCacheError(message, hint="remove these files, and the index is built again")
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
        """Compares files with those that were loaded before, or the numbers of others with the checksums of those."""
        for name, found in versions.items():
            expected, path = self._versions.get(name), self.path(f"{name}.npy")
            if expected is None or expected.is_same(found):
                continue
            if array_checksum(arrays[name]) != self._checksums.get(name):
                expected.check(found, path)

    def _record(self) -> dict[str, Any] | None:
        """Returns what was recorded when the entry was built: of its data, and of the arrays themselves."""
        path = self.path(IDENTITY)
        try:
            recorded = read_json(self.local_path(IDENTITY), most_bytes=_MOST_RECORD_BYTES)
        except FileNotFoundError:
            return None
        except StorageError:
            raise
        except (OSError, ValueError) as error:
            message = f"`{path}` cannot be read: {error}"
            raise IndexCacheError(message, hint="remove it, and the index is built again") from error
        if not isinstance(recorded, dict):
            message = f"`{path}`: expected a JSON object, found {type(recorded).__name__}"
            raise IndexCacheError(message, hint="remove it, and the index is built again")
        return recorded

    def _load(self, name: str, spec: ArraySpec, versions: dict[str, FileVersion]) -> NDArray[Any]:
        if 0 in spec.shape:  # cannot be mapped, and holds nothing that could be wrong
            return np.empty([length or 0 for length in spec.shape], dtype=spec.dtype)
        path = self.path(f"{name}.npy")
        hint = "remove it, and the index is built again"
        try:
            data, version = map_version(self.local_path(f"{name}.npy"))
            array = array_in(data)
        except StorageError as error:
            if isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError):
                message = f"no file `{path}`"
                hint = "build the index first, without deferred or fast loading"
                raise IndexCacheError(message, hint=hint) from error
            if not self.is_local:  # a store that does not answer is no reason to build for hours
                raise
            raise IndexCacheError(error.message, hint=error.hint) from error
        except (ValueError, TypeError, OverflowError) as error:
            message = f"`{path}` cannot be read: {error}"
            raise IndexCacheError(message, hint=hint) from error
        if not spec.fits(array):
            message = f"`{path}`: expected {spec}, found {array.dtype}{list(array.shape)}"
            raise IndexCacheError(message, hint=hint)
        versions[name] = version
        if is_small(array):
            array = array.copy()
            array.flags.writeable = False
        return array


def _compare(path: str, recorded: Any, found: Mapping[str, Any], names: Iterable[str] | None = None) -> None:
    """Compares what was recorded with what was found: some names, or all that either has."""
    if not isinstance(recorded, dict):
        message = f"`{path}`: expected a record of data and arrays, found {type(recorded).__name__}"
        raise IndexCacheError(message, hint="remove it, and the index is built again")
    for name in sorted({*recorded, *found} if names is None else names):
        if recorded.get(name) != found.get(name):
            message = f"`{path}`: expected {name} {recorded.get(name)!r}, found {found.get(name)!r}"
            hint = "the data, an option or the file changed since; remove these files, and the index is built again"
            raise IndexCacheError(message, hint=hint)


class IndexCacheWriter:
    """Writes the arrays of an entry while others are built; the description, which completes the entry, last.

    Args:
        cache: where they go.
        description: the text behind the key.
        identity: what the arrays are built from, to be recorded beside them.

    Raises:
        IndexCacheError: the folder cannot be written: on entry where that can be told, else on exit. `add` never fails.
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
        self._hashes[name] = self._checksums[name] = ""  # in this order, whichever is written first
        if is_small(array) or self._may_be_lost(array):  # a thread would take longer to start
            self._at_exit.append((name, array))
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=_NUM_WRITERS, thread_name_prefix="tokenloom-cache")
        self._written.append(self._executor.submit(self._write, name, array))

    def _write(self, name: str, array: NDArray[Any]) -> None:
        self._hashes[name], self._checksums[name] = array_hash(array), array_checksum(array)
        # Not `np.save`, which loses the reason when the disk is full, nor `write_array`, which copies the array.
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
        """Whether an array gets its name before it is on the disk: a load compares all of it, and builds it again."""
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
    """Whether an array is kept in memory: mappings are limited, and a run may have ten thousand datasets."""
    return array.nbytes <= _SMALL_BYTES


def array_checksum(array: NDArray[Any]) -> str:
    """Returns the CRC-32 of the bytes of an array, in hexadecimal."""
    return f"{crc32(np.ascontiguousarray(array)):08x}"


def array_hash(array: NDArray[Any]) -> str:
    """Returns a hash of pieces of an array; of a small one, of all of it."""
    return sampled_hash(array.reshape(-1).view(np.uint8))


def array_in(data: Bytes) -> NDArray[Any]:
    """Returns the array in a `.npy` file, a view; no pickles, no column order."""
    head = data[:_HEADER_BYTES].tobytes()
    if head[:7] != b"\x93NUMPY\x01":
        message = "expected a `.npy` file of format version 1.0"
        raise ValueError(message)
    end = 10 + int.from_bytes(head[8:10], "little")
    said = _HEADER.fullmatch(head[10:end])
    if said is None:
        message = f"expected plain numbers in row order, found the header {head[10:end].strip()!r}"
        raise ValueError(message)
    dtype, numbers = np.dtype(said["dtype"].decode()), data[end:]
    shape = tuple(int(length) for length in said["shape"].split(b",") if length.strip())
    if len(numbers) != (num_bytes := dtype.itemsize * math.prod(shape)):
        message = f"expected {num_bytes} bytes of numbers, found {len(numbers)}"
        raise ValueError(message)
    return numbers.view(dtype).reshape(shape)


def npy_header(array: NDArray[Any]) -> bytes:
    """Returns the header of a file with an array."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return header.getvalue()


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


def index_cache(folder: str, base: str, settings: ObjectStorageSettings, *, compares_all: bool) -> IndexCache:
    """Returns the place of an entry, in a folder or in a bucket; see `IndexCache` and `BucketIndexCache`."""
    if is_remote(folder):
        return BucketIndexCache(folder, base, settings, compares_all=compares_all)
    return IndexCache(folder, base, compares_all=compares_all)


_known: dict[tuple[str, ObjectStorageSettings], set[str]] = {}
"""Descriptions that were seen, by folder; a folder is listed once, and asked for those that were not there."""

_known_lock = threading.Lock()

_said: set[str] = set()
"""Folders of which a warning has said that they do not have all."""


class BucketIndexCache(IndexCache):
    """An entry in a bucket, below the address `folder`, read and written with `settings`; else as `IndexCache`."""

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

    def local_path(self, affix: str) -> str:
        return local_copy(RemoteFile(self.path(affix), self._settings))

    def pending(self, affix: str) -> PendingFile:
        return PendingObject(self.path(affix), self._settings)

    def prepare(self) -> None:
        """Makes sure that objects may be written, before hours of building."""
        level = logging.INFO if self.folder in _said else logging.WARNING
        _said.add(self.folder)
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
