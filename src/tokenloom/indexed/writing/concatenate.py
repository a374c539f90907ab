"""Joins datasets into one pair (the operating system copies the tokens), or into a catalogue that lists the pairs.

Every input is opened, and every row of its index checked, before the first byte is written. One input is open at a
time, and rows are read in blocks, so memory depends neither on the number of inputs nor on their size.
"""

from __future__ import annotations

import bisect
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError, StorageError
from tokenloom.indexed.catalogue import Catalogue, CataloguePart, catalogue_path
from tokenloom.indexed.columns import (
    ColumnFacts,
    ColumnWriter,
    WrittenColumn,
    open_column,
    read_columns,
    written_column,
)
from tokenloom.indexed.dataset import IndexedDataset, pin_inputs
from tokenloom.indexed.layout import DType, Header, bin_path, idx_path, prefix_of
from tokenloom.indexed.manifests import Manifest, PairFacts, PairTally, combined_manifest, manifest_bytes
from tokenloom.indexed.origins import OriginsPart, joined_origins, read_origins, write_origins
from tokenloom.indexed.verify import check_columns, check_index, check_tokens
from tokenloom.indexed.writing.outputs import IndexWriter, PendingDataset, existing_path, is_published, publish_datasets
from tokenloom.progress import NOTHING_WRITTEN, if_stopped, task
from tokenloom.setting_types import checked_output_prefix, checked_paths
from tokenloom.storage.addresses import canonical_path, is_remote
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.extents import ExtentSource, record_file
from tokenloom.storage.local import Bytes, ByteSource, MappedFile, PositionalFile, copy_range, first_difference
from tokenloom.storage.publishing import OutputLock, exists_error, make_folder_of
from tokenloom.storage.resolve import exists, open_pending
from tokenloom.storage.versions import FileVersion, version_of

_LOGGER = logging.getLogger(__name__)

_READ_BYTES = 16 << 20
_ROWS_AT_ONCE = 1 << 24
_BLOCK_ROWS = 1 << 20
_LONG_RUN_BYTES = 256 << 10
"""Longer runs of adjacent bytes are copied by the operating system; shorter runs are gathered, many per call."""
_GATHERED_BYTES = 16 << 20
_REMOTE_READ_BYTES = 64 << 20  # fetched as several concurrent ranges

Advance = Callable[[int], None]
MakeManifest = Callable[[PairFacts], Manifest]
"""A function that makes a manifest from the facts of a pair."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Bytes [offset, offset + length) of a local file, to be copied by the operating system."""

    path: str
    offset: int
    length: int
    version: FileVersion | None


