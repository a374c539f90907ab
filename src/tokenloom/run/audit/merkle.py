"""Merkle trees as RFC 6962 (Certificate Transparency), section 2.1, has them: SHA-256, leaves and nodes told apart.

A root stands for a list of byte strings; a path proves that one of them is in its place, with a hash per level. What a
path proves holds for a list of known size only, so the size has to be known from somewhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

HASH_BYTES = 32


def leaf_hash(data: bytes) -> bytes:
    """Returns the hash of an entry of a list: 32 bytes."""
    return hashlib.sha256(b"\0" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Returns the hash over two subtrees."""
    return hashlib.sha256(b"\1" + left + right).digest()


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Returns the root over the hashes of a list: the Merkle Tree Hash; that of an empty list is SHA-256 of nothing."""
    level = list(leaves)
    while len(level) > 1:
        level = _above(level)
    return level[0] if level else hashlib.sha256().digest()


def path_to(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Returns what an entry needs beside itself for the root: the Merkle Audit Path, from the leaf up."""
    level, path = list(leaves), []
    while len(level) > 1:
        if (neighbour := index ^ 1) < len(level):
            path.append(level[neighbour])
        level, index = _above(level), index // 2
    return path


def root_from(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """Returns the root that a path leads to from the hash of an entry; None if it is no path of that entry.

    Args:
        leaf: hash of the entry.
        index: its place in the list.
        size: entries of the list.
        path: what `path_to` gives.
    """
    if not 0 <= index < size:
        return None
    found, hashes = leaf, iter(path)
    while size > 1:
        if (index ^ 1) < size:
            if (other := next(hashes, None)) is None:
                return None
            found = node_hash(other, found) if index % 2 else node_hash(found, other)
        index, size = index // 2, (size + 1) // 2
    return found if next(hashes, None) is None else None


def _above(level: list[bytes]) -> list[bytes]:
    """Returns the level above one; what has no neighbour is its own parent."""
    above = [node_hash(level[place], level[place + 1]) for place in range(0, len(level) - 1, 2)]
    return above if len(level) % 2 == 0 else [*above, level[-1]]
