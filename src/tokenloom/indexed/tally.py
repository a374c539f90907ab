"""What both files of a pair hold, counted while they are written or read, for its manifest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.indexed.checksums import joined_crc32
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import HEADER_BYTES, Header, parse_header
from tokenloom.indexed.manifest.check import manifest_of
from tokenloom.indexed.manifest.contents import START_LENGTHS, FileChecksum, PairFacts, index_start_crc32
from tokenloom.kernels import Watch, crc32
from tokenloom.storage.local import ByteSource, map_file
from tokenloom.storage.resolve import map_whole
from tokenloom.storage.settings import ObjectStorageSettings

_BYTES = 16 << 20
"""Read at once; a multiple of every token's width."""


class FileTally:
    """The size of a file and its CRC-32, of the bytes so far."""

    def __init__(self) -> None:
        self.num_bytes: int = 0
        self.crc32: int = 0

    def add(self, data: bytes | memoryview) -> None:
        """Takes note of the bytes that come next."""
        self.num_bytes += memoryview(data).nbytes
        self.crc32 = crc32(data, self.crc32)

    def add_part(self, part: FileChecksum) -> None:
        """Takes note of bytes of which only the checksum is known."""
        self.crc32 = joined_crc32(self.crc32, part.crc32, part.num_bytes)
        self.num_bytes += part.num_bytes

    def checksum(self) -> FileChecksum:
        """Returns what a manifest says of the file."""
        return FileChecksum(num_bytes=self.num_bytes, crc32=self.crc32)


def checksum_of(path: str, *, settings: ObjectStorageSettings | None = None) -> FileChecksum:
    """Returns size and CRC-32 of a file or object, which is read for that."""
    data, tally = map_whole(path, settings=settings), FileTally()
    tally.add(data.data)
    Watch([data]).check()
    return tally.checksum()


def start_crc32_of(index: ByteSource) -> int:
    """Returns `index_start_crc32` of an index that is written."""
    return index_start_crc32(*_start_of(index))


def _start_of(index: ByteSource) -> tuple[Header, NDArray[np.int32]]:
    """Returns the header of an index, and the first lengths."""
    header = parse_header(index.read(0, min(HEADER_BYTES, index.num_bytes)).tobytes(), path="index")
    num_bytes = 4 * min(header.num_sequences, START_LENGTHS)
    return header, index.read(header.lengths_offset, num_bytes).view(np.int32)


class PairTally:
    """What a pair holds.

    Args:
        dtype: dtype of the tokens.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._tokens = FileTally()
        self._index = FileTally()
        self._largest: int | None = None

    def add_tokens(self, data: bytes | memoryview) -> None:
        """Takes note of the tokens that come next, whole ones."""
        self._tokens.add(data)
        if self._dtype.kind in "iu" and memoryview(data).nbytes:
            self._take_largest(int(np.frombuffer(data, dtype=self._dtype).max()))

    def add_pair(self, pair: IndexedDataset) -> None:
        """Takes note of all tokens of a pair: as its manifest tells them if it has one, else by reading them."""
        if (manifest := manifest_of(pair)) is not None:
            self._tokens.add_part(manifest.pair.tokens)
            self._take_largest(manifest.pair.largest_token)
            return
        for section in pair.sections:
            for begin in range(section.start, section.start + section.num_bytes, _BYTES):
                count = min(_BYTES, section.start + section.num_bytes - begin)
                self.add_tokens(pair.byte_source.read(begin, count).data)
        pair.check_tokens()

    def read_index(self, source: ByteSource) -> None:
        """Takes note of a whole index, which is read for that."""
        for begin in range(0, source.num_bytes, _BYTES):
            self._index.add(source.read(begin, min(_BYTES, source.num_bytes - begin)).data)

    def add_file(self, path: str, offset: int, length: int) -> None:
        """Takes note of the tokens in some bytes of a local file, which are read for that."""
        data = map_file(path)[offset : offset + length]
        for begin in range(0, length, _BYTES):
            self.add_tokens(data[begin : begin + _BYTES].data)
        Watch([data]).check()

    def facts_with(self, index: ByteSource) -> PairFacts:
        """Returns what the pair holds: all its tokens were noted, and this is its index, which is read for that."""
        self.read_index(index)
        return self.facts(*_start_of(index))

    def facts(self, header: Header, lengths: NDArray[np.int32]) -> PairFacts:
        """Returns what the pair holds, all of which was written.

        Args:
            header: header of the index.
            lengths: int32[1000 or more, or all], of the first sequences.
        """
        return PairFacts(
            dtype=self._dtype.name,
            num_documents=header.num_boundaries - 1,
            num_sequences=header.num_sequences,
            num_tokens=self._tokens.num_bytes // self._dtype.itemsize,
            largest_token=self._largest,
            tokens=self._tokens.checksum(),
            index=self._index.checksum(),
            index_start_crc32=index_start_crc32(header, lengths),
        )

    def _take_largest(self, token: int | None) -> None:
        if token is not None and (self._largest is None or token > self._largest):
            self._largest = token
