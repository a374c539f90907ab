"""Which record of which input file each document of a pair was made of: `PREFIX.origins`, a file beside the pair.

Readers that do not know the file read the pair as before. FORMAT.md describes the bytes; `origins_file.py` and
`origin_blocks.py` are their owners.

How a job makes them: `Origins.from_runs` for the documents that a shard reads, `Origins.concatenated` of the shards
with the masks of what a dataset takes of each, `write_origins` beside the pair. That returns a file which appears with
the pair, and the checksum that the `PairFacts` of its manifest have as `origins`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError, StorageError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifest.contents import FileChecksum, index_start_crc32
from tokenloom.indexed.origin_blocks import Blocks, PackedRuns
from tokenloom.indexed.origin_runs import MOST_RECORDS
from tokenloom.indexed.origin_runs import OriginFile as OriginFile
from tokenloom.indexed.origin_runs import OriginRuns as OriginRuns
from tokenloom.indexed.origins_file import OriginsFileWriter, parse_origins
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.copies import PendingObject
from tokenloom.storage.resolve import is_missing, map_whole
from tokenloom.storage.settings import ObjectStorageSettings

_BLOCKS_AT_ONCE = 512
"""130,000 runs: what unpacking them needs stays in the cache."""


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

    def __init__(self, files: Sequence[OriginFile], blocks: Blocks) -> None:
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
    def from_runs(files: Sequence[OriginFile], runs: OriginRuns | Iterable[OriginRuns]) -> Origins:
        """Returns origins in memory, packed as they are in a file.

        Args:
            files: the files that runs are of.
            runs: all documents, in order, at once or in pieces; adjacent runs are joined, empty ones left out.

        Raises:
            ConfigError: a run is of a file or of records that cannot be.
        """
        packing = PackedRuns()
        for part in [runs] if isinstance(runs, OriginRuns) else runs:
            check_runs(part, num_files=len(files))
            packing.append(part)
        return Origins(files, packing.blocks(num_files=len(files)))

    @staticmethod
    def concatenated(parts: Sequence[OriginsPart]) -> Origins | None:
        """Returns the origins of the documents of all parts, in order; None if no part has any.

        Equal files become one. Parts without origins give documents whose origin is not known.

        Args:
            parts: of each the origins or None, its number of documents, and which of them are taken: a
                bool[num_documents], or None for all.
        """
        joining = JoinedOrigins()
        for origins, num_documents, mask in parts:
            joining.append(origins, range(num_documents), mask)
        return joining.origins()

    def runs(self) -> OriginRuns:
        """Returns the runs of all documents, in order: 20 bytes for each."""
        return OriginRuns.concatenated(list(self.pieces()))

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

    def select(self, mask: NDArray[np.bool_] | None) -> Origins:
        """Returns the origins of some of the documents.

        Args:
            mask: bool[num_documents], whether each is kept; None keeps all.
        """
        if mask is None:
            return self
        packing, at = PackedRuns(), 0
        for runs in self.pieces():
            for piece in runs.pieces():
                count = int(piece.num_documents.sum())
                packing.append(piece.select(mask[at : at + count]))
                at += count
        return Origins(self.files, packing.blocks(num_files=len(self.files)))

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


OriginsPart = tuple[Origins | None, int, NDArray[np.bool_] | None]
"""Origins or None, a number of documents, and which of them are taken: bool[num_documents], None for all."""


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
    content = parse_origins(data, name=path)
    pair = IndexedDataset(prefix, object_storage=object_storage)
    if (found := content.blocks.num_documents) != pair.num_documents:
        message = f"`{path}`: expected the {pair.num_documents} documents of the pair, found {found}"
        raise DatasetFormatError(message, hint="the file belongs to other data; remove it to do without origins")
    if content.index_start_crc32 != index_start_crc32(pair.index.header, pair.index.arrays.lengths):
        message = f"`{path}` was written for another pair than the one that is there"
        raise DatasetFormatError(message, hint="if the data were replaced on purpose, remove it; else write them again")
    return Origins(content.files, content.blocks)


def origin_problems(prefix: str, *, object_storage: ObjectStorageSettings | None = None) -> Iterator[str]:
    """Yields a sentence if the origins beside a pair are damaged or of another pair; they are read as a whole."""
    try:
        for _ in () if (origins := read_origins(prefix, object_storage=object_storage)) is None else origins.pieces():
            pass
    except DatasetFormatError as error:
        yield error.message


def write_origins(
    origins: Origins, prefix: str, *, index_start_crc32: int, durable: bool = True
) -> tuple[PendingFile | PendingObject, FileChecksum]:
    """Writes `PREFIX.origins`, and returns the file, which has no name yet, and its checksum.

    Args:
        origins: origins of all documents of the pair.
        prefix: prefix of the pair.
        index_start_crc32: that of the pair, as `PairFacts` has it; `checksums.start_crc32_of` reads it from an index.
        durable: whether it survives a loss of power once it is published.

    Raises:
        StorageError: writing failed.
    """
    return write_runs(prefix, origins.files, origins.pieces(), index_start_crc32=index_start_crc32, durable=durable)


def write_runs(
    prefix: str,
    files: Sequence[OriginFile],
    runs: Iterable[OriginRuns],
    *,
    index_start_crc32: int,
    durable: bool = True,
) -> tuple[PendingFile | PendingObject, FileChecksum]:
    """Writes the same from runs as they come, which are not kept."""
    writer = OriginsFileWriter(origins_path(prefix), durable=durable)
    try:
        for part in runs:
            check_runs(part, num_files=len(files))
            writer.append(part)
        return writer.finish(files, index_start_crc32=index_start_crc32)
    except BaseException:
        writer.discard()
        raise


class JoinedOrigins:
    """The origins of documents of many pairs, in order, as those of one. Equal files become one.

    Memory: the table of files, and what takes the runs.

    Args:
        append: takes runs as they come, such as `OriginsFileWriter.append`; None keeps them, packed, for `origins`.

    Attributes:
        num_documents: documents so far.
        are_known: whether any part had origins.
    """

    def __init__(self, append: Callable[[OriginRuns], None] | None = None) -> None:
        self._packing = PackedRuns()
        self._append = self._packing.append if append is None else append
        self._files: dict[tuple[str, int, str | None, str], OriginFile] = {}
        self._places: dict[tuple[str, int, str | None, str], int] = {}
        self.num_documents: int = 0
        self.are_known: bool = False

    @property
    def files(self) -> tuple[OriginFile, ...]:
        """The files of all parts so far."""
        return tuple(self._files.values())

    def append(self, origins: Origins | None, documents: range, mask: NDArray[np.bool_] | None = None) -> None:
        """Appends documents of a pair; runs pass in pieces.

        Args:
            origins: origins of all of its documents; None if they are not known.
            documents: which are looked at.
            mask: bool[num_documents of the pair], which of these are taken; None for all.
        """
        if origins is None:
            kept = len(documents) if mask is None else int(np.count_nonzero(mask[documents.start : documents.stop]))
            self._put(OriginRuns.unknown(kept))
            return
        self.are_known = True
        numbers, at = self._numbers(origins.files), documents.start
        for runs in origins.pieces(documents):
            for piece in [runs] if mask is None else runs.pieces():
                count = int(piece.num_documents.sum())
                self._put((piece if mask is None else piece.select(mask[at : at + count])).renumbered(numbers))
                at += count

    def origins(self) -> Origins | None:
        """Returns the origins of all documents, which were kept; None if those of none are known."""
        return Origins(self.files, self._packing.blocks(num_files=len(self._files))) if self.are_known else None

    def _put(self, runs: OriginRuns) -> None:
        self.num_documents += int(runs.num_documents.sum())
        self._append(runs)

    def _numbers(self, table: Sequence[OriginFile]) -> NDArray[np.int32]:
        """Returns the numbers of files among all: int32[num_files]; of several numbers of records, the largest counts.

        Files are the same if path, size, version and unit are.
        """
        numbers = np.empty(len(table), dtype=np.int32)
        for number, file in enumerate(table):
            key = file.path, file.num_bytes, file.version, file.unit
            numbers[number] = self._places.setdefault(key, len(self._places))
            known = self._files.setdefault(key, file)
            if (known.num_records or 0) < (file.num_records or 0):
                self._files[key] = replace(known, num_records=file.num_records)
        return numbers


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