Piece = FilePiece | Bytes


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ConcatenatedPart:
    """A dataset, or some of its documents, as one part of an output. Several parts may be of the same dataset.

    Attributes:
        documents: range of document indices; None for all.
        kept_documents: bool[num_documents of the dataset], False for documents to drop; None keeps all.
    """

    prefix: str
    documents: range | None = None
    kept_documents: NDArray[np.bool_] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the part is the whole dataset."""
        return self.documents is None and self.kept_documents is None


def merge_datasets(
    prefixes: Sequence[str | os.PathLike[str]],
    output_prefix: str | os.PathLike[str],
    *,
    multimodal: bool = False,
    verify: bool = False,
    durable: bool = True,
    overwrite: bool = False,
    notice: Callable[[str], None] | None = None,
) -> IndexedDataset:
    """Writes the documents of all datasets, in order, as one pair, and opens it.

    The output gets a manifest if all inputs have one. A column per token or sequence must exist in all inputs with the
    same description; a column per document that differs or is missing in an input is dropped with a warning. Documents
    of an input without origins get unknown origins, with a warning. An existing output with the same bytes is kept.

    Args:
        prefixes: prefixes of the inputs, in output order.
        output_prefix: prefix of the output; must not be one of the inputs.
        multimodal: whether the datasets have modes.
        verify: compare the tokens of the inputs with their manifests first, and the output with the inputs at the end.
            If False, the manifest of the output records that tokens were not compared.
        durable: wait until the output would survive a loss of power. False is faster, like `cp`.
        overwrite: replace an existing output that has other bytes; the old output stays until the new one is complete.
        notice: function to call with a sentence if the output exists already with equal bytes.

    Raises:
        ConfigError: there are no inputs, the output is also an input, dtypes or (according to manifests) tokenizers
            differ, or inputs differ in a column per token or sequence.
        OutputExistsError: a dataset with other bytes exists under `output_prefix`, and `overwrite` is False.
        OutputBusyError: another process is writing the same output.
        DatasetFormatError: an input is damaged.
    """
    chosen = list(map(prefix_of, checked_paths("prefixes", prefixes, example='such as ["books", "web"]')))
    target = prefix_of(checked_output_prefix("output_prefix", output_prefix))
    parts = [ConcatenatedPart(prefix=prefix) for prefix in chosen]
    options = _Options(multimodal, verify, durable, overwrite, notice)
    return _write(parts, target, options, partial(_combined, chosen, multimodal=multimodal, verify=verify))


def write_concatenated(
    parts: Sequence[ConcatenatedPart],
    output_prefix: str,
    *,
    multimodal: bool = False,
    verify: bool = False,
    manifest: MakeManifest | None = None,
    durable: bool = True,
    overwrite: bool = False,
    notice: Callable[[str], None] | None = None,
) -> IndexedDataset:
    """Writes the documents of all parts, in order, as one pair, and opens it; see `merge_datasets`.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tokenloom import ConcatenatedPart, IndexedDatasetBuilder
        >>> prefix = f"{tempfile.mkdtemp()}/corpus"
        >>> builder = IndexedDatasetBuilder(f"{prefix}.bin")
        >>> builder.add_documents([[1, 2], [3], [4, 5, 6]])
        >>> builder.finalize(f"{prefix}.idx")
        >>> part = ConcatenatedPart(prefix=prefix, kept_documents=np.array([True, False, True]))
        >>> write_concatenated([part], f"{prefix}-kept")[:]
        [array([1, 2], dtype=int32), array([4, 5, 6], dtype=int32)]

    Args:
        parts: the parts, in output order.
        output_prefix: prefix of the output; must not be one of the inputs.
        multimodal, verify, durable, overwrite, notice: see `merge_datasets`.
        manifest: function that makes the manifest from the `PairFacts` of the output; None writes no manifest.

    Raises:
        ConfigError: as in `merge_datasets`, or a part selects documents that its dataset does not have.
    """
    options = _Options(multimodal, verify, durable, overwrite, notice)
    return _write(parts, prefix_of(output_prefix), options, lambda: manifest)


class _Options(NamedTuple):
    multimodal: bool
    verify: bool
    durable: bool
    overwrite: bool
    notice: Callable[[str], None] | None


def _write(
    parts: Sequence[ConcatenatedPart], target: str, options: _Options, manifest: Callable[[], MakeManifest | None]
) -> IndexedDataset:
    prefixes, multimodal = [part.prefix for part in parts], options.multimodal
    check_output(target, prefixes)
    make_folder_of(target)
    with if_stopped(lambda: NOTHING_WRITTEN), OutputLock(idx_path(target)) as lock, pin_inputs(prefixes):
        dtype = check_inputs(prefixes, multimodal=multimodal, tokens=options.verify)
        joining = _Joining(parts, target, dtype, manifest(), multimodal=multimodal, durable=options.durable)
        if not options.overwrite:
            joining.refuse_others()
        _publish(joining.write_pair(verify=options.verify), lock, options)
    return IndexedDataset(target, multimodal=multimodal)


def _combined(prefixes: Sequence[str], *, multimodal: bool, verify: bool) -> MakeManifest | None:
    opened = (IndexedDataset(prefix, multimodal=multimodal) for prefix in prefixes)
    return combined_manifest(opened, copied_tokens="compared" if verify else "inherited")


def _publish(pending: PendingDataset, lock: OutputLock, options: _Options) -> None:
    """Publishes a dataset, or calls `notice` if its files exist already with the same bytes."""
    if options.overwrite or not is_published(pending):
        publish_datasets([pending], overwrite=options.overwrite, locks=[lock])
    else:
        pending.discard()
        (options.notice or _LOGGER.info)(f"nothing to do: `{pending.prefix}` contains these inputs already")


def build_catalogue(
    prefixes: Sequence[str],
    output_prefix: str,
    *,
    multimodal: bool = False,
    overwrite: bool = False,
    notice: Callable[[str], None] | None = None,
    verify: bool = False,
) -> IndexedDataset:
    """Writes a catalogue, which joins many datasets into one without copying tokens, and opens it.

    The output is an index, `OUTPUT.idx`, and a list of the pairs, `OUTPUT.catalogue` (see FORMAT.md). Open the output
    like a pair. The list has relative paths for pairs below the folder of the output, so this folder can be moved, and
    absolute paths for other pairs. If a pair changes later, reading its tokens fails. If an input is a catalogue, the
    output lists the pairs of this catalogue. Columns and manifests are joined as in `merge_datasets`.

    Example:
        >>> import tempfile
        >>> from tokenloom import IndexedDatasetBuilder, build_catalogue
        >>> folder = tempfile.mkdtemp()
        >>> for name in ("a", "b"):
        ...     builder = IndexedDatasetBuilder(f"{folder}/{name}.bin")
        ...     builder.add_documents([[1, 2], [3]])
        ...     builder.finalize(f"{folder}/{name}.idx")
        >>> dataset = build_catalogue([f"{folder}/a", f"{folder}/b"], f"{folder}/all")
        >>> len(dataset), dataset.num_tokens, dataset[2].tolist()
        (4, 6, [1, 2])

    Args:
        prefixes: prefixes of the inputs, in output order.
        output_prefix: prefix of the catalogue.
        multimodal, notice: see `merge_datasets`.
        overwrite: replace an existing catalogue that lists other pairs; never replaces a pair.
        verify: compare all tokens with the manifests. If False, the manifest of the output records that tokens were
            not compared.

    Raises:
        ConfigError: as in `merge_datasets`, or `output_prefix` names a pair, or is remote while pairs are local.
    """
    chosen = list(map(prefix_of, checked_paths("prefixes", prefixes, example='such as ["books", "web"]')))
    target = prefix_of(output_prefix)
    check_output(target, chosen)
    if exists(bin_path(target)):
        message = f"`output_prefix`: the pair `{bin_path(target)}` exists; a catalogue cannot replace it"
        raise ConfigError(message, hint="choose another output prefix, or remove the pair")
    make_folder_of(target)
    with if_stopped(lambda: NOTHING_WRITTEN), OutputLock(idx_path(target)) as lock, pin_inputs(chosen):
        pending = _write_catalogue(chosen, target, multimodal=multimodal, verify=verify)
        _publish(pending, lock, _Options(multimodal, verify, True, overwrite, notice))  # noqa: FBT003
    return IndexedDataset(target, multimodal=multimodal)


def _write_catalogue(prefixes: Sequence[str], target: str, *, multimodal: bool, verify: bool) -> PendingDataset:
    dtype = check_inputs(prefixes, multimodal=multimodal, tokens=verify)
    recorded = {prefix: list(_recorded(IndexedDataset(prefix))) for prefix in dict.fromkeys(prefixes)}
    named = [each for prefix in prefixes for each in recorded[prefix]]
    catalogue = Catalogue(tuple(part for part, _ in named))
    content, manifest = catalogue.pack(target), _combined(prefixes, multimodal=multimodal, verify=verify)
    joining = _Joining([part for _, part in named], target, dtype, manifest, multimodal=multimodal)
    with _opened(target, catalogue_path(target)) as pending:
        pending.tokens.write(content)
        joining.write_rows(pending, starts=catalogue.extents.starts.tolist())
        if joining.tally is not None:
            for prefix in prefixes:
                joining.tally.add_pair(IndexedDataset(prefix, multimodal=multimodal))
        joining.add_columns(pending, catalogue.source(target, mmap=True))
    return pending


def _recorded(dataset: IndexedDataset) -> Iterator[tuple[CataloguePart, ConcatenatedPart]]:
    """Yields, for each pair of a dataset, its `CataloguePart` and a `ConcatenatedPart` of the pair's documents."""
    for number, section in enumerate(dataset.sections):
        file = asdict(record_file(section.path, version=dataset.version_of_section(number)))
        if file.pop("path") and file["num_bytes"] != section.num_bytes:
            message = f"`{section.path}`: expected {section.num_bytes} bytes, found {file['num_bytes']}"
            raise StorageError(message, hint="do not modify the file while a catalogue is written")
        num_sequences, num_documents = len(section.rows), len(section.documents)
        part = CataloguePart(prefix=section.prefix, num_sequences=num_sequences, num_documents=num_documents, **file)
        yield part, ConcatenatedPart(prefix=dataset.path_prefix, documents=section.documents)


