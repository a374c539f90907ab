"""Arrays of indices in `.npy` files, as NumPy writes them: headers, and what tells one array from another."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.kernels import crc32
from tokenloom.storage.local import Bytes
from tokenloom.storage.sampling import sampled_hash_in

_SMALL_BYTES = 1 << 14
_HEADER_BYTES = 4096  # NumPy writes 128 for arrays like ours


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """What a cached array must be; a length of None may be any, for what only building can tell."""

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]

    def fits(self, found: Found) -> bool:
        """Whether an array is that."""
        return (
            found.dtype == self.dtype
            and len(found.shape) == len(self.shape)
            and all(wanted in (None, length) for wanted, length in zip(self.shape, found.shape, strict=True))
        )

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('any' if length is None else str(length) for length in self.shape)}]"


@dataclass(frozen=True, slots=True)
class Found:
    """What the header of a `.npy` file says that it holds."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the numbers."""
        return self.dtype.itemsize * math.prod(self.shape)


def is_small(array: NDArray[Any]) -> bool:
    """Whether an array is kept in memory: mappings are limited, and a run may have ten thousand datasets."""
    return array.nbytes <= _SMALL_BYTES


def array_checksum(array: NDArray[Any]) -> str:
    """Returns the CRC-32 of the bytes of an array, in hexadecimal."""
    return f"{crc32(np.ascontiguousarray(array)):08x}"


def array_hash(array: NDArray[Any]) -> str:
    """Returns a hash of pieces of an array; of a small one, of all of it."""
    return sampled_hash_in(array.reshape(-1).view(np.uint8))


def array_in(data: Bytes) -> tuple[Found, Bytes]:
    """Returns what a `.npy` file says it holds, and the bytes of that; no pickles, no column order."""
    stream = io.BytesIO(data[:_HEADER_BYTES].tobytes())
    version = np.lib.format.read_magic(stream)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(
        version
    )
    if read_header is None:
        message = f"expected format version 1.0 or 2.0, found {version}"
        raise ValueError(message)
    shape, in_columns, dtype = read_header(stream)
    if in_columns or dtype.hasobject:
        message = f"expected plain numbers in row order, found {dtype} in {'column' if in_columns else 'row'} order"
        raise ValueError(message)
    return Found(dtype, shape), data[stream.tell() :]


def npy_header(array: NDArray[Any]) -> bytes:
    """Returns the header of a file with an array."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return header.getvalue()
