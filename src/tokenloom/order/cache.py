"""Indices on disk, under the reference's names and with its bytes: either side can use the other's.

Files appear atomically and hold no pickles. Every load checks dtype and shape, the ends of some windows, and what the
record beside the arrays says of them and of the data they were built from. A file that cannot be trusted counts as
absent, with a logged warning that says why. Arrays of up to 4 MiB are compared with their checksums as a whole, and
may get their names before they are on the disk. Larger ones may not; they are compared by hashes of pieces, or as a
whole under `verify="full"`. So after a loss of power an index is whole, or built again.
"""

from __future__ import annotations

import json
import logging
import os
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import IndexCacheError, StorageError
from tokenloom.kernels import Watch
from tokenloom.order.index_packs import MOST_BYTES, PackedFile, pack_writer, packed_file
from tokenloom.order.npy_files import ArraySpec, array_checksum, array_hash, array_in, is_small, npy_header
from tokenloom.storage.atomic import PendingFile, publish_bytes, storage_errors
from tokenloom.storage.copying import write_durably
from tokenloom.storage.json_files import parse_json, read_json
from tokenloom.storage.local import map_version
from tokenloom.storage.versions import FileVersion

logger: logging.Logger = logging.getLogger(__name__)

DESCRIPTION = "description.txt"
IDENTITY = "identity.json"

_NUM_WRITERS = 3  # large files are waited for until they are on the disk: all of a dataset at the same time
_MOST_COMPARED_BYTES = 4 << 20
"""Up to this size, every load compares all of an array, at 80 us per MiB, and nobody waits for the disk, which takes
1 to 40 ms over each."""

_MOST_RECORD_BYTES = 1 << 20

_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    OverflowError,
    SyntaxError,
    RecursionError,
    MemoryError,
    tokenize.TokenError,
)
"""What NumPy raises over a damaged header, which it parses as Python (measured by flipping its bytes)."""


Arrays = dict[str, NDArray[Any]]
Check = Callable[[Arrays], str | None]
Identity = Callable[[], dict[str, Any]]


class IndexCache:
    """The arrays of one dataset under `FOLDER/BASE-NAME.npy`, and their description.

    Once arrays were loaded, loading them again, here or where this was pickled to, gives the same files, or others that
    hold the same numbers, as when another job built the same index; else it is an error that names the file.

    Args:
        folder: where the files are; created by `writer`.
        base: the common part of their names, which carries the key.
        compares_all: whether every load compares all of the arrays, however large, with their checksums.
    """

    is_local: ClassVar[bool] = True
    """Whether the files lie on this machine, or what it mounts."""

    def __init__(self, folder: str, base: str, *, compares_all: bool = False) -> None:
        self.folder = folder
        self.base = base
        self._compares_all = compares_all
        self._versions: dict[str, FileVersion] = {}
        self._checksums: dict[str, Any] = {}

    def path(self, affix: str) -> str:
        """Returns the path of one file."""
        return os.path.join(self.folder, f"{self.base}-{affix}")

    def local_path(self, affix: str) -> str:
        """Returns the path under which a file can be opened.

        Raises:
            StorageError: it cannot be brought here.
        """
        return self.path(affix)

    def pending(self, affix: str) -> PendingFile:
        """Returns a file to write to, which appears when it is published."""
        return PendingFile(self.path(affix), durable=False)

    def packs(self, num_bytes: int) -> bool:
        """Whether a file of this size goes into a pack, see `index_packs`."""
        return num_bytes <= MOST_BYTES and pack_writer(self.folder) is not None

    def publish(self, affix: str, data: bytes) -> None:
        """Makes a small file appear, or adds it to a pack."""
        if (writer := pack_writer(self.folder)) is not None:
            writer.add(self.base, affix, data)
        else:
            publish_bytes(self.path(affix), data)

    def packed(self, affix: str) -> PackedFile | None:
        """Returns a file that is in a pack; None where it is none, or lies in the folder itself."""
        return None if os.path.exists(self.path(affix)) else packed_file(self.folder, self.base, affix)

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
        """Whether there is an entry, going by its description, which is written last; a stat or two."""
        return os.path.isfile(self.path(DESCRIPTION)) or self.packed(DESCRIPTION) is not None

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
        self.compare(arrays, identity)
        watch.check()
        self._versions = self._versions or versions
        return arrays

    def compare(self, arrays: Arrays, identity: Identity | None = None) -> None:
        """Compares arrays, and what they are built from, with what was recorded; arguments and errors as in `load`."""
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
            if (packed := self.packed(IDENTITY)) is not None:
                recorded = parse_json(packed.data.tobytes(), most_bytes=_MOST_RECORD_BYTES)
            else:
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
            packed = self.packed(f"{name}.npy")
            local = "" if packed is not None else self.local_path(f"{name}.npy")
        except FileNotFoundError as error:
            raise _absent(path) from error
        try:
            whole, version = map_version(local) if packed is None else packed
            found, data = array_in(whole)
            if version is not None:
                versions[name] = version
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise _absent(path) from error
            raise IndexCacheError(error.message, hint=error.hint) from error
        except _UNREADABLE as error:
            message = f"`{path}` cannot be read: {error}"
            raise IndexCacheError(message, hint=hint) from error
        if not spec.fits(found):
            message = f"`{path}`: expected {spec}, found {found.dtype}{list(found.shape)}"
            raise IndexCacheError(message, hint=hint)
        if len(data) != found.num_bytes:
            message = f"`{path}` cannot be read: expected {found.num_bytes} bytes of numbers, found {len(data)}"
            raise IndexCacheError(message, hint=hint)
        array: NDArray[Any] = data.view(found.dtype).reshape(found.shape)
        if is_small(array):
            array = array.copy()
            array.flags.writeable = False
        return array

    def writer(self, description: str, identity: dict[str, Any] | None = None) -> IndexCacheWriter:
        """Returns a context that writes an entry while it is built.

        Args:
            description: the text behind the key.
            identity: what the arrays are built from, to be recorded beside them.
        """
        return IndexCacheWriter(self, description, identity)


