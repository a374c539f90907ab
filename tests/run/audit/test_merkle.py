"""Merkle trees, by the recursive definition of RFC 6962 and by its published hashes."""

from __future__ import annotations

import hashlib

import pytest

from tokenloom.run.audit.merkle import leaf_hash, path_to, root_from, root_of

ENTRIES = [bytes.fromhex(text) for text in (
    "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f",
)]  # fmt: skip
"""The entries and roots that implementations of Certificate Transparency test with."""

ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def recursive(entries: list[bytes]) -> bytes:
    if len(entries) < 2:
        return leaf_hash(entries[0]) if entries else hashlib.sha256().digest()
    k = 1
    while 2 * k < len(entries):
        k *= 2
    return hashlib.sha256(b"\1" + recursive(entries[:k]) + recursive(entries[k:])).digest()


@pytest.mark.parametrize("size", range(9))
def test_published_roots(size):
    assert root_of([leaf_hash(entry) for entry in ENTRIES[:size]]).hex() == ROOTS[size]


@pytest.mark.parametrize("size", [*range(18), 31, 32, 33, 100])
def test_roots_and_paths_of_all_shapes(size):
    entries = [bytes([number]) * (number % 5) for number in range(size)]
    leaves = [leaf_hash(entry) for entry in entries]
    root = root_of(leaves)
    assert root == recursive(entries)
    for index in range(size):
        path = path_to(leaves, index)
        assert root_from(leaves[index], index, size, path) == root
        assert root_from(leaves[index], index, size, [*path, root]) is None
        if path:
            assert root_from(leaves[index], index, size, path[:-1]) is None
            assert root_from(leaves[index], index, size, [bytes(32), *path[1:]]) != root
        for other in {index ^ 1, (index + 1) % size} - {index}:
            assert root_from(leaves[index], other, size, path) != root
    assert root_from(bytes(32), size, size, []) is None
    assert root_from(bytes(32), -1, size, []) is None
