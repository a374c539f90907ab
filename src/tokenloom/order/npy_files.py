"""Arrays of indices in `.npy` files, as NumPy writes them: headers, and what tells one array from another."""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.kernels import crc32
from tokenloom.storage.local import Bytes, sampled_hash

_SMALL_BYTES = 1 << 14
_HEADER_BYTES = 4096  # NumPy writes 128 for arrays like ours
_HEADER = re.compile(
    rb"\{'descr': '(?P<dtype>[<>|][biu]\d{1,2})', 'fortran_order': False, 'shape': \((?P<shape>[\d, ]*)\), \} *\n"
)
"""A header as NumPy writes it. NumPy's reader parses it as Python: in CPython 3.11.7 that fails at random with a
SystemError where several threads do so (gh-106905)."""


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
    return sampled_hash(array.reshape(-1).view(np.uint8))


def array_in(data: Bytes) -> tuple[Found, Bytes]:
    """Returns what a `.npy` file says it holds, and the bytes of that; no pickles, no column order."""
    head = data[:_HEADER_BYTES].tobytes()
    if head[:7] != b"\x93NUMPY\x01":
        message = "expected a `.npy` file of format version 1.0"
        raise ValueError(message)
    end = 10 + int.from_bytes(head[8:10], "little")
    said = _HEADER.fullmatch(head[10:end])
    if said is None:
        message = f"expected plain numbers in row order, found the header {head[10:end].strip()!r}"
        raise ValueError(message)
    shape = tuple(int(length) for length in said["shape"].split(b",") if length.strip())
    return Found(np.dtype(said["dtype"].decode()), shape), data[end:]


def npy_header(array: NDArray[Any]) -> bytes:
    """Returns the header of a file with an array."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return header.getvalue()
