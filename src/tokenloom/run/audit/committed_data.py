"""The data of a pair as a Merkle tree: blocks of 256 documents, and the documents of each.

An entry of the tree is a block: its number, the lengths of its documents, and the root over the hashes of their tokens.
Beside the tree goes the list of the tokens that are read of each block, which the place of any document in a pass
depends on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, StorageError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.kernels import Key
from tokenloom.run.audit.merkle import HASH_BYTES, leaf_hash, root_of
from tokenloom.run.held_out import held_numbers
from tokenloom.run.lock import BLOCK_DOCUMENTS, LockedPair
from tokenloom.storage.publishing import make_folder_of
from tokenloom.storage.resolve import open_pending

_AT_ONCE = 1 << 20
"""Tokens that are read at once, at least: one document may have more."""

_BLOCKS_AT_ONCE = 16
"""Blocks that a thread hashes before it takes others."""

_FOUR_BYTES = 1 << 32

_MAGIC = b"tokenloom pair tree 1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRoots:
    """What stands for the data of a pair.

    Attributes:
        blocks: root over its blocks, 64 hexadecimal digits.
        sums: SHA-256, in hex, over the tokens that are read of each block, as little-endian uint64.
    """

    blocks: str
    sums: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HashedPair:
    """The hashes of a pair.

    Attributes:
        blocks: of each block.
        sums: int64[num_blocks], tokens of it that are read: all that are not held out.
    """

    blocks: tuple[bytes, ...]
    sums: NDArray[np.int64]

    @property
    def roots(self) -> PairRoots:
        """What stands for them."""
        return PairRoots(blocks=root_of(self.blocks).hex(), sums=hash_of_sums(self.sums))


def hash_pair(
    pair: IndexedDataset,
    locked: LockedPair,
    *,
    key: Key,
    number: int,
    num_threads: int,
    progress: Callable[[int], None] | None = None,
) -> HashedPair:
    """Returns the hashes of a pair; reads all of it.

    Args:
        pair: the pair.
        locked: the same as it is locked.
        key: key of its source.
        number: its place in the source.
        num_threads: threads that hash at the same time.
        progress: called with the bytes of tokens read since the last call, by several threads.
    """
    lengths = pair.sequence_lengths
    num_blocks = -(-len(lengths) // BLOCK_DOCUMENTS)

    def hashed(first: int) -> list[bytes]:
        found = []
        for block in range(first, min(first + _BLOCKS_AT_ONCE, num_blocks)):
            documents, own = hash_documents(pair, block), lengths_of_block(lengths, block)
            found.append(hash_of_block(block, own, root_of(documents)))
            if progress is not None:
                progress(int(own.sum(dtype=np.int64)) * pair.dtype.itemsize)
        return found

    with ThreadPoolExecutor(num_threads) as executor:
        blocks = [each for some in executor.map(hashed, range(0, num_blocks, _BLOCKS_AT_ONCE)) for each in some]
    return HashedPair(blocks=tuple(blocks), sums=tokens_read(lengths, locked, key=key, number=number))


def write_tree(path: str, hashed: HashedPair) -> None:
    """Writes the hashes of a pair to a file, 40 bytes per block, so that later proofs need not read the pair again.

    Raises:
        StorageError: it cannot be written.
    """
    count = np.array([len(hashed.blocks)], dtype="<u8").tobytes()
    make_folder_of(path)
    with open_pending(path) as file:
        file.write(_MAGIC + count + hashed.sums.astype("<u8").tobytes() + b"".join(hashed.blocks))


def read_tree(path: str) -> HashedPair | None:
    """Returns the hashes that a local file holds, None if there is no such file. Nothing tells whether they are true.

    Raises:
        ConfigError: it is no such file, or not whole.
        StorageError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        message = f"cannot read `{path}`: {error.strerror}"
        raise StorageError(message) from error
    head = len(_MAGIC) + 8
    count = int.from_bytes(data[len(_MAGIC) : head], "little")
    if not data.startswith(_MAGIC) or len(data) != head + count * (8 + HASH_BYTES):
        message = f"`{path}`: expected the hashes of the blocks of a pair, found something else, or a part of them"
        raise ConfigError(message, hint="remove it, or name another file")
    first = head + 8 * count
    blocks = tuple(data[at : at + HASH_BYTES] for at in range(first, len(data), HASH_BYTES))
    return HashedPair(blocks=blocks, sums=np.frombuffer(data, dtype="<u8", count=count, offset=head).astype(np.int64))


