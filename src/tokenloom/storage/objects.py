"""Objects of a store: read by exact ranges, by cached blocks, ahead of time or as local copies; and written.

A range that was announced is fetched exactly, merged with near neighbours, and kept in memory until it is read: the
cheapest way through a full shuffle, where neighbours in a block are needed at other times. Orders that stay within some
blocks for a while, and readers that walk through an object, go by blocks, which all processes of the node share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.progress import task, waiting_for
from tokenloom.rendering.words import size
from tokenloom.storage.addresses import ObjectAddress, ObjectVersion, parse_address, short_hash
from tokenloom.storage.atomic import PendingFile, storage_errors, write_at
from tokenloom.storage.ending import daemons_stopped
from tokenloom.storage.local import Bytes, outside
from tokenloom.storage.object_storage import ObjectStorage, Piece, filling, object_storage
from tokenloom.storage.read_ahead import Chunk, merge_ranges
from tokenloom.storage.secrets import queries_for_child, query_of, remember
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
        unknown = [number for number, key in enumerate(keys) if key[2] and not storage.ahead.expects(key)]
        at_once: dict[int, Bytes] = {}
        if len(unknown) > 1:
            started = time.perf_counter()
            fetch = partial(storage.fetch, self.address, self.version)
            fetched = storage.together([partial(fetch, keys[n][1], sum(keys[n][1:])) for n in unknown])
            at_once = dict(zip(unknown, fetched, strict=True))
            self._book(sum(map(len, fetched)), num_waits=len(fetched), started=started)
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
        load = partial(storage.fetch, self.address, self.version)
        if blocks is not None:
            around = zip(blocks[0][used].tolist(), blocks[1][used].tolist(), strict=True)
            names = [(self.name, *each) for each in around]
            load = partial(self._load_block, storage)
        else:
            requests = merge_ranges(offsets[used], lengths[used], most_bytes=self.settings.block_bytes)
            chunks = {number: (self.name, start, stop) for start, stop, members in requests for number in members}
            names = [chunks[number] for number in range(len(keys))]

        def make(name: Any) -> Chunk[Piece]:
            _, start, stop = name
            return Chunk(stop - start, lambda: (start, load(start, stop)))

        storage.ahead.announce(list(zip(keys, names, strict=True)), make)

    def _load_block(self, storage: ObjectStorage, start: int, stop: int) -> Bytes:
        """Returns a block, from the cache of the node where that can be."""
        fetch = partial(storage.fetch, self.address, self.version, start, stop)
        data = storage.cache.obtain(f"{self.name}-{start}-{stop}", stop - start, fetch)
        return fetch() if data is None else data

    def _read_announced(self, storage: ObjectStorage, keys: Sequence[Key], first: int) -> list[Bytes]:
        """Returns some ranges, in their order, from one that was announced on; none if it was not."""
        started = time.perf_counter()
        with daemons_stopped():
            pieces, waited = storage.ahead.use(keys, first)
        if not pieces:
            return []
        parts = [_cut(piece, *key[1:]) for piece, key in zip(pieces, keys[first : first + len(pieces)], strict=True)]
        self._last_stop = sum(keys[first + len(pieces) - 1][1:])
        self._book(sum(map(len, parts)), num_hits=len(parts) - waited, num_waits=int(waited), started=started)
        return parts

    def _read(self, storage: ObjectStorage, offset: int, length: int) -> Bytes:
        """Returns a range that nobody announced; one that follows the range before out of aligned blocks."""
        if not length:
            return np.empty(0, dtype=np.uint8)
        started, stop, step, num_fetched = time.perf_counter(), offset + length, self.settings.block_bytes, 1
        is_next = self._last_stop is not None and 0 <= offset - self._last_stop < step
        self._last_stop = stop
        if is_next and length <= step:
            parts, num_fetched = [], 0
            for start in range(offset // step * step, stop, step):
                if self._last_block is None or self._last_block[0] != start:
                    num_fetched += 1
                    self._last_block = start, self._load_block(storage, start, min(start + step, self.num_bytes))
                begin = max(offset, start)
                parts.append(_cut(self._last_block, begin, min(stop, start + step) - begin))
        else:  # a large range in parts that are fetched at the same time
            fetch = partial(storage.fetch, self.address, self.version)
            parts = storage.together([partial(fetch, at, min(at + step, stop)) for at in range(offset, stop, step)])
        has_waited = num_fetched > 0
        self._book(length, num_hits=int(not has_waited), num_waits=int(has_waited), started=started)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _book(self, num_bytes: int, *, started: float, num_hits: int = 0, num_waits: int = 0) -> None:
        """Counts reads; those that waited did so since `started`."""
        seconds = time.perf_counter() - started if num_waits else 0.0
        count_reads(self.path, bytes_used=num_bytes, hits=num_hits, waits=num_waits, wait_seconds=seconds)


def _cut(piece: Piece, offset: int, length: int) -> Bytes:
    start, data = piece
    return data[offset - start : offset - start + length]


def local_copy(remote: RemoteFile) -> str:
    """Returns the path of a local file with the bytes of an object, downloaded once for all processes of the node.

    Its name is made of hashes of the address, and of etag and size: no key leads out of the folder, and an object that
    changed has another copy. The copies of earlier versions are removed; who has mapped one keeps it.

    Raises:
        StorageError: the object cannot be read, or the copy cannot be written.
    """
    storage = object_storage(remote.settings)
    folder = storage.subfolder("copies")
    address = short_hash(remote.address)
    path = os.path.join(folder, f"{address}-{short_hash(remote.version.num_bytes, remote.version.etag)}")
    while not os.path.exists(path):
        with storage_errors("write", path), filling(path) as part:
            if part is not None:
                descriptor, part_path = part
                _download(storage, remote, descriptor)
                os.fsync(descriptor)
                os.rename(part_path, path)
                _remove_others(folder, address, os.path.basename(path))
    return path


def scratch_folder(path: str) -> str:
    """Returns a local folder, made if need be, for what becomes objects; the same for the same address."""
    return object_storage(ObjectStorageSettings()).subfolder(os.path.join("jobs", short_hash(path)))


def _download(storage: ObjectStorage, remote: RemoteFile, descriptor: int) -> None:
    step = remote.settings.block_bytes

    def copy(start: int) -> None:
        data: Bytes = storage.fetch(remote.address, remote.version, start, min(start + step, remote.num_bytes))
        write_at(descriptor, data.data, start)
        advance(len(data))
        count_reads(str(remote.address), bytes_used=len(data))

    os.ftruncate(descriptor, remote.num_bytes)
    with task(f"download of {remote.address}", unit="bytes", total=remote.num_bytes) as advance:
        storage.together([partial(copy, start) for start in range(0, remote.num_bytes, step)])


def _remove_others(folder: str, address: str, name: str) -> None:
    for other in os.listdir(folder):
        if other.startswith(f"{address}-") and other != name and not other.endswith(".part"):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, other))


class PendingObject(PendingFile):
    """An object being written to a local file; `publish` uploads it, and it appears in one step.

    Needs room for the whole object in the cache folder of object storage.

    Args:
        path: the address.
        settings: settings of the storage.
    """

    def __init__(self, path: str, settings: ObjectStorageSettings | None = None) -> None:
        self._address = parse_address(path)
        if query_of(str(self._address)) is not None:
            message = f"expected an address to write to without a query, found `{self._address}?…`"
            raise ConfigError(message, hint="signed addresses are for reading")
        storage = object_storage(settings or ObjectStorageSettings())
        self._client = storage.client(self._address)
        local = os.path.join(storage.subfolder("uploads"), f"{short_hash(path)}-{os.getpid()}-{id(self):x}")
        super().__init__(local, durable=False)
        self.path: str = str(self._address)

    def publish(self) -> None:
        """Uploads the object, replacing what had its name, and removes the local file."""
        try:
            self.sync()
            what = f"the upload of `{self.path}`, {size(os.path.getsize(self.readable_path))}"
            with waiting_for(what):
                self._client.upload(self._address, self.readable_path)
        finally:
            self.discard()
