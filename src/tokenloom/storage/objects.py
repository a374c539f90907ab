"""Objects of a store as byte sources: read by exact ranges, by cached blocks, or ahead of time.

A range that was announced is fetched exactly, merged with near neighbours, and kept in memory until it is read: the
cheapest way through a full shuffle, where neighbours in a block are needed at other times. Orders that stay within some
blocks for a while, and readers that walk through an object, go by blocks, which all processes of the node share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.addresses import ObjectAddress, ObjectVersion, parse_address, short_hash
from tokenloom.storage.ending import daemons_stopped
from tokenloom.storage.local import Bytes, outside
from tokenloom.storage.object_storage import ObjectStorage, Piece, object_storage
from tokenloom.storage.read_ahead import Chunk, merge_ranges
from tokenloom.storage.secrets import queries_for_child, remember
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.statistics import count_reads

Key = tuple[str, int, int]
"""Name of an object's version; offset and length of a range in it, or the first and one past the last byte of one."""


class RemoteFile:
    """An object as it was when it was opened; a `ByteSource`.

    Safe from several threads, after a fork, and picklable: an unpickled one reads the same version. An object that was
    replaced meanwhile is an error, never a mixture.

    Args:
        path: the address.
        settings: settings of the storage.
        version: version of the object, where it is known; else the store is asked.

    Raises:
        MissingObjectError, AccessDeniedError, UnavailableError: the object cannot be opened.
    """

    def __init__(
        self, path: str, settings: ObjectStorageSettings | None = None, version: ObjectVersion | None = None
    ) -> None:
        self.address: ObjectAddress = parse_address(path)
        self.path: str = str(self.address)
        self.settings: ObjectStorageSettings = settings or ObjectStorageSettings()
        self.version: ObjectVersion = version or object_storage(self.settings).version(self.address)
        self.name: str = short_hash(self.address, self.version.num_bytes, self.version.etag, self.settings.block_bytes)
        self._last_stop: int | None = None
        self._last_block: tuple[int, Bytes] | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_last_stop": None, "_last_block": None}
        return {"state": state, "queries": queries_for_child()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        remember(state["queries"])
        self.__dict__.update(state["state"])

    @property
    def num_bytes(self) -> int:
        return self.version.num_bytes

    @property
    def mapped(self) -> Bytes | None:
        return None

    def read(self, offset: int, length: int) -> Bytes:
        """Returns bytes [offset, offset + length) as uint8[length], read-only."""
        return next(self.read_many([offset], [length]))

    def read_many(self, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[Bytes]:
        """Yields many ranges, in their order; those that were not announced are fetched at the same time."""
        for offset, length in zip(offsets, lengths, strict=True):
            if offset < 0 or length < 0 or offset + length > self.num_bytes:
                raise outside(self.path, offset, length, self.num_bytes)
        storage = object_storage(self.settings)
        keys = [(self.name, *each) for each in zip(offsets, lengths, strict=True)]
        unknown = [number for number, key in enumerate(keys) if key[2] and not _is_expected(storage, key)]
        fetched = self._read_at_once(storage, [keys[number] for number in unknown]) if len(unknown) > 1 else []
        at_once = dict(zip(unknown, fetched, strict=False))
        number = 0
        while number < len(keys):
            if (data := at_once.pop(number, None)) is not None:
                parts = [data]
            else:
                parts = self._read_announced(storage, keys, number) or [self._read(storage, *keys[number][1:])]
            yield from parts
            number += len(parts)

    def will_need(
        self,
        offsets: NDArray[np.int64],
        lengths: NDArray[np.int64],
        *,
        blocks: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    ) -> None:
        """Announces reads to come, in their order, each of which is then made exactly as announced.

        Args:
            offsets: int64[num_ranges], in bytes.
            lengths: int64[num_ranges].
            blocks: the first and one past the last byte of the block around each range, int64[num_ranges] each: fetched
                as a whole, because nearly all of it will be read soon, here or in another process of the node. None
                fetches the ranges alone.
        """
        storage = object_storage(self.settings)
        used = np.flatnonzero(lengths)
        keys = [(self.name, *each) for each in zip(offsets[used].tolist(), lengths[used].tolist(), strict=True)]
        if blocks is not None:
            around = zip(blocks[0][used].tolist(), blocks[1][used].tolist(), strict=True)
            names = [(self.name, *each) for each in around]
            storage.blocks.announce(list(zip(keys, names, strict=True)), partial(self._chunk, self._load_block))
            return
        requests = merge_ranges(offsets[used], lengths[used], most_bytes=self.settings.block_bytes)
        chunks = {number: (self.name, start, stop) for start, stop, members in requests for number in members}
        uses = [(key, chunks[number]) for number, key in enumerate(keys)]
        storage.ranges.announce(uses, partial(self._chunk, self._load_range))

    def _chunk(self, load: Callable[[ObjectStorage, int, int], Piece], name: Key) -> Chunk[Piece]:
        _, start, stop = name
        return Chunk(stop - start, partial(load, object_storage(self.settings), start, stop))

    def _load_range(self, storage: ObjectStorage, start: int, stop: int) -> Piece:
        return Piece(start, storage.fetch(self.address, self.version, start, stop))

    def _load_block(self, storage: ObjectStorage, start: int, stop: int) -> Piece:
        """Returns a block, from the cache of the node where that can be."""
        fetch = partial(storage.fetch, self.address, self.version, start, stop)
        block = storage.cache.obtain(f"{self.name}-{start}-{stop}", stop - start, fetch)
        return Piece(start, fetch()) if block is None else Piece(start, *block)

    def _read_announced(self, storage: ObjectStorage, keys: Sequence[Key], first: int) -> list[Bytes]:
        """Returns some ranges, in their order, from one that was announced on; none if it was not."""
        started = time.perf_counter()
        with daemons_stopped():
            pieces, waited = storage.ranges.use(keys, first)
            if not pieces:
                pieces, waited = storage.blocks.use(keys, first)
        if not pieces:
            return []
        parts = [_cut(piece, *key[1:]) for piece, key in zip(pieces, keys[first : first + len(pieces)], strict=True)]
        self._last_stop = sum(keys[first + len(pieces) - 1][1:])
        self._book(sum(map(len, parts)), num_reads=len(parts), started=started if waited else None)
        return parts

    def _read(self, storage: ObjectStorage, offset: int, length: int) -> Bytes:
        """Returns a range that nobody announced."""
        if not length:
            return np.empty(0, dtype=np.uint8)
        started = time.perf_counter()
        is_next = self._last_stop is not None and 0 <= offset - self._last_stop < self.settings.block_bytes
        self._last_stop = offset + length
        if is_next and length <= self.settings.block_bytes:
            data, waited = self._read_by_block(storage, offset, length)
        else:  # a large range in parts that are fetched at the same time
            stop, step = offset + length, self.settings.block_bytes
            fetch = partial(storage.fetch, self.address, self.version)
            data = _joined(
                storage.together([partial(fetch, at, min(at + step, stop)) for at in range(offset, stop, step)])
            )
            waited = True
        self._book(length, num_reads=1, started=started if waited else None)
        return data

    def _book(self, num_bytes: int, *, num_reads: int, started: float | None) -> None:
        """Counts reads; the first of them was waited for since `started`, where it was."""
        if started is None:
            count_reads(self.path, bytes_used=num_bytes, hits=num_reads)
            return
        seconds = time.perf_counter() - started
        count_reads(self.path, bytes_used=num_bytes, hits=num_reads - 1, waits=1, wait_seconds=seconds)

    def _read_by_block(self, storage: ObjectStorage, offset: int, length: int) -> tuple[Bytes, bool]:
        """Returns a range that follows the one before, out of aligned blocks, and whether that meant waiting."""
        size = self.settings.block_bytes
        parts: list[Bytes] = []
        has_waited = False
        for start in range(offset // size * size, offset + length, size):
            piece, waited = self._aligned_block(storage, start)
            has_waited = has_waited or waited
            begin = max(offset, start)
            parts.append(_cut(piece, begin, min(offset + length, start + size) - begin))
        return _joined(parts), has_waited

    def _aligned_block(self, storage: ObjectStorage, start: int) -> tuple[Piece, bool]:
        if (last := self._last_block) is not None and last[0] == start:
            return Piece(*last), False
        piece = self._load_block(storage, start, min(start + self.settings.block_bytes, self.num_bytes))
        self._last_block = (start, piece.bytes)
        return piece, not piece.was_cached

    def _read_at_once(self, storage: ObjectStorage, keys: Sequence[Key]) -> list[Bytes]:
        """Returns ranges that nobody announced, fetched at the same time."""
        started = time.perf_counter()
        fetch = partial(storage.fetch, self.address, self.version)
        fetched: list[Bytes] = storage.together([partial(fetch, at, at + count) for _, at, count in keys])
        seconds = time.perf_counter() - started
        count_reads(self.path, bytes_used=sum(map(len, fetched)), waits=len(fetched), wait_seconds=seconds)
        return fetched


def _is_expected(storage: ObjectStorage, key: Key) -> bool:
    return storage.ranges.expects(key) or storage.blocks.expects(key)


def _cut(piece: Piece, offset: int, length: int) -> Bytes:
    return piece.bytes[offset - piece.start : offset - piece.start + length]


def _joined(parts: Sequence[Bytes]) -> Bytes:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
