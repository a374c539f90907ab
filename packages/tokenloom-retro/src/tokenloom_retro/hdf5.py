"""Reads arrays of HDF5 files, memory-mapped if the arrays are contiguous, and writes HDF5 files atomically.

h5py writes contiguous arrays by default. Reading a mapped row needs no call of h5py, and processes share the page
cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

from numpy.typing import NDArray

from tokenloom.errors import StorageError, TokenloomError
from tokenloom.optional import require
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.local import map_file

# Errors of h5py for truncated or damaged files, and for files that are not HDF5.
_FAULTS = (OSError, KeyError, RuntimeError, TypeError, ValueError, OverflowError, MemoryError)

Kind = Literal["integers", "floats"]
"""The kind of an array's entries."""

_KINDS: dict[Kind, str] = {"integers": "iu", "floats": "f"}

_DAMAGED = "the file is truncated, damaged, still being written, or from another program"


def open_array(path: str, name: str, *, shape: Sequence[int | None], kind: Kind = "integers") -> NDArray[Any]:
    """Opens an array of a file: a read-only view of the mapped file, or a copy if the file has the array in pieces.

    No descriptor stays open. Thread-safe and fork-safe. A `kernels.Watch` of the array detects changes of the file.

    Args:
        path: path of the file.
        name: name of the array.
        shape: size of each axis; None for any size.
        kind: kind of the values, "integers" or "floats".

    Raises:
        MissingExtraError: h5py is not installed.
        StorageError: the file cannot be read, or has no array with this name, shape and kind.
    """
    h5py = require("h5py", extra="retro")
    data = map_file(path)
    # Given a stream, h5py takes no lock, which some network file systems do not support.
    with _faults(path, name), open(path, "rb") as stream, h5py.File(stream, "r") as file:
        stored = file.get(name)
        if not isinstance(stored, h5py.Dataset):
            found = ", ".join(f"`{other}`" for other in file) or "none"
            raise _mismatch(path, f"an array `{name}`", found)
        _check(stored, path, name, shape, kind)
        offset = stored.id.get_offset()
        if offset is not None:
            stop = offset + stored.size * stored.dtype.itemsize
            if stop > len(data):
                raise _mismatch(path, f"`{name}` at bytes [{offset}, {stop})", f"a file of {len(data)} bytes")
            array: NDArray[Any] = data[offset:stop].view(stored.dtype).reshape(stored.shape)
        elif stored.size and not stored.id.get_storage_size():
            raise _mismatch(path, f"values of `{name}`", "none: they were never written")
        else:
            array = stored[()]
            array.flags.writeable = False
    return array


def open_rows(path: str, name: str, *, columns: int) -> NDArray[Any]:
    """Opens a two-dimensional array like `open_array`; also accepts the shape [0] that Megatron writes for no rows."""
    try:
        return open_array(path, name, shape=(None, columns))
    except StorageError:
        with suppress(StorageError):
            return open_array(path, name, shape=(0,)).reshape(0, columns)
        raise


def file_of(stored: Any) -> str | None:
    """Returns the path of the file of an h5py object; None for other objects."""
    return stored.file.filename if type(stored).__module__.partition(".")[0] == "h5py" else None


@contextmanager
def hdf5_in(pending: PendingFile) -> Iterator[Any]:
    """Yields a new `h5py.File` in a pending file, which is complete at the end of the `with` block."""
    h5py = require("h5py", extra="retro")
    with storage_errors("write", pending.path), h5py.File(pending.stream, "w") as file:
        yield file


def write_arrays(path: str, arrays: Mapping[str, NDArray[Any]], *, durable: bool = True) -> None:
    """Writes arrays by name to a file, contiguously; replaces an existing file. `durable`: whether to call fsync."""
    with PendingFile(path, durable=durable) as pending, hdf5_in(pending) as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)


def _check(stored: Any, path: str, name: str, shape: Sequence[int | None], kind: Kind) -> None:
    fits = stored.shape is not None and len(stored.shape) == len(shape)
    if (
        not fits
        or stored.dtype.kind not in _KINDS[kind]
        or any(wanted not in (None, count) for wanted, count in zip(shape, stored.shape, strict=True))
    ):
        expected = ", ".join("n" if count is None else str(count) for count in shape)
        raise _mismatch(path, f"`{name}` to be {kind}[{expected}]", f"{stored.dtype}{list(stored.shape or ())}")


def _mismatch(path: str, expected: str, found: str) -> StorageError:
    return StorageError(f"`{path}`: expected {expected}, found {found}", hint=_DAMAGED)


@contextmanager
def _faults(path: str, name: str) -> Iterator[None]:
    """Raises errors of h5py as StorageError."""
    try:
        yield
    except TokenloomError:  # may be an `OSError` too
        raise
    except _FAULTS as error:
        raise StorageError(f"`{path}`: cannot read `{name}`: {error}", hint=_DAMAGED) from error