def write_pending(
    parts: Sequence[ConcatenatedPart],
    target: str,
    *,
    dtype: np.dtype[np.generic],
    multimodal: bool,
    manifest: MakeManifest | None = None,
    columns: Mapping[str, WrittenColumn] | None = None,
) -> PendingDataset:
    """Writes a pair like `write_concatenated`, and `columns`, from inputs checked before; does not publish the pair."""
    return _Joining(parts, target, dtype, manifest, multimodal=multimodal).write_pair(columns=columns)


@contextmanager
def _opened(target: str, tokens_path: str, *, durable: bool = True) -> Iterator[PendingDataset]:
    """Yields an empty dataset to write, and discards the dataset if the `with` block raises."""
    tokens, index = open_pending(tokens_path, durable=durable), open_pending(idx_path(target), durable=durable)
    pending = PendingDataset(prefix=target, tokens=tokens, index=index)
    try:
        yield pending
    except BaseException:
        pending.discard()
        raise


@dataclass(eq=False)
class _Joining:
    """Writes the rows, tokens, columns and manifests of many datasets as one dataset."""

    parts: Sequence[ConcatenatedPart]
    target: str
    dtype: np.dtype[np.generic]
    manifest: MakeManifest | None
    multimodal: bool = field(kw_only=True)
    durable: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        self.tally = None if self.manifest is None else PairTally(self.dtype)
        prefixes = dict.fromkeys(prefix_of(part.prefix) for part in self.parts)
        self._columns = _common_columns({prefix: read_columns(self._open(prefix)) for prefix in prefixes})

    def write_pair(self, *, verify: bool = False, columns: Mapping[str, WrittenColumn] | None = None) -> PendingDataset:
        _, num_bytes = self._sizes
        with _opened(self.target, bin_path(self.target), durable=self.durable) as pending:
            tokens = pending.tokens
            with task(f"writing {self.target}", unit="bytes", total=num_bytes) as advance:
                expected = self.write_rows(pending, advance=advance)
            tokens.sync()
            with storage_errors("read", tokens.path):
                found = tokens.stream.seek(0, 2)
            if found != expected:
                message = f"`{tokens.path}`: expected {expected} bytes, as the index says, found {found}"
                raise StorageError(message, hint="do not modify the inputs while they are joined")
            if verify:
                with task(f"comparing {tokens.path}", unit="bytes", total=num_bytes) as advance:
                    wrong = first_difference(tokens.readable_path, self._contents(advance))
                if wrong is not None:
                    hint = "check disk and memory for faults, and do not modify the inputs while they are joined"
                    message = f"`{tokens.path}`: byte {wrong} differs from the inputs after copying"
                    raise StorageError(message, hint=hint)
            pending.columns |= columns or {}
            self.add_columns(pending, MappedFile(tokens.readable_path))
        return pending

    def refuse_others(self) -> None:
        """Raises `OutputExistsError` early if an existing output differs in index header or number of token bytes."""
        if (path := existing_path(self.target)) is None:
            return
        try:
            found = self._open(self.target)
        except (DatasetFormatError, DatasetNotFoundError) as error:
            raise exists_error(path) from error
        if found.catalogue is not None or (found.index.header, found.byte_source.num_bytes) != self._sizes:
            raise exists_error(path)

    def write_rows(
        self, pending: PendingDataset, *, starts: Sequence[int] | None = None, advance: Advance | None = None
    ) -> int:
        """Writes the index and, without `starts` (byte offset of each part), the tokens; returns the end offset."""
        rows = IndexWriter(pending.index, self._sizes[0], multimodal=self.multimodal)
        for number, part in enumerate(self.parts):
            dataset = self._open(part.prefix)
            rows.pointer = rows.pointer if starts is None else starts[number]
            for block in _blocks(dataset, part):
                rows.add_boundaries(rows.num_rows + np.cumsum(block.counts))
                rows.add_rows(block.lengths, block.modes)
                for piece in block.pieces() if starts is None else ():
                    put_piece(piece, pending.tokens, advance=advance)
                    if self.tally is not None and not part.is_whole:
                        for data in _read(piece):
                            self.tally.add_tokens(data)
            if starts is None and self.tally is not None and part.is_whole:
                self.tally.add_pair(dataset)
            dataset.check_index()
        rows.finish()
        return rows.pointer

    def add_columns(self, pending: PendingDataset, tokens: ByteSource) -> None:
        """Writes columns and manifest of a dataset whose tokens and index are complete."""
        for name, facts in self._columns.items():
            pending.columns[name] = self._write_column(name, facts)
        pending.describe(tokens)
        if self.manifest is not None and self.tally is not None:
            pair = self.tally.facts(MappedFile(pending.index.readable_path))
            pending.manifest = manifest_bytes(self.manifest(pair))

    def _write_column(self, name: str, facts: ColumnFacts) -> WrittenColumn:
        if facts.kind == "runs":
            return write_origins(self.target, *joined_origins(self._origins()), durable=self.durable)
        return written_column(ColumnWriter(self.target, name, facts, durable=self.durable), self._rows(name))

    def _rows(self, name: str) -> Iterator[NDArray[np.generic]]:
        for part in self.parts:
            dataset = self._open(part.prefix)
            column = open_column(dataset, name)
            assert column is not None
            for block in _blocks(dataset, part):
                for rows, kept in _column_rows(column.facts.kind, dataset, block):
                    yield column.data[rows] if kept.all() else column.data[rows][kept]
                column.check()

    def _origins(self) -> Iterator[OriginsPart]:
        for part in self.parts:
            dataset = self._open(part.prefix)
            documents = range(dataset.num_documents) if part.documents is None else part.documents
            yield read_origins(dataset), documents, part.kept_documents

    def _open(self, prefix: str) -> IndexedDataset:
        return IndexedDataset(prefix, multimodal=self.multimodal)

    @cached_property
    def _sizes(self) -> tuple[Header, int]:
        """The header of the output index, and the total number of token bytes."""
        found = [_counts(self._open(part.prefix), part) for part in self.parts]
        documents, sequences, num_tokens = (sum(each[column] for each in found) for column in range(3))
        code = DType.code_from_dtype(self.dtype)
        header = Header(dtype_code=code, num_sequences=sequences, num_boundaries=documents + 1)
        return header, num_tokens * self.dtype.itemsize

    def _contents(self, advance: Advance) -> Iterator[memoryview]:
        for part in self.parts:
            for block in _blocks(self._open(part.prefix), part):
                for piece in block.pieces():
                    for data in _read(piece):
                        yield data
                        advance(len(data))


