"""Many files or objects as one range of bytes; the gaps between them read as zeros."""

from __future__ import annotations

import bisect
import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tokenloom.errors import StorageError
from tokenloom.forks import cached_property
from tokenloom.kernels.storage import map_extents
from tokenloom.storage.addresses import ObjectVersion, is_remote
from tokenloom.storage.local import (
    MAP_LESS,
    Bytes,
    ByteSource,
    Integers,
    PositionalFile,
    Ranges,
    out_of_range,
    sampled_hash,
)
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.versions import FileVersion

_NUM_PIECES = 8  # number of pieces hashed per file; a few suffice, as files of other tokens differ nearly everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFile:
    """The values that identify an unchanged file (size, modification time, sampled hash) or object (size, etag)."""

    path: str
    num_bytes: int
    modified_ns: int | None = None
    sample: str | None = None
    etag: str | None = None


def record_file(path: str, *, version: FileVersion | None = None) -> RecordedFile:
    """Makes the `RecordedFile` of a file or object; `ChangedFileError` if the version of the file is not `version`."""
    if is_remote(path):
        remote = RemoteFile(path).version
        return RecordedFile(path=path, num_bytes=remote.num_bytes, etag=remote.etag)
    source = PositionalFile(path)
    if version is not None:
        version.check(source.version, path)
    sample, modified_ns = sampled_hash(source, num_pieces=_NUM_PIECES), source.version.modified_ns
    return RecordedFile(path=path, num_bytes=source.num_bytes, modified_ns=modified_ns, sample=sample)


