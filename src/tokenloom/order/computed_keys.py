"""The root keys of the computed order: from the seed of a run and a name."""

from __future__ import annotations

import hashlib

from tokenloom.kernels.permutation import Key

_ALGORITHM = "tokenloom order 1"
"""Names the version of the order: another one gives other keys throughout."""


def root_key(seed: int, name: str) -> Key:
    """Returns the key of one name: the first 16 bytes of a SHA-256 over the version of the order, seed and name."""
    digest = hashlib.sha256(f"{_ALGORITHM}\0{seed}\0{name}".encode()).digest()
    return Key(int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little"))


def source_key(seed: int, source: str) -> Key:
    """Returns the key from which all permutations of a source are derived."""
    return root_key(seed, f"source {source}")


def mixing_key(seed: int) -> Key:
    """Returns the key from which the permutations of mixing blocks are derived."""
    return root_key(seed, "mixing")
