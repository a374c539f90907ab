"""Which record of which input file each document of a pair was made of: `PREFIX.origins`, a file beside the pair.

Readers that do not know the file read the pair as before. It has a header, packed runs, a table of files and a
directory; FORMAT.md describes the bytes, this module and `origin_blocks.py` are their owners.

A job writes them by `write_runs`, which returns a file that appears with the pair, and the checksum that the
`PairFacts` of its manifest have as `origins`.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError, StorageError
from tokenloom.indexed.checksums import FileTally
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifest.contents import FileChecksum, index_start_crc32
from tokenloom.indexed.origin_blocks import BLOCK_RUNS, ENTRY, MOST_RECORDS, BlockEncoder, Blocks
from tokenloom.indexed.origin_blocks import OriginFile as OriginFile
from tokenloom.indexed.origin_blocks import OriginRuns as OriginRuns
from tokenloom.kernels import crc32
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.copies import PendingObject
from tokenloom.storage.json_files import UnusableJsonError, from_members, members_of, parse_json
from tokenloom.storage.locks import write_at
from tokenloom.storage.resolve import is_missing, map_whole, open_pending
from tokenloom.storage.settings import ObjectStorageSettings

MAGIC = b"TLORIGIN"
VERSION = 1
HEADER = struct.Struct("<8sIIIIQQQQQ")
HEADER_BYTES = HEADER.size  # 64
_CRC_AT = 12
_MOST_TABLE_BYTES = 1 << 29
"""More is refused: room for some millions of files."""
_MOST_RATIO = 100
"""More is refused of what was compressed: names that differ in numbers alone come to 21."""
_BLOCKS_AT_ONCE = 512
"""130,000 runs: what unpacking them needs stays in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """The files that documents came from."""

    files: tuple[OriginFile, ...]


def origins_path(prefix: str) -> str:
    """Returns the path of the origins of a prefix."""
    return prefix + ".origins"