def _counts(dataset: IndexedDataset, part: ConcatenatedPart) -> tuple[int, int, int]:
    """Returns the counts (documents, sequences, tokens) of a part; reads all index rows if the part drops documents."""
    count, chosen, kept = dataset.num_documents, part.documents, part.kept_documents
    if chosen is not None and (chosen.step != 1 or not 0 <= chosen.start <= chosen.stop <= count):
        raise ConfigError(f"`{part.prefix}`: documents {chosen} out of range: there are {count} documents")
    if kept is not None and (kept.dtype != np.bool_ or kept.shape != (count,)):
        found = f"{kept.dtype}{[*kept.shape]}"
        raise ConfigError(f"`kept_documents` of `{part.prefix}`: must be bool[{count}], got {found}")
    if kept is None:
        documents = range(count) if chosen is None else chosen
        first, last = dataset.document_indices[[documents.start, documents.stop]].tolist()
        return len(documents), last - first, dataset.count_tokens(range(first, last))
    totals = np.zeros(3, dtype=np.int64)
    for block in _blocks(dataset, part):
        totals += (block.num_documents, block.counts.sum(), block.lengths.sum(dtype=np.int64))
    num_documents, num_sequences, num_tokens = totals.tolist()
    return num_documents, num_sequences, num_tokens


