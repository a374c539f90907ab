"""A few pieces of something large, and a hash of them: cheap enough for every start, telling enough to trust a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.local import Bytes, ByteSource

_NUM_PIECES = 32
_PIECE_BYTES = 512


def spread_evenly(count: int, most: int) -> NDArray[np.int64]:
    """Returns numbers in [0, count), the first and the last among them, rising: int64[min(count, most)].

    Args:
        count: how many there are.
        most: how many are wanted.
    """
    return np.linspace(0, count - 1, num=min(count, most), dtype=np.int64)


def sampled_hash(read: Callable[[int, int], Bytes], num_bytes: int, *, num_pieces: int = _NUM_PIECES) -> str:
    """Returns the SHA-256 of pieces spread evenly, the first and the last bytes among them; all of it up to 16 KiB.

    Args:
        read: returns bytes [offset, offset + length).
        num_bytes: number of bytes in all.
        num_pieces: number of pieces of 512 bytes, at least 2; what is no larger than all of them is hashed as a whole.
    """
    return _hash(read(*piece).data for piece in _pieces(num_bytes, num_pieces))


def sampled_hash_of(source: ByteSource) -> str:
    """Returns the same for a source, whose pieces are read at the same time where that helps."""
    if (mapped := source.mapped) is not None:
        return sampled_hash_in(mapped)
    offsets, lengths = zip(*_pieces(source.num_bytes), strict=True)
    return _hash(piece.data for piece in source.read_many(offsets, lengths))


def sampled_hash_in(data: Bytes) -> str:
    """Returns the same for bytes in memory."""
    view = data.data  # slices of an array take four times as long, and a start over a thousand datasets cuts 130,000
    return _hash(view[offset : offset + length] for offset, length in _pieces(len(data)))


def _pieces(num_bytes: int, num_pieces: int = _NUM_PIECES) -> list[tuple[int, int]]:
    """Returns the offset and the length of each piece."""
    if num_bytes <= num_pieces * _PIECE_BYTES:
        return [(0, num_bytes)]
    last = num_bytes - _PIECE_BYTES
    return [(last * piece // (num_pieces - 1), _PIECE_BYTES) for piece in range(num_pieces)]


def _hash(pieces: Iterable[memoryview]) -> str:
    return hashlib.sha256(b"".join(pieces)).hexdigest()