class Origins:
    """Where the documents of a pair come from. Safe from several threads; not picklable (owners open it again).

    Example:
        >>> import numpy as np
        >>> file = OriginFile(path="a.jsonl", num_bytes=100, unit="line")
        >>> origins = Origins.from_runs([file], OriginRuns.of([(0, 1, 2), (0, 4, 3)]))
        >>> [numbers.tolist() for numbers in origins.locate(np.array([1, 2]))]
        [[0, 0], [2, 4]]
        >>> origins.documents_of(0, 5).tolist()
        [3]

    Attributes:
        num_documents: number of documents of the pair, entries of its document index.
        files: the input files, in the order of their numbers; some may have given no document.
    """

    def __init__(self, files: Collection[OriginFile], blocks: Blocks) -> None:
        self.files: tuple[OriginFile, ...] = tuple(files)
        self.num_documents: int = blocks.num_documents
        self._blocks = blocks

    @property
    def num_runs(self) -> int:
        """Runs of documents from consecutive records."""
        return self._blocks.num_runs

    @property
    def num_known(self) -> int:
        """Documents whose origin is known; O(runs)."""
        return sum(int(runs.num_documents[runs.file_numbers >= 0].sum()) for runs in self.pieces())

    @staticmethod
    def from_runs(files: Collection[OriginFile], runs: OriginRuns | Iterable[OriginRuns]) -> Origins:
        """Returns origins in memory, packed as they are in a file.

        Args:
            files: the files that runs are of.
            runs: all documents, in order, at once or in pieces; adjacent runs are joined, empty ones left out.

        Raises:
            ConfigError: a run is of a file or of records that cannot be.
        """
        data = bytearray()
        encoder = BlockEncoder(data.extend)
        for part in [runs] if isinstance(runs, OriginRuns) else runs:
            check_runs(part, num_files=len(files))
            encoder.append(part)
        directory = encoder.finish()
        blocks = Blocks(
            directory,
            np.frombuffer(data, dtype=np.uint8),
            num_documents=encoder.num_documents,
            num_runs=encoder.num_runs,
            num_files=len(files),
            name="origins in memory",
        )
        return Origins(files, blocks)

    def pieces(self, documents: range | None = None) -> Iterator[OriginRuns]:
        """Yields the runs of consecutive documents, some 130,000 of them at once.

        Args:
            documents: which; None for all.
        """
        chosen = range(self.num_documents) if documents is None else documents
        if not len(chosen):
            return
        first, last = self._blocks.blocks_of(np.array([chosen.start, chosen.stop - 1])).tolist()
        for begin in range(first, last + 1, _BLOCKS_AT_ONCE):
            end = min(begin + _BLOCKS_AT_ONCE, last + 1)
            runs, starts = self._blocks.unpack(np.arange(begin, end))
            if begin == first or end == last + 1:
                stop = int(starts[-1] + runs.num_documents[-1])
                offset = int(starts[0])
                runs = runs.clipped(max(chosen.start, offset) - offset, min(chosen.stop, stop) - offset)
            yield runs

    def locate(self, documents: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns where documents come from; only the blocks of 256 runs that hold them are unpacked.

        Args:
            documents: int64[num_asked], in any order.

        Returns:
            int32[num_asked], the numbers of their files in `files`, and int64[num_asked], records of these, from 1;
            -1 and 0 where that is not known.

        Raises:
            ConfigError: there is no such document.
            DatasetFormatError: what they need of the file is damaged.
        """
        asked = np.asarray(documents, dtype=np.int64)
        if len(asked) and not 0 <= int(asked.min()) <= int(asked.max()) < self.num_documents:
            message = f"expected documents from 0 to {self.num_documents - 1}, found {asked.min()} to {asked.max()}"
            raise ConfigError(message)
        files, records = np.full(len(asked), -1, dtype=np.int32), np.zeros(len(asked), dtype=np.int64)
        order = np.argsort(asked, kind="stable")
        rising = asked[order]
        blocks = self._blocks.blocks_of(rising)
        needed, firsts = np.unique(blocks, return_index=True)
        bounds = np.append(firsts, len(rising))
        for begin in range(0, len(needed), _BLOCKS_AT_ONCE):
            end = min(begin + _BLOCKS_AT_ONCE, len(needed))
            runs, starts = self._blocks.unpack(needed[begin:end])
            mine = slice(int(bounds[begin]), int(bounds[end]))
            found = np.searchsorted(starts, rising[mine], side="right") - 1
            files[order[mine]] = runs.file_numbers[found]
            records[order[mine]] = runs.first_records[found] + rising[mine] - starts[found]
        records[files < 0] = 0
        return files, records

    def documents_of(self, file: int, record: int) -> NDArray[np.int64]:
        """Returns the documents that were made of a record, rising; none if it gave none.

        Args:
            file: number of the file in `files`.
            record: number of its record, from 1.

        Raises:
            ConfigError: there is no such file.
            DatasetFormatError: what it needs of the file is damaged.
        """
        if not 0 <= file < len(self.files):
            message = f"expected a file from 0 to {len(self.files) - 1}, found {file}"
            raise ConfigError(message)
        entries = self._blocks.directory
        may_hold = (entries["base_file"] <= file) & (entries["max_file"] >= file)
        may_hold &= (entries["min_record"] <= record) & (entries["max_record"] >= record)
        found = [np.empty(0, dtype=np.int64)]
        numbers = np.flatnonzero(may_hold)
        for begin in range(0, len(numbers), _BLOCKS_AT_ONCE):
            runs, starts = self._blocks.unpack(numbers[begin : begin + _BLOCKS_AT_ONCE])
            offsets = record - runs.first_records
            holds = (runs.file_numbers == file) & (offsets >= 0) & (offsets < runs.num_documents)
            found.append((starts + offsets)[holds])
        return np.concatenate(found)


OriginsPart = tuple[Origins | None, range, NDArray[np.bool_] | None]
"""Origins of a pair, None where they are not known; documents of it; and which documents of the pair are taken:
bool[num_documents], None for all."""


def read_origins(prefix: str, *, object_storage: ObjectStorageSettings | None = None) -> Origins | None:
    """Returns the origins beside a pair, mapped; None if there are none. Those in object storage come as a local copy.

    Args:
        prefix: prefix of the pair.
        object_storage: settings of object storage.

    Raises:
        DatasetNotFoundError: there is no such pair.
        DatasetFormatError: they are damaged, or belong to other data.
        StorageError: a store denies access, or does not answer.
    """
    path = origins_path(prefix)
    try:
        data = map_whole(path, settings=object_storage)
    except StorageError as error:
        if is_missing(error):
            return None
        raise
    origins, start = parse_origins(data, name=path)
    pair = IndexedDataset(prefix, object_storage=object_storage)
    if origins.num_documents != pair.num_documents:
        message = f"`{path}`: expected the {pair.num_documents} documents of the pair, found {origins.num_documents}"
        raise DatasetFormatError(message, hint="the file belongs to other data; remove it to do without origins")
    if start != index_start_crc32(pair.index.header, pair.index.arrays.lengths):
        message = f"`{path}` was written for another pair than the one that is there"
        raise DatasetFormatError(message, hint="if the data were replaced on purpose, remove it; else write them again")
    return origins


def origin_problems(prefix: str, *, object_storage: ObjectStorageSettings | None = None) -> Iterator[str]:
    """Yields a sentence if the origins beside a pair are damaged or of another pair; they are read as a whole."""
    try:
        for _ in () if (origins := read_origins(prefix, object_storage=object_storage)) is None else origins.pieces():
            pass
    except DatasetFormatError as error:
        yield error.message


def parse_origins(data: NDArray[np.uint8], *, name: str) -> tuple[Origins, int]:
    """Returns what a file holds, and the `index_start_crc32` of its pair; runs are looked at when they are unpacked.

    Args:
        data: uint8[…], the whole file.
        name: its path, for errors.

    Raises:
        DatasetFormatError: it is foreign, truncated, damaged, or was written by something newer.
    """

    def damaged(*, expected: str, found: object) -> DatasetFormatError:
        message = f"`{name}`: expected {expected}, found {found}"
        return DatasetFormatError(message, hint="write the pair again, or remove the file to do without origins")

    if len(data) < HEADER_BYTES:
        raise damaged(expected=f"a header of {HEADER_BYTES} bytes", found=f"a file of {len(data)} bytes")
    header = data[:HEADER_BYTES].tobytes()
    magic, version, crc, index_start, _, num_documents, num_runs, num_files, packed_bytes, table_bytes = HEADER.unpack(
        header
    )
    if (magic, version) != (MAGIC, VERSION):
        raise damaged(expected=f"{MAGIC!r} and version {VERSION}", found=f"{magic!r} and version {version}")
    num_blocks = -(-num_runs // BLOCK_RUNS)
    directory_at = len(data) - num_blocks * ENTRY.itemsize
    table_at = directory_at - packed_bytes
    most_bytes = min(_MOST_TABLE_BYTES, _MOST_RATIO * packed_bytes)
    if table_at < HEADER_BYTES or table_bytes > most_bytes or not num_runs <= num_documents < MOST_RECORDS:
        counts = f"{num_documents} documents in {num_runs} runs, and {table_bytes} bytes about {num_files} files"
        raise damaged(expected="counts that fit its size", found=counts)
    packed, directory = data[table_at:directory_at].tobytes(), data[directory_at:]
    cleared = header[:_CRC_AT] + bytes(4) + header[_CRC_AT + 4 :]
    if (found := crc32(directory, crc32(packed, crc32(cleared)))) != crc:
        raise damaged(expected=f"CRC-32 {crc:08x} of header, table and directory", found=f"{found:08x}")
    try:
        files = from_members(_Table, parse_json(_unpacked(packed, table_bytes), most_bytes=_MOST_TABLE_BYTES)).files
    except (zlib.error, UnusableJsonError) as error:
        raise damaged(expected="a table of files", found=str(error).removeprefix(": ")) from error
    if len(files) != num_files:
        raise damaged(expected=f"{num_files} files", found=len(files))
    blocks = Blocks(
        np.frombuffer(directory.tobytes(), dtype=ENTRY),
        data[HEADER_BYTES:table_at],
        num_documents=num_documents,
        num_runs=num_runs,
        num_files=num_files,
        name=name,
    )
    return Origins(files, blocks), index_start


def write_runs(
    prefix: str,
    files: Collection[OriginFile],
    runs: Iterable[OriginRuns],
    *,
    index_start_crc32: int,
    durable: bool = True,
) -> tuple[PendingFile | PendingObject, FileChecksum]:
    """Writes `PREFIX.origins` from runs as they come, which are not kept, but for 64 bytes per 256 of them.

    Returns the file, which has no name yet, and its checksum.

    Args:
        prefix: prefix of the pair.
        files: the files that runs are of; more may be there with each run.
        runs: those of all documents, in order.
        index_start_crc32: that of the pair, as `PairFacts` has it; `checksums.start_crc32_of` reads it from an index.
        durable: whether it survives a loss of power once it is published.

    Raises:
        ConfigError: a run is of a file or of records that cannot be; or there are so many files that no reader would
            take them.
        StorageError: writing failed.
    """
    tally, file = FileTally(), open_pending(origins_path(prefix), durable=durable)

    def write(data: bytes | memoryview) -> None:
        file.write(data)
        tally.add(data)

    try:
        file.write(bytes(HEADER_BYTES))
        encoder = BlockEncoder(write)
        for part in runs:
            check_runs(part, num_files=len(files))
            encoder.append(part)
        table = _table_bytes(files)
        directory, packed = encoder.finish().tobytes(), zlib.compress(table)
        write(packed)
        write(directory)
        counts = encoder.num_documents, encoder.num_runs, len(files), len(packed), len(table)
        header = HEADER.pack(MAGIC, VERSION, 0, index_start_crc32, 0, *counts)
        header = HEADER.pack(
            MAGIC, VERSION, crc32(directory, crc32(packed, crc32(header))), index_start_crc32, 0, *counts
        )
        with storage_errors("write", file.path):
            file.stream.flush()
            write_at(file.stream.fileno(), memoryview(header), 0)
        file.sync()
    except BaseException:
        file.discard()
        raise
    whole = FileTally()
    whole.add(header)
    whole.add_part(tally.checksum())
    return file, whole.checksum()


def _table_bytes(files: Collection[OriginFile]) -> bytes:
    table = json.dumps(members_of(_Table(files=tuple(files))), separators=(",", ":")).encode()
    if len(table) > _MOST_TABLE_BYTES:
        message = f"expected a table of at most {_MOST_TABLE_BYTES} bytes, found {len(table)}: {len(files)} files"
        raise ConfigError(message, hint="make several pairs of so many files")
    return table


def joined_origins(parts: Iterable[OriginsPart]) -> tuple[Collection[OriginFile], Iterator[OriginRuns]]:
    """Returns what `write_runs` takes for documents of many pairs, in order, as those of one; runs pass in pieces.

    Files are the same if path, size, version and unit are. Of several numbers of records, the largest counts.
    """
    files: dict[tuple[str, int, str | None, str], OriginFile] = {}
    places: dict[tuple[str, int, str | None, str], int] = {}

    def numbers_of(table: Sequence[OriginFile]) -> NDArray[np.int32]:
        """Returns the numbers of files among all: int32[num_files]."""
        numbers = np.empty(len(table), dtype=np.int32)
        for number, file in enumerate(table):
            key = file.path, file.num_bytes, file.version, file.unit
            numbers[number] = places.setdefault(key, len(places))
            known = files.setdefault(key, file)
            if (known.num_records or 0) < (file.num_records or 0):
                files[key] = replace(known, num_records=file.num_records)
        return numbers

    def joined_runs() -> Iterator[OriginRuns]:
        for origins, documents, mask in parts:
            if origins is None:
                kept = len(documents) if mask is None else int(np.count_nonzero(mask[documents.start : documents.stop]))
                yield OriginRuns.unknown(kept)
                continue
            numbers, at = numbers_of(origins.files), documents.start
            for runs in origins.pieces(documents):
                for piece in [runs] if mask is None else runs.pieces():
                    count = int(piece.num_documents.sum())
                    chosen = piece if mask is None else piece.select(mask[at : at + count])
                    yield chosen.renumbered(numbers)
                    at += count

    return files.values(), joined_runs()


def check_runs(runs: OriginRuns, *, num_files: int) -> None:
    """Checks that runs can be those of so many files.

    Raises:
        ConfigError: they cannot.
    """
    files, firsts, counts = runs.file_numbers, runs.first_records, runs.num_documents
    if not len(files) == len(firsts) == len(counts):
        message = f"expected columns of one length, found {len(files)}, {len(firsts)} and {len(counts)} runs"
        raise ConfigError(message)
    wrong = (files < -1) | (files >= num_files) | (counts < 0) | (counts > MOST_RECORDS)
    wrong |= (files >= 0) & ((firsts < 1) | (firsts > MOST_RECORDS - counts))
    if wrong.any():
        run = np.flatnonzero(wrong)[0]
        message = f"expected runs of {num_files} files and of records from 1 on, found {counts[run]} documents from "
        message += f"record {firsts[run]} of file {files[run]}"
        raise ConfigError(message)


def _unpacked(packed: bytes, num_bytes: int) -> bytes:
    """Returns what a table is without its compression; no more than so many bytes are made."""
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(packed, num_bytes + 1)
    if len(data) != num_bytes or not unpacking.eof or unpacking.unused_data:
        message = f"expected {num_bytes} bytes, found others"
        raise UnusableJsonError(message)
    return data
