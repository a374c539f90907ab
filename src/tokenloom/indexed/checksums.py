"""What the checksums of a pair are: size and CRC-32 of its files, counted while they are written or read.

CRC-32 (that of zlib) finds accidents, not forgeries. One core computes 1.7 GB/s of it, and the checksum of two parts in
a row follows from theirs, so that pairs need not be read again when they are joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import HEADER_BYTES, Header, parse_header
from tokenloom.indexed.manifests import START_LENGTHS, FileChecksum, PairFacts, index_start_crc32, manifest_of
from tokenloom.kernels.arrays import crc32
from tokenloom.storage.local import ByteSource

_POLYNOMIAL = 0xEDB88320
"""Polynomial of CRC-32, the coefficient of x⁰ in the highest bit, as zlib has it."""

_ONE, _X_TO_8 = 1 << 31, 1 << 23

_BYTES = 16 << 20
"""Read at once; a multiple of every token's width."""


def joined_crc32(first: int, second: int, num_second_bytes: int) -> int:
    """Returns the CRC-32 of two parts in a row, from theirs and the size of the second; O(log size).

    A CRC is a remainder of polynomials over two elements: appending n bytes multiplies what came before by x to the 8n.

    Example:
        >>> import zlib
        >>> joined_crc32(zlib.crc32(b"token"), zlib.crc32(b"loom"), 4) == zlib.crc32(b"tokenloom")
        True
    """
    power, square, left = _ONE, _X_TO_8, num_second_bytes
    while left:
        if left & 1:
            power = _product(power, square)
        square = _product(square, square)
        left >>= 1
    return _product(power, first) ^ second


def _product(first: int, second: int) -> int:
    """Returns the product of two polynomials, modulo that of CRC-32."""
    product = 0
    while first:
        if first & _ONE:
            product ^= second
        first = (first << 1) & 0xFFFFFFFF
        second = (second >> 1) ^ (_POLYNOMIAL if second & 1 else 0)
    return product


class FileTally:
    """The size of a file and its CRC-32, of the bytes so far."""

    def __init__(self) -> None:
        self.num_bytes: int = 0
        self.crc32: int = 0

    def add(self, data: bytes | memoryview) -> None:
        """Counts the bytes that come next."""
        self.num_bytes += memoryview(data).nbytes
        self.crc32 = crc32(data, self.crc32)

    def add_part(self, part: FileChecksum) -> None:
        """Counts bytes of which only the checksum is known."""
        self.crc32 = joined_crc32(self.crc32, part.crc32, part.num_bytes)
        self.num_bytes += part.num_bytes

    def checksum(self) -> FileChecksum:
        """Returns what a manifest says of the file."""
        return FileChecksum(num_bytes=self.num_bytes, crc32=self.crc32)


class PairTally:
    """The counts and checksums of a pair, for its manifest: of all tokens, added in order, and then of its index."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._tokens = FileTally()
        self._largest: int | None = None

    def add_tokens(self, data: bytes | memoryview) -> None:
        """Counts the tokens that come next, whole ones."""
        self._tokens.add(data)
        if self._dtype.kind in "iu" and memoryview(data).nbytes:
            self._add_largest(int(np.frombuffer(data, dtype=self._dtype).max()))

    def add_pair(self, pair: IndexedDataset) -> None:
        """Counts all tokens of a pair, which are read only if it has no manifest."""
        if (manifest := manifest_of(pair)) is not None:
            self._tokens.add_part(manifest.pair.tokens)
            self._add_largest(manifest.pair.largest_token)
            return
        for tokens in token_blocks(pair):
            self.add_tokens(tokens.data)

    def facts(self, index: ByteSource) -> PairFacts:
        """Returns the facts of the pair, whose tokens were all added; the index is read."""
        header, lengths = start_of(index)
        return PairFacts(
            dtype=self._dtype.name,
            num_documents=header.num_boundaries - 1,
            num_sequences=header.num_sequences,
            num_tokens=self._tokens.num_bytes // self._dtype.itemsize,
            largest_token=self._largest,
            tokens=self._tokens.checksum(),
            index=source_checksum(index),
            index_start_crc32=index_start_crc32(header, lengths),
        )

    def _add_largest(self, token: int | None) -> None:
        if token is not None and (self._largest is None or token > self._largest):
            self._largest = token


def pair_facts(pair: IndexedDataset) -> PairFacts:
    """Returns the facts of a pair from both files, which are read, whatever its manifest says."""
    tally = PairTally(pair.dtype)
    for tokens in token_blocks(pair):
        tally.add_tokens(tokens.data)
    return tally.facts(pair.index_source())


def token_blocks(pair: IndexedDataset) -> Iterator[NDArray[Any]]:
    """Yields all tokens of a pair, in order, some millions at once: dtype[count]; none of a part of a token."""
    for section in pair.sections:
        stop = section.start + section.num_bytes - section.num_bytes % pair.dtype.itemsize
        for begin in range(section.start, stop, _BYTES):
            num_bytes = min(_BYTES, stop - begin)
            yield pair.byte_source.read(begin, num_bytes).view(pair.dtype)
            pair.check_tokens(begin, num_bytes)


def source_checksum(source: ByteSource) -> FileChecksum:
    """Returns size and CRC-32 of all bytes of a source, which are read for that."""
    tally = FileTally()
    for begin in range(0, source.num_bytes, _BYTES):
        tally.add(source.read(begin, min(_BYTES, source.num_bytes - begin)).data)
    return tally.checksum()


def start_crc32_of(index: ByteSource) -> int:
    """Returns `index_start_crc32` of an index that is written."""
    return index_start_crc32(*start_of(index))


def start_of(index: ByteSource) -> tuple[Header, NDArray[np.int32]]:
    """Returns the header of an index, and the first lengths."""
    header = parse_header(index.read(0, min(HEADER_BYTES, index.num_bytes)).tobytes(), path="index")
    num_bytes = 4 * min(header.num_sequences, START_LENGTHS)
    return header, index.read(header.lengths_offset, num_bytes).view(np.int32)
