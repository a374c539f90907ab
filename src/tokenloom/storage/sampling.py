"""A hash of a few pieces of something large: cheap enough for every start, telling enough to trust a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from tokenloom.storage.local import Bytes

_NUM_PIECES = 32
_PIECE_BYTES = 512


def sampled_hash(read: Callable[[int, int], Bytes], num_bytes: int) -> str:
    """Returns the SHA-256 of pieces spread evenly, the first and the last bytes among them; all of it up to 16 KiB.

    Args:
        read: returns bytes [offset, offset + length).
        num_bytes: in all.
    """
    digest = hashlib.sha256()
    if num_bytes <= _NUM_PIECES * _PIECE_BYTES:
        digest.update(read(0, num_bytes).data)
        return digest.hexdigest()
    last = num_bytes - _PIECE_BYTES
    for piece in range(_NUM_PIECES):
        digest.update(read(last * piece // (_NUM_PIECES - 1), _PIECE_BYTES).data)
    return digest.hexdigest()