def _blocks(dataset: IndexedDataset, part: ConcatenatedPart) -> Iterator[Block]:
    """Yields the documents of a part in blocks of about a million sequences."""
    boundaries = dataset.document_indices
    documents = range(dataset.num_documents) if part.documents is None else part.documents
    first, stop = documents.start, documents.stop
    while first < stop:
        limit = int(boundaries[first]) + _BLOCK_ROWS
        last = bisect.bisect_right(boundaries, limit, first + 1, min(stop, first + _BLOCK_ROWS) + 1) - 1
        last = max(last, first + 1)
        kept = part.kept_documents
        yield Block(dataset, range(first, last), np.ones(last - first, np.bool_) if kept is None else kept[first:last])
        first = last


class Block:
    """Consecutive documents of a dataset; some of them may be dropped from the output.

    `counts`, int64[num_documents], is the number of sequences of each kept document. `documents` and `rows` are slices
    of all documents and sequences of the dataset; both also cover dropped documents. The masks `kept_documents` and
    `kept_rows`, bool of the same lengths, are True where a document or sequence is kept.
    """

    def __init__(self, dataset: IndexedDataset, documents: range, kept: NDArray[np.bool_]) -> None:
        self._dataset = dataset
        boundaries = np.array(dataset.document_indices[documents.start : documents.stop + 1])
        self.documents: slice = slice(documents.start, documents.stop)
        self.rows: slice = slice(int(boundaries[0]), int(boundaries[-1]))
        self.kept_documents: NDArray[np.bool_] = kept
        self.kept_rows: NDArray[np.bool_] = np.repeat(kept, np.diff(boundaries))
        self.counts: NDArray[np.int64] = np.diff(boundaries)[kept]
        self.num_documents: int = len(self.counts)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """The lengths of the kept sequences: int32[num_kept]."""
        return self._dataset.sequence_lengths[self.rows][self.kept_rows]

    @property
    def modes(self) -> NDArray[np.int8] | None:
        """The modes of the kept sequences, int8[num_kept]; None unless multimodal."""
        modes = self._dataset.index.sequence_modes
        return None if modes is None else modes[self.rows][self.kept_rows]

    def pieces(self) -> Iterator[Piece]:
        """Yields the bytes of the kept sequences, in order: long runs with `byte_pieces`, short runs as arrays."""
        starts, stops, sizes = self._runs()
        position, long_runs = 0, np.flatnonzero(sizes >= _LONG_RUN_BYTES).tolist()
        for run in [*long_runs, len(sizes)]:
            yield from self._gathered(starts[position:run], stops[position:run], sizes[position:run])
            if run < len(sizes):
                begin = int(self._dataset.index.sequence_pointers[starts[run]])
                yield from byte_pieces(self._dataset, begin, int(sizes[run]))
            position = run + 1

    def _runs(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Returns first row, last row + 1 and number of bytes of each run of kept rows: int64[num_runs] each."""
        edges = np.flatnonzero(np.diff(self.kept_rows.view(np.int8), prepend=0, append=0)) + self.rows.start
        starts, stops = edges[::2], edges[1::2]
        index, itemsize = self._dataset.index, self._dataset.dtype.itemsize
        ends = index.sequence_pointers[stops - 1] + index.sequence_lengths[stops - 1].astype(np.int64) * itemsize
        return starts, stops, ends - index.sequence_pointers[starts]

    def _gathered(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> Iterator[Piece]:
        """Yields the bytes of short runs of sequences, many runs per array; see `_runs` for the arguments."""
        sums, first = np.cumsum(sizes), 0
        while first < len(starts):
            before = int(sums[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(sums, before + _GATHERED_BYTES, side="right")))
            begin, end = int(starts[first]), int(stops[last - 1])
            rows = np.flatnonzero(self.kept_rows[begin - self.rows.start : end - self.rows.start]) + begin
            lengths = self._dataset.sequence_lengths[rows].astype(np.int64)
            yield self._dataset.gather(rows, np.zeros_like(rows), lengths).view(np.uint8)
            first = last


def byte_pieces(dataset: IndexedDataset, begin: int, length: int) -> Iterator[Piece]:
    """Yields the bytes at byte pointers [begin, begin + length); skips the gaps between the pairs of a catalogue."""
    sections = dataset.sections
    for number, offset, count in dataset.extents.pieces(begin, length):
        path = sections[number].path
        if not is_remote(path):
            yield FilePiece(path, offset, count, dataset.version_of_section(number))
            continue
        first = sections[number].start + offset
        for at in range(first, first + count, _REMOTE_READ_BYTES):
            yield dataset.byte_source.read(at, min(_REMOTE_READ_BYTES, first + count - at))


def put_piece(piece: Piece, target: PendingFile, *, advance: Advance | None = None) -> None:
    if not isinstance(piece, FilePiece):
        target.write(piece.data)
        if advance is not None:
            advance(len(piece))
        return
    with storage_errors("write", target.path):
        target.stream.flush()
    copy_range(
        piece.path,
        target.stream.fileno(),
        offset=piece.offset,
        length=piece.length,
        target_path=target.path,
        version=piece.version,
        write_back=target.is_durable,
        advance=advance,
    )


def _read(piece: Piece) -> Iterator[memoryview]:
    """Yields the bytes of a piece; `ChangedFileError` if its file changed."""
    if not isinstance(piece, FilePiece):
        yield piece.data
        return
    source, stop = PositionalFile(piece.path), piece.offset + piece.length
    for begin in range(piece.offset, stop, _READ_BYTES):
        data = source.read(begin, min(_READ_BYTES, stop - begin)).data
        if piece.version is not None:
            piece.version.check(version_of(piece.path), piece.path)
        yield data


def check_output(output_prefix: str, prefixes: Sequence[str]) -> None:
    """Raises a `ConfigError` if there are no inputs, or the output is an input."""
    if not prefixes:
        raise ConfigError("`prefixes`: must name at least one dataset")
    target, output_exists = canonical_path(prefix_of(output_prefix)), exists(idx_path(prefix_of(output_prefix)))
    for prefix in map(prefix_of, prefixes):
        inputs = [prefix]
        if output_exists and (catalogue := IndexedDataset(prefix).catalogue) is not None:
            inputs += [part.prefix for part in catalogue.parts]
        if target in map(canonical_path, inputs):
            message = f"`output_prefix`: `{prefix_of(output_prefix)}` is also an input"
            raise ConfigError(message, hint="choose another output prefix")


def check_inputs(prefixes: Sequence[str], *, multimodal: bool, tokens: bool = False) -> np.dtype[np.generic]:
    """Checks each distinct dataset with `open_checked`; returns the common dtype; `ConfigError` if dtypes differ."""
    first, *others = distinct = list(dict.fromkeys(map(prefix_of, prefixes)))
    with task("checking inputs", unit="datasets", total=len(distinct)) as advance:
        dtype = open_checked(first, multimodal=multimodal, tokens=tokens).dtype
        advance()
        for prefix in others:
            if (found := open_checked(prefix, multimodal=multimodal, tokens=tokens).dtype) != dtype:
                hint = "tokenize one of the datasets again, with the dtype of the other"
                raise ConfigError(f"expected one dtype, found {dtype} in `{first}`, {found} in `{prefix}`", hint=hint)
            advance()
    return dtype


def open_checked(prefix: str, *, multimodal: bool, tokens: bool = False) -> IndexedDataset:
    """Opens a dataset, and checks its columns, all rows of its index and, with `tokens=True`, all tokens."""
    dataset = IndexedDataset(prefix, multimodal=multimodal)
    check_index(dataset)
    check_columns(dataset)
    if isinstance(dataset.byte_source, ExtentSource):
        dataset.byte_source.check()
    if tokens:
        check_tokens(dataset)
    return dataset


def _column_rows(kind: str, dataset: IndexedDataset, block: Block) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
    """Yields (slice of the rows of a column, bool mask of rows to keep) for a block; `kind` is the column's kind."""
    if kind == "document":
        yield block.documents, block.kept_documents
    elif kind == "sequence":
        yield block.rows, block.kept_rows
    else:
        lengths = dataset.sequence_lengths[block.rows]
        before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
        before += dataset.count_tokens(range(block.rows.start))
        low = 0
        while low < len(lengths):
            high = int(np.searchsorted(before, before[low] + _ROWS_AT_ONCE, side="right")) - 1
            high = max(low + 1, high)
            tokens = slice(int(before[low]), int(before[high]))
            yield tokens, np.repeat(block.kept_rows[low:high], lengths[low:high])
            low = high


def _common_columns(columns: Mapping[str, Mapping[str, ColumnFacts]]) -> dict[str, ColumnFacts]:
    """Joins {prefix: {name: facts}} of the inputs to {name: facts} of the output, by the rules of `merge_datasets`."""
    common: dict[str, ColumnFacts] = {}
    for name in dict.fromkeys(name for each in columns.values() for name in each):
        having = {prefix: each[name] for prefix, each in columns.items() if name in each}
        owner, facts = next(iter(having.items()))
        other = next((prefix for prefix, each in having.items() if each.form != facts.form), None)
        lacking = next((prefix for prefix in columns if prefix not in having), None)
        if other is None and (lacking is None or facts.kind == "runs"):
            if lacking is not None:
                text = "`%s` has no column `%s`: documents of this input get unknown values in the output"
                _LOGGER.warning(text, lacking, name)
            common[name] = facts
            continue
        if other is None:
            problem = f"`{lacking}` has no column `{name}`, but `{owner}` has one"
        else:
            one, two = _describe(facts), _describe(having[other])
            problem = f"column `{name}` is {one} in `{owner}`, and {two} in `{other}`"
        if facts.kind in ("token", "sequence"):
            raise ConfigError(problem, hint=f"add the same column `{name}` to all inputs, or remove it from all")
        _LOGGER.warning("the output gets no column `%s`: %s", name, problem)
    return common


def _describe(facts: ColumnFacts) -> str:
    about = f" about {dict(facts.about)}" if facts.about and facts.kind != "runs" else ""
    return f"{facts.dtype}{[*facts.shape[1:]]} per {facts.kind} of {facts.of}s, padding {facts.padding:g}{about}"