def _absent(path: str) -> IndexCacheError:
    message = f"no file `{path}`"
    return IndexCacheError(message, hint="build the index first, without deferred or fast loading")


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
    """Writes each array in the background while the next is built; the description, which completes the entry, last.

    Raises:
        IndexCacheError: the folder cannot be written: on entry where that can be told, else on exit. `add` never fails.
    """

    def __init__(self, cache: IndexCache, description: str, identity: dict[str, Any] | None) -> None:
        self._cache = cache
        self._identity = identity
        self._hashes: dict[str, str] = {}
        self._checksums: dict[str, str] = {}
        self._failure: StorageError | None = None
        self._description = description
        self._written: list[Future[None]] = []

    def __enter__(self) -> Self:
        with _cache_errors():
            self._cache.prepare()
        self._executor: ThreadPoolExecutor | None = None
        return self

    def add(self, name: str, array: NDArray[Any]) -> None:
        """Takes an array, which must not change any more."""
        self._hashes[name] = self._checksums[name] = ""  # in this order, whoever is written first
        if self._is_packed(array) or self._may_be_lost(array):  # a thread would take longer to start
            try:
                self._write(name, array)
            except StorageError as error:
                self._failure = self._failure or error
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=_NUM_WRITERS, thread_name_prefix="tokenloom-cache")
        self._written.append(self._executor.submit(self._write, name, array))

    def _write(self, name: str, array: NDArray[Any]) -> None:
        self._hashes[name], self._checksums[name] = array_hash(array), array_checksum(array)
        # Not `np.save`, which loses the reason when the disk is full, nor `write_array`, which copies the array.
        header = npy_header(array)
        if self._is_packed(array):
            self._cache.publish(f"{name}.npy", header + array.tobytes())
            return
        # Its name may be lost, and then it is built again.
        with self._cache.pending(f"{name}.npy") as file, storage_errors("write", file.path):
            numbers = array.reshape(-1).view(np.uint8).data
            if self._may_be_lost(array):
                file.write(header)
                file.write(numbers)
            else:
                write_durably(file.stream, memoryview(header), numbers)

    def _is_packed(self, array: NDArray[Any]) -> bool:
        """Whether an array is written in one piece, and nobody waits for the disk."""
        return is_small(array) or self._cache.packs(array.nbytes)

    def _may_be_lost(self, array: NDArray[Any]) -> bool:
        """Whether an array gets its name before it is on the disk."""
        return self._cache.is_local and array.nbytes <= _MOST_COMPARED_BYTES

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=kind is not None)
        if kind is not None:
            return
        with _cache_errors():
            if self._failure is not None:
                raise self._failure
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