def hash_documents(pair: IndexedDataset, block: int) -> list[bytes]:
    """Returns the hashes of the documents of a block, as entries of its tree."""
    first = block * BLOCK_DOCUMENTS
    own = lengths_of_block(pair.sequence_lengths, block)
    return [hash_of_document(digest) for digest in _digests(pair, first, own)]


def lengths_of_block(lengths: NDArray[np.int32], block: int) -> NDArray[np.int32]:
    """Returns the lengths of the documents of a block: int32[up to 256]."""
    return lengths[block * BLOCK_DOCUMENTS : (block + 1) * BLOCK_DOCUMENTS]


def tokens_read(lengths: NDArray[np.int32], locked: LockedPair, *, key: Key, number: int) -> NDArray[np.int64]:
    """Returns how many tokens training reads of each block, the held-out ones left out: int64[num_blocks]."""
    starts = np.arange(0, len(lengths), BLOCK_DOCUMENTS)
    if not len(starts):
        return np.zeros(0, dtype=np.int64)
    sums: NDArray[np.int64] = np.add.reduceat(lengths, starts, dtype=np.int64)
    if locked.held_blocks:
        sums[held_numbers(locked, key=key, number=number)] = 0
    elif locked.held_documents:
        held = held_numbers(locked, key=key, number=number)
        np.subtract.at(sums, held // BLOCK_DOCUMENTS, lengths[held].astype(np.int64))
    return sums


def document_digest(tokens: NDArray[Any]) -> bytes:
    """Returns the SHA-256 of a document, whatever the dtype of its tokens.

    Of its tokens as little-endian uint32; as little-endian int64, if one of them is no such number.
    """
    if tokens.dtype.itemsize > 2 and len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < _FOUR_BYTES:
        return hashlib.sha256(tokens.astype("<i8").tobytes()).digest()
    if tokens.dtype.kind == "i" and tokens.dtype.itemsize <= 2 and len(tokens) and int(tokens.min()) < 0:
        return hashlib.sha256(tokens.astype("<i8").tobytes()).digest()
    return hashlib.sha256(tokens.astype("<u4").tobytes()).digest()


def hash_of_document(digest: bytes) -> bytes:
    """Returns the hash of a document as an entry of the tree of its block."""
    return leaf_hash(b"document\0" + digest)


def hash_of_block(block: int, lengths: NDArray[np.int32], documents: bytes) -> bytes:
    """Returns the hash of a block as an entry of the tree of its pair.

    Args:
        block: its number.
        lengths: int32[num_documents] of its documents.
        documents: root over these.
    """
    numbers = np.array([block, len(lengths)], dtype="<u8").tobytes()
    return leaf_hash(b"block\0" + numbers + lengths.astype("<i4").tobytes() + documents)


def hash_of_sums(sums: NDArray[np.int64]) -> str:
    """Returns the SHA-256 of tokens per block, 64 hexadecimal digits."""
    return hashlib.sha256(sums.astype("<u8").tobytes()).hexdigest()


def _digests(pair: IndexedDataset, first: int, lengths: NDArray[np.int32]) -> Iterator[bytes]:
    """Yields the digests of documents from `first` on."""
    ends = np.cumsum(lengths, dtype=np.int64)
    begin = 0
    while begin < len(lengths):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + _AT_ONCE, side="right")))
        sequences = np.arange(first + begin, first + end, dtype=np.int64)
        some = lengths[begin:end].astype(np.int64)
        tokens = pair.gather(sequences, np.zeros_like(sequences), some)
        yield from _digests_of(tokens, (ends[begin:end] - before).tolist())
        begin = end


def _digests_of(tokens: NDArray[Any], ends: Sequence[int]) -> Iterator[bytes]:
    """Yields the digests of documents that lie back to back."""
    is_plain = tokens.dtype.kind == "u" and tokens.dtype.itemsize <= 4
    if is_plain or not len(tokens) or 0 <= int(tokens.min()) <= int(tokens.max()) < _FOUR_BYTES:
        words = tokens.astype("<u4").tobytes()
        start = 0
        for end in ends:
            yield hashlib.sha256(memoryview(words)[4 * start : 4 * end]).digest()
            start = end
        return
    for start, end in zip([0, *ends], ends, strict=False):
        yield document_digest(tokens[start:end])