@dataclass(frozen=True)
class Extents:
    """Byte ranges of parts (files or objects) in a joint range: ascending `starts`, and `sizes`, int64[num_parts]."""

    starts: Integers
    sizes: Integers

    @classmethod
    def aligned(cls, sizes: Sequence[int], *, alignment: int) -> Extents:
        """Places parts in order at multiples of `alignment`; an empty part starts at the end of the part before it."""
        starts, stop = [], 0
        for size in sizes:
            start = -(-stop // alignment) * alignment if size else stop
            starts.append(start)
            stop = start + size
        return cls(np.array(starts, dtype=np.int64), np.array(sizes, dtype=np.int64))

    @classmethod
    def whole(cls, num_bytes: int) -> Extents:
        return cls(np.zeros(1, dtype=np.int64), np.array([num_bytes], dtype=np.int64))

    @property
    def num_bytes(self) -> int:
        """The size of the joint range in bytes, including gaps."""
        return int(self.starts[-1] + self.sizes[-1]) if len(self.starts) else 0

    @cached_property
    def _lists(self) -> tuple[list[int], list[int], list[int]]:
        """Starts, sizes and cumulative sizes as lists, which are bisected ten times as fast as arrays."""
        return self.starts.tolist(), self.sizes.tolist(), [0, *np.cumsum(self.sizes).tolist()]

    @property
    def num_held_bytes(self) -> int:
        """The number of bytes of all parts, without gaps."""
        return self._lists[2][-1]

    def holds(self, offset: int, length: int) -> bool:
        """Returns whether no byte of [offset, offset + length) is in a gap."""
        return self.held_before(offset + length) - self.held_before(offset) == length

    def parts_at(self, offsets: Integers) -> Integers:
        """Returns the part index, int64[count], of each offset; offsets in a gap belong to the part before the gap."""
        return np.asarray(np.searchsorted(self.starts, offsets, side="right") - 1)

    def held_before(self, offset: int) -> int:
        """Returns the number of bytes before an offset, not counting gaps."""
        starts, sizes, sums = self._lists
        part = bisect.bisect_right(starts, offset) - 1
        return 0 if part < 0 else sums[part] + min(offset - starts[part], sizes[part])

    def pieces(self, offset: int, length: int) -> Iterator[tuple[int, int, int]]:
        """Yields (part index, offset in the part, length) for each part that overlaps [offset, offset + length)."""
        if length == 0:
            return
        first, last = self.parts_at(np.array([offset, offset + length - 1])).tolist()
        for part in range(first, last + 1):
            start = int(self.starts[part])
            begin, end = max(offset - start, 0), min(offset + length - start, int(self.sizes[part]))
            if begin < end:
                yield part, begin, end - begin


class ExtentSource(ByteSource):
    """A `ByteSource` that joins `files` (files or objects) to one range of bytes; `files[i]` is part i of `extents`.

    If `mmap` is True and no part is an object, starts in `extents` must be multiples of the page size. The first read
    then maps all files into one range of addresses (two mappings and no descriptor per file), and compares the files
    with their records. Otherwise, the first read of a part opens the file or object; a file is compared with its
    record. `recorded_in` is the path of the file that contains the records, for messages.
    """

    def __init__(
        self,
        files: Sequence[RecordedFile],
        extents: Extents,
        *,
        recorded_in: str,
        mmap: bool,
        settings: ObjectStorageSettings | None = None,
    ) -> None:
        self.files = files
        self.extents = extents
        self.recorded_in = recorded_in
        self._hint = f"`{recorded_in}` lists this file; restore the file, or write `{recorded_in}` again"
        self.remote_paths: list[str] = [file.path for file in files if is_remote(file.path)]
        self._is_mapped = mmap and not self.remote_paths
        self._settings = settings
        self._bytes: Bytes | None = None
        self._sources: dict[int, ByteSource] = {}

    @property
    def num_bytes(self) -> int:
        return self.extents.num_bytes

    @property
    def mapped(self) -> Bytes | None:
        if self._bytes is None and self._is_mapped:
            self._bytes = self._map()
        return self._bytes

    def read(self, offset: int, length: int) -> Bytes:
        if offset < 0 or length < 0 or offset + length > self.num_bytes:
            raise out_of_range(self.recorded_in, offset, length, self.num_bytes)
        if (data := self.mapped) is not None:
            return data[offset : offset + length]
        # Reads all pieces before it allocates memory for the whole range, as a recorded size may be wrong.
        pieces = [(*each[:2], self.source(each[0]).read(*each[1:])) for each in self.extents.pieces(offset, length)]
        if len(pieces) == 1 and len(pieces[0][2]) == length:
            return pieces[0][2]
        found = np.zeros(length, dtype=np.uint8)
        for part, begin, data in pieces:
            at = int(self.extents.starts[part]) + begin - offset
            found[at : at + len(data)] = data
        return found

    def read_many(self, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[Bytes]:
        """Yields the bytes of many ranges, in argument order; ranges of one object are fetched concurrently."""
        if not self.remote_paths:
            yield from map(self.read, offsets, lengths)
            return
        parts = self.extents.parts_at(np.asarray(offsets, dtype=np.int64)).tolist()
        for part, numbers in groupby(range(len(parts)), key=parts.__getitem__):
            run, start = list(numbers), int(self.extents.starts[part])
            yield from self.source(part).read_many([offsets[n] - start for n in run], [lengths[n] for n in run])

    def will_need(self, offsets: Integers, lengths: Integers, *, blocks: Ranges | None = None) -> None:
        """Announces reads of objects, see `RemoteFile.will_need`; each range must lie within one part."""
        if not self.remote_paths:
            return
        parts = self.extents.parts_at(offsets)
        for part in dict.fromkeys(parts[lengths > 0].tolist()):
            if is_remote(self.files[part].path) and isinstance(source := self.source(part), RemoteFile):
                mine, start = (parts == part) & (lengths > 0), int(self.extents.starts[part])
                around = None if blocks is None else (blocks[0][mine] - start, blocks[1][mine] - start)
                source.will_need(offsets[mine] - start, lengths[mine], blocks=around)

    def check(self, offsets: Integers | None = None) -> None:
        """Compares the files at byte `offsets` (None: all files) with their records; objects are compared when read."""
        if self.mapped is None:
            parts = range(len(self.files)) if offsets is None else np.unique(self.extents.parts_at(offsets)).tolist()
            for part in parts:
                self.source(part)

    def problems(self) -> Iterator[str]:
        """Yields one sentence for each file that is missing or differs from its record."""
        for file in self.files:
            try:
                self._open(file)
            except StorageError as error:
                yield error.message

    def source(self, part: int) -> ByteSource:
        """Returns the byte source of `files[part]`; the first call compares a file with its record."""
        if (source := self._sources.get(part)) is None:
            source = self._sources[part] = self._open(self.files[part])
        return source

    def _open(self, file: RecordedFile) -> ByteSource:
        if is_remote(file.path):
            return RemoteFile(file.path, self._settings, ObjectVersion(num_bytes=file.num_bytes, etag=file.etag))
        try:
            source = PositionalFile(file.path)
        except StorageError as error:
            raise StorageError(error.message, hint=self._hint) from error
        self._compare(file, source, source.num_bytes, source.version.modified_ns)
        return source

    def version(self, part: int) -> FileVersion | None:
        """Returns the version of `files[part]`, or None for an object; the first call compares file and record."""
        source = self.source(part)
        return source.version if isinstance(source, PositionalFile) else None

    def _map(self) -> Bytes:
        places = np.stack([self.extents.starts, self.extents.sizes])
        try:
            data, found = map_extents([file.path for file in self.files], places, num_bytes=self.num_bytes)
        except OSError as error:
            message, hint = f"cannot open `{error.filename}`: {error.strerror}", self._hint
            if error.errno == errno.ENOMEM:
                hint = f"`{self.recorded_in}` takes up to {2 * len(self.files)} mappings: {MAP_LESS}"
            raise StorageError(message, hint=hint) from error
        recorded = [(file.num_bytes, file.modified_ns) for file in self.files]
        sizes_and_times = found[:, 2:4]  # columns of `kernels.Facts`
        others = (sizes_and_times != np.array(recorded, dtype=np.int64).reshape(-1, 2)).any(axis=1)
        for part in np.flatnonzero(others).tolist():
            start, (num_bytes, modified_ns) = int(self.extents.starts[part]), sizes_and_times[part].tolist()
            self._compare(self.files[part], data[start : start + num_bytes], num_bytes, modified_ns)
        return data

    def _compare(self, file: RecordedFile, source: ByteSource | Bytes, num_bytes: int, modified_ns: int) -> None:
        difference = f"expected {file.num_bytes} bytes, found {num_bytes}"
        if num_bytes == file.num_bytes:
            if modified_ns == file.modified_ns or sampled_hash(source, num_pieces=_NUM_PIECES) == file.sample:
                return
            difference = f"it still has {num_bytes} bytes, but other contents"
        message = f"`{file.path}` is not the file that `{self.recorded_in}` was written for: {difference}"
        raise StorageError(message, hint=self._hint)


def extents_of(source: ByteSource) -> Extents:
    """Returns the extents of a source; a source that is one file has a single part."""
    return source.extents if isinstance(source, ExtentSource) else Extents.whole(source.num_bytes)
