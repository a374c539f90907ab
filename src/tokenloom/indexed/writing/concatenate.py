"""Many datasets as one: a pair, to which tokens are copied by the operating system, or a catalogue, which names them.

Every input is opened and every row of its index checked before the first byte is written. Inputs are open one at a
time, and rows pass in blocks, so that memory depends on neither their number nor their size.
"""

from __future__ import annotations

import bisect
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import overload

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
from tokenloom.indexed.dataset import IndexedDataset, inputs_stay
from tokenloom.indexed.layout import DType, Header, bin_path, idx_path, prefix_of
from tokenloom.indexed.manifests import CopiedTokens, Manifest, PairFacts, PairTally, combined_manifest, manifest_bytes
from tokenloom.indexed.origins import OriginsPart, joined_origins, read_origins, write_origins
from tokenloom.indexed.verify import check_columns, check_index, check_tokens
from tokenloom.indexed.writing import outputs
from tokenloom.indexed.writing.kept_documents import Block, ConcatenatedPart, FilePiece, Piece, Selection
from tokenloom.indexed.writing.outputs import IndexWriter, PendingDataset, existing_path, is_published, publish_datasets
from tokenloom.progress import NOTHING_WRITTEN, if_stopped, task
from tokenloom.setting_types import checked_output_prefix, checked_paths
from tokenloom.storage.addresses import canonical_path, is_remote
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.extents import ExtentSource, record_file
from tokenloom.storage.local import ByteSource, MappedFile, PositionalFile, copy_range, first_difference
from tokenloom.storage.publishing import OutputLock, exists_error, make_folder_of
from tokenloom.storage.resolve import exists, is_missing, names_in, open_pending
from tokenloom.storage.versions import version_of

_LOGGER = logging.getLogger(__name__)

_READ_BYTES = 16 << 20
_ROWS_AT_ONCE = 1 << 24
_NUM_DIGITS = 5

MakeManifest = Callable[[PairFacts], Manifest]
"""Makes a manifest from what the files of a pair hold."""


@overload
def merge_datasets(
    prefixes: Sequence[str | os.PathLike[str]],
    output_prefix: str | os.PathLike[str],
    *,
    multimodal: bool = False,
    part_bytes: None = None,
    verify: bool = False,
    durable: bool = True,
    overwrite: bool = False,
    notice: Callable[[str], None] | None = None,
) -> IndexedDataset: ...


@overload
def merge_datasets(
    prefixes: Sequence[str | os.PathLike[str]],
    output_prefix: str | os.PathLike[str],
    *,
    multimodal: bool = False,
    part_bytes: int,
    verify: bool = False,
    durable: bool = True,
    overwrite: bool = False,
    notice: Callable[[str], None] | None = None,
) -> list[IndexedDataset]: ...


def merge_datasets(
    prefixes: Sequence[str | os.PathLike[str]],
    output_prefix: str | os.PathLike[str],
    *,
    multimodal: bool = False,
    part_bytes: int | None = None,
    verify: bool = False,
    durable: bool = True,
    overwrite: bool = False,
    notice: Callable[[str], None] | None = None,
) -> IndexedDataset | list[IndexedDataset]:
    """Writes the documents of all datasets, in order, as one pair, and returns it opened.

    Manifests are joined if all inputs have one, columns by their kind. Columns per token or sequence must lie beside
    all inputs, alike. Those per document are left out if one input lacks them; of runs, the documents of such an input
    are unknown. Both is logged. A result that is there already, byte for byte, stays as it is.

    With `part_bytes`, writes pairs `OUTPUT_00000`, `OUTPUT_00001`, … of at most so many bytes of tokens, cut between
    documents, and returns all of them; a document that is larger is alone. All appear together in the end.

    Args:
        prefixes: prefixes of the inputs, in the order wanted.
        output_prefix: prefix of the result; must not be one of the inputs.
        multimodal: whether the datasets hold modes.
        part_bytes: most bytes of tokens in each pair; None writes one pair.
        verify: compare the tokens of the inputs with their manifests first, and the result with the inputs. Without,
            the manifest of the result says that they were not.
        durable: wait until the result would survive a loss of power; without, as `cp` does, it is faster.
        overwrite: replace outputs that are there and hold something else; they stay whole until the new ones are.
        notice: called with a sentence for each output that is there already.

    Raises:
        ConfigError: nothing to merge, the output is also an input, the dtypes or, as manifests tell, the tokenizers
            differ, only some have a column per token, or pairs of an earlier merge would stay among the new ones.
        OutputExistsError: there is something else under the output prefix, and no `overwrite`.
        OutputBusyError: another process writes the same output.
        DatasetFormatError: an input is damaged.
    """
    chosen = list(map(prefix_of, checked_paths("prefixes", prefixes, example='such as ["books", "web"]')))
    target = prefix_of(checked_output_prefix("output_prefix", output_prefix))
    opened = partial(IndexedDataset, multimodal=multimodal)
    with inputs_stay(chosen):
        check_output(target, chosen)
        targets = {target: [ConcatenatedPart(prefix=prefix) for prefix in chosen]}
        if part_bytes is not None:
            if part_bytes < 1:
                message = f"expected pairs of at least one byte, got part_bytes={part_bytes!r}"
                raise ConfigError(message)
            check_inputs(chosen, multimodal=multimodal)
            cut = enumerate(_cut(chosen, part_bytes))
            targets = {f"{target}_{number:0{_NUM_DIGITS}}": parts for number, parts in cut}
            _check_no_others(target, list(targets))
            combined_manifest(map(opened, chosen))  # one tokenizer for all, before the first pair is written

        def make_manifest(parts: Sequence[ConcatenatedPart]) -> MakeManifest | None:
            is_whole = all(part.is_whole for part in parts)
            copied: CopiedTokens = "compared" if verify else "inherited" if is_whole else "unverified"
            return combined_manifest((opened(part.prefix) for part in parts), copied_tokens=copied)

        written = _write_all(
            targets,
            multimodal=multimodal,
            verify=verify,
            manifest=make_manifest,
            durable=durable,
            overwrite=overwrite,
            notice=notice,
        )
    return written[0] if part_bytes is None else written


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
    """Writes the documents of all parts, in order, as one pair, and returns it opened; see `merge_datasets`.

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
        parts: the parts, in the order wanted.
        output_prefix: prefix of the result; must not be one of the inputs.
        multimodal, verify, durable, overwrite, notice: see `merge_datasets`.
        manifest: makes the manifest of the result from what its files hold; None for none.

    Raises:
        ConfigError: as `merge_datasets`, or a part names documents that its dataset does not have.
    """
    target, prefixes = prefix_of(output_prefix), [part.prefix for part in parts]
    check_output(target, prefixes)
    with inputs_stay(prefixes):
        [written] = _write_all(
            {target: parts},
            multimodal=multimodal,
            verify=verify,
            manifest=lambda _: manifest,
            durable=durable,
            overwrite=overwrite,
            notice=notice,
        )
    return written


def _write_all(
    targets: Mapping[str, Sequence[ConcatenatedPart]],
    *,
    multimodal: bool,
    verify: bool,
    manifest: Callable[[Sequence[ConcatenatedPart]], MakeManifest | None],
    durable: bool,
    overwrite: bool,
    notice: Callable[[str], None] | None,
) -> list[IndexedDataset]:
    """Writes pairs, by their prefixes, and returns them opened; all appear together."""
    prefixes = list(dict.fromkeys(part.prefix for parts in targets.values() for part in parts))
    for target in targets:
        check_output(target, prefixes)
    make_folder_of(next(iter(targets)))
    with ExitStack() as stack:
        stack.enter_context(if_stopped(lambda: NOTHING_WRITTEN))
        locks = [stack.enter_context(OutputLock(idx_path(target))) for target in list(targets)[: outputs.MOST_LOCKED]]
        dtype = check_inputs(prefixes, multimodal=multimodal, tokens=verify)
        new = []
        for target, parts in targets.items():
            joining = _Joining(parts, target, dtype, manifest(parts), multimodal=multimodal, durable=durable)
            if not overwrite:
                joining.refuse_others()
            pending = joining.write_pair(verify=verify)
            stack.callback(pending.discard)
            if _is_new(pending, overwrite=overwrite, notice=notice):
                if len(targets) > outputs.MOST_OPEN:
                    pending.seal(durable=durable)
                new.append(pending)
        publish_datasets(new, overwrite=overwrite, durable=durable, locks=locks)
    return [IndexedDataset(target, multimodal=multimodal) for target in targets]


def build_catalogue(
    prefixes: Sequence[str],
    output_prefix: str,
    *,
    multimodal: bool = False,
    overwrite: bool = False,
    notice: Callable[[str], None] | None = None,
    verify: bool = False,
) -> IndexedDataset:
    """Makes many datasets one without copying a token, and returns it opened.

    The result is an index, `OUTPUT.idx`, and a list of the pairs, `OUTPUT.catalogue`, see FORMAT.md; it is opened as a
    pair is. Pairs below the folder of the catalogue are named from there, so that the folder can be moved; others by
    their whole path or address. A pair that changes later is an error when it is read. Catalogues among the inputs are
    resolved to their pairs. Columns and manifests are joined as by `merge_datasets`.

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
        prefixes: prefixes of the inputs, in the order wanted.
        output_prefix: prefix of the catalogue.
        multimodal, notice: see `merge_datasets`.
        overwrite: replace a catalogue that is there and lists something else; never a pair.
        verify: compare all tokens with the manifests. Without, the manifest of the result says that they were not.

    Raises:
        ConfigError: as `merge_datasets`, or a pair is there, or a catalogue in object storage would name local files.
    """
    chosen = list(map(prefix_of, checked_paths("prefixes", prefixes, example='such as ["books", "web"]')))
    target = prefix_of(output_prefix)
    check_output(target, chosen)
    if exists(bin_path(target)):
        message = f"a catalogue `{target}` would take the place of `{bin_path(target)}`, which is there"
        raise ConfigError(message, hint="choose another output prefix, or remove the pair")
    make_folder_of(target)
    with if_stopped(lambda: NOTHING_WRITTEN), OutputLock(idx_path(target)) as lock, inputs_stay(chosen):
        pending = _write_catalogue(chosen, target, multimodal=multimodal, verify=verify)
        new = [pending] if _is_new(pending, overwrite=overwrite, notice=notice) else []
        publish_datasets(new, overwrite=overwrite, locks=[lock])
    return IndexedDataset(target, multimodal=multimodal)


def _write_catalogue(prefixes: Sequence[str], target: str, *, multimodal: bool, verify: bool) -> PendingDataset:
    """Writes the files of a catalogue, which have no names yet."""
    recorded: dict[str, list[tuple[CataloguePart, ConcatenatedPart]]] = {}
    dtype = np.dtype(np.int32)
    with task("catalogue", unit="datasets", total=len(prefixes)) as advance:
        for dataset in _checked_inputs(prefixes, multimodal=multimodal, tokens=verify):
            dtype, recorded[dataset.path_prefix] = dataset.dtype, list(_recorded(dataset))
            advance()
    named = [each for prefix in prefixes for each in recorded[prefix]]
    catalogue = Catalogue(tuple(part for part, _ in named))
    content, opened = catalogue.pack(target), partial(IndexedDataset, multimodal=multimodal)
    manifest = combined_manifest(map(opened, prefixes), copied_tokens="compared" if verify else "inherited")
    joining = _Joining([part for _, part in named], target, dtype, manifest, multimodal=multimodal)
    with _opened(target, catalogue_path(target)) as (pending, file, index):
        file.write(content)
        joining.write_rows(index, starts=catalogue.extents.starts.tolist())
        if joining.tally is not None:
            for pair in map(opened, prefixes):
                joining.tally.add_pair(pair)
        joining.add_columns(pending, catalogue.source(target, mmap=True))
    return pending


def _recorded(dataset: IndexedDataset) -> Iterator[tuple[CataloguePart, ConcatenatedPart]]:
    """Yields the pairs that a dataset consists of, as a catalogue names them, and which documents of it they are."""
    for number, section in enumerate(dataset.sections):
        file = record_file(section.path, version=dataset.version_of_section(number))
        if file.num_bytes != section.num_bytes:
            message = f"`{section.path}`: expected {section.num_bytes} bytes, found {file.num_bytes}"
            raise StorageError(message, hint="the file changed while it was recorded")
        part = CataloguePart(
            prefix=section.prefix,
            num_sequences=len(section.rows),
            num_documents=len(section.documents),
            num_bytes=file.num_bytes,
            modified_ns=file.modified_ns,
            sample=file.sample,
            etag=file.etag,
        )
        yield part, ConcatenatedPart(prefix=dataset.path_prefix, documents=section.documents)


def _is_new(pending: PendingDataset, *, overwrite: bool, notice: Callable[[str], None] | None) -> bool:
    """Whether a dataset is to be published; one that is there already is given up, and said to be there."""
    if overwrite or not is_published(pending):
        return True
    pending.discard()
    (notice or _LOGGER.info)(f"nothing to do: `{pending.prefix}` holds these inputs already")
    return False


def write_pending(
    parts: Sequence[ConcatenatedPart],
    target: str,
    *,
    dtype: np.dtype[np.generic],
    multimodal: bool,
    manifest: MakeManifest | None = None,
    columns: Mapping[str, WrittenColumn] | None = None,
) -> PendingDataset:
    """Writes what `write_concatenated` does, of inputs that are checked, and further columns, without publishing it."""
    return _Joining(parts, target, dtype, manifest, multimodal=multimodal).write_pair(columns=columns)


@contextmanager
def _opened(
    target: str, tokens_path: str, *, durable: bool = True
) -> Iterator[tuple[PendingDataset, PendingFile, PendingFile]]:
    """Yields a dataset to be written, its tokens and its index; it is given up if that fails."""
    tokens, index = open_pending(tokens_path, durable=durable), open_pending(idx_path(target), durable=durable)
    pending = PendingDataset(prefix=target, tokens=tokens, index=index)
    try:
        yield pending, tokens, index
    except BaseException:
        pending.discard()
        raise


@dataclass(eq=False)
class _Joining:
    """Documents of many datasets as those of one: its rows, its tokens, and what lies beside it."""

    parts: Sequence[ConcatenatedPart]
    target: str
    dtype: np.dtype[np.generic]
    manifest: MakeManifest | None
    multimodal: bool = field(kw_only=True)
    durable: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        self.tally = None if self.manifest is None else PairTally(self.dtype)
        prefixes = dict.fromkeys(prefix_of(part.prefix) for part in self.parts)
        self._columns = _common({prefix: read_columns(self._open(prefix)) for prefix in prefixes})

    def write_pair(self, *, verify: bool = False, columns: Mapping[str, WrittenColumn] | None = None) -> PendingDataset:
        """Returns all of it as a pair with further columns, which has no name yet."""
        _, num_bytes = self._sizes
        with _opened(self.target, bin_path(self.target), durable=self.durable) as (pending, tokens, index):
            with task(f"writing {self.target}", unit="bytes", total=num_bytes) as advance:
                expected = self.write_rows(index, tokens=tokens, advance=advance)
            tokens.sync()
            with storage_errors("read", tokens.path):
                found = tokens.stream.seek(0, 2)
            if found != expected:
                message = f"`{tokens.path}`: expected {expected} bytes, which the index needs, but {found} were copied"
                raise StorageError(message, hint="an input changed while it was read")
            if verify:
                with task(f"comparing {tokens.path}", unit="bytes", total=num_bytes) as advance:
                    wrong = first_difference(tokens.readable_path, self._contents(advance))
                if wrong is not None:
                    message = f"`{tokens.path}`: byte {wrong} is not that of the inputs after copying"
                    hint = "the disk or the memory is faulty, or an input changed while it was read"
                    raise StorageError(message, hint=hint)
            pending.columns |= columns or {}
            self.add_columns(pending, MappedFile(tokens.readable_path))
        return pending

    def refuse_others(self) -> None:
        """Refuses to write where something is that cannot be the same, as sizes tell."""
        if (path := existing_path(self.target)) is None:
            return
        try:
            found = self._open(self.target)
        except (DatasetFormatError, DatasetNotFoundError) as error:
            raise exists_error(path) from error
        if found.catalogue is not None or (found.index.header, found.byte_source.num_bytes) != self._sizes:
            raise exists_error(path)

    def write_rows(
        self,
        index: PendingFile,
        *,
        starts: Sequence[int] | None = None,
        tokens: PendingFile | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> int:
        """Writes the index, copies tokens if there is a file for them, and returns where their bytes end."""
        rows = IndexWriter(index, self._sizes[0], multimodal=self.multimodal)
        for number, part in enumerate(self.parts):
            dataset = self._open(part.prefix)
            rows.pointer = rows.pointer if starts is None else starts[number]
            for block in Selection(dataset, part).blocks():
                rows.add_boundaries(rows.num_rows + np.cumsum(block.counts))
                rows.add_rows(block.lengths, block.modes)
                if tokens is None:
                    continue
                for piece in block.pieces():
                    put_piece(piece, tokens, advance=advance)
                    if self.tally is not None and not part.is_whole:
                        for data in _read(piece):
                            self.tally.add_tokens(data)
            if tokens is not None and self.tally is not None and part.is_whole:
                self.tally.add_pair(dataset)
            dataset.check_index()
        rows.finish()
        return rows.pointer

    def add_columns(self, pending: PendingDataset, tokens: ByteSource) -> None:
        """Writes the columns of a dataset whose tokens and index are complete, and its manifest."""
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
        """Yields the rows of a column, in blocks."""
        for part in self.parts:
            dataset = self._open(part.prefix)
            column = open_column(dataset, name)
            assert column is not None
            for block in Selection(dataset, part).blocks():
                for rows, kept in _chosen(column.facts.kind, dataset, block):
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
        """Returns the header of the index, and the bytes of all tokens."""
        found = [Selection(self._open(part.prefix), part).count() for part in self.parts]
        documents, sequences, num_tokens = (sum(each[column] for each in found) for column in range(3))
        code = DType.code_from_dtype(self.dtype)
        header = Header(dtype_code=code, num_sequences=sequences, num_boundaries=documents + 1)
        return header, num_tokens * self.dtype.itemsize

    def _contents(self, advance: Callable[[int], None]) -> Iterator[memoryview]:
        """Yields the bytes that parts are made of, in order."""
        for part in self.parts:
            for block in Selection(self._open(part.prefix), part).blocks():
                for piece in block.pieces():
                    for data in _read(piece):
                        yield data
                        advance(len(data))


def put_piece(piece: Piece, target: PendingFile, *, advance: Callable[[int], None] | None = None) -> None:
    """Appends bytes to a file."""
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
    """Yields the bytes of a piece, all of one version of its file."""
    if not isinstance(piece, FilePiece):
        yield piece.data
        return
    source, stop = PositionalFile(piece.path), piece.offset + piece.length
    for begin in range(piece.offset, stop, _READ_BYTES):
        data = source.read(begin, min(_READ_BYTES, stop - begin)).data
        if piece.version is not None:
            piece.version.check(version_of(piece.path), piece.path)
        yield data


def _cut(prefixes: Sequence[str], part_bytes: int) -> Iterator[list[ConcatenatedPart]]:
    """Yields what each pair is made of: as many whole documents as fit, at least one; O(log documents) per cut."""
    parts: list[ConcatenatedPart] = []
    room = part_bytes
    for prefix in prefixes:
        dataset = IndexedDataset(prefix)
        first = 0
        while first < dataset.num_documents:
            before = _bytes_before(dataset, first)
            rows, most = range(dataset.num_documents + 1), before + room
            last = bisect.bisect_right(rows, most, lo=first, key=lambda row: _bytes_before(dataset, row)) - 1
            if last <= first and parts:
                yield parts
                parts, room = [], part_bytes
                continue
            last = max(last, first + 1)
            parts.append(ConcatenatedPart(prefix=prefix, documents=range(first, last)))
            room -= _bytes_before(dataset, last) - before
            first = last
    if parts:
        yield parts
    elif not any(IndexedDataset(prefix).num_documents for prefix in prefixes):
        yield [ConcatenatedPart(prefix=prefixes[0])]


def _bytes_before(dataset: IndexedDataset, document: int) -> int:
    """Returns the bytes of all documents before one."""
    row = int(dataset.document_indices[document])
    return dataset.count_tokens(range(row)) * dataset.dtype.itemsize


def _check_no_others(output_prefix: str, outputs: Sequence[str]) -> None:
    """Refuses to write among the pairs of an earlier merge that had more of them."""
    folder, name = output_prefix.rpartition("/")[::2] if is_remote(output_prefix) else os.path.split(output_prefix)
    try:
        names = names_in(folder or ".")
    except StorageError as error:
        if is_missing(error):
            return  # writing will say so
        raise
    numbered = re.compile(rf"{re.escape(name)}_\d{{{_NUM_DIGITS},}}\.(bin|idx)")
    ours = {os.path.basename(output) for output in outputs}
    others = sorted({prefix_of(each) for each in names if numbered.fullmatch(each)} - ours)
    if others:
        message = f"`{bin_path(os.path.join(folder, others[0]))}` would stay among the {len(outputs)} new pairs"
        raise ConfigError(message, hint="it is left from an earlier merge; remove it, or choose another output prefix")


def check_output(output_prefix: str, prefixes: Sequence[str]) -> None:
    """Checks that there are inputs, and that the output is none of them."""
    if not prefixes:
        message = "expected at least one dataset to merge, got none"
        raise ConfigError(message)
    target, is_there = canonical_path(prefix_of(output_prefix)), exists(idx_path(prefix_of(output_prefix)))
    for prefix in map(prefix_of, prefixes):
        inputs = [prefix]
        if is_there and (catalogue := IndexedDataset(prefix).catalogue) is not None:
            inputs += [part.prefix for part in catalogue.parts]
        if target in map(canonical_path, inputs):
            message = f"the output `{prefix_of(output_prefix)}` is also an input"
            raise ConfigError(message, hint="choose another output prefix")


def check_inputs(prefixes: Sequence[str], *, multimodal: bool, tokens: bool = False) -> np.dtype[np.generic]:
    """Returns the dtype of all datasets, after checking each of them as `open_checked` does, once."""
    dtypes = {dataset.dtype for dataset in _checked_inputs(prefixes, multimodal=multimodal, tokens=tokens)}
    return dtypes.pop()


def _checked_inputs(prefixes: Sequence[str], *, multimodal: bool, tokens: bool = False) -> Iterator[IndexedDataset]:
    """Yields each dataset, once, after checking it and that its dtype is that of those before; see `check_inputs`."""
    first, expected = "", None
    for prefix in dict.fromkeys(map(prefix_of, prefixes)):
        dataset = open_checked(prefix, multimodal=multimodal, tokens=tokens)
        if expected is None:
            first, expected = prefix, dataset.dtype
        if dataset.dtype != expected:
            message = f"`{prefix}` holds {dataset.dtype} tokens, but `{first}` holds {expected}"
            raise ConfigError(message, hint="datasets of one dtype only can be merged; tokenize one of them again")
        yield dataset


def open_checked(prefix: str, *, multimodal: bool, tokens: bool = False) -> IndexedDataset:
    """Returns a dataset with a sound index and sound files beside it, every row of them, as its manifest has them."""
    dataset = IndexedDataset(prefix, multimodal=multimodal)
    check_index(dataset)
    check_columns(dataset)
    if isinstance(dataset.byte_source, ExtentSource):
        dataset.byte_source.check()
    if tokens:
        check_tokens(dataset)
    return dataset


def _chosen(kind: str, dataset: IndexedDataset, block: Block) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
    """Yields the rows of a block of documents, and which of them are kept."""
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


def _common(columns: Mapping[str, Mapping[str, ColumnFacts]]) -> dict[str, ColumnFacts]:
    """Returns what the columns of a result are, from those of all pairs, by prefix."""
    common: dict[str, ColumnFacts] = {}
    for name in dict.fromkeys(name for each in columns.values() for name in each):
        having = {prefix: each[name] for prefix, each in columns.items() if name in each}
        owner, facts = next(iter(having.items()))
        other = next((prefix for prefix, each in having.items() if each.form != facts.form), None)
        lacking = next((prefix for prefix in columns if prefix not in having), None)
        if other is None and (lacking is None or facts.kind == "runs"):
            if lacking is not None:
                text = "`%s` has no column `%s`: of its documents it says nothing in the result"
                _LOGGER.warning(text, lacking, name)
            common[name] = facts
            continue
        if other is None:
            problem = f"`{lacking}` has no column `{name}`, but `{owner}` has"
        else:
            problem = f"column `{name}` of `{other}` is {_words(having[other])}, that of `{owner}` is {_words(facts)}"
        if facts.kind in ("token", "sequence"):
            raise ConfigError(problem, hint=f"give all pairs the same column `{name}`, or remove it from those with it")
        _LOGGER.warning("the result has no column `%s`: %s", name, problem)
    return common


def _words(facts: ColumnFacts) -> str:
    about = f" about {dict(facts.about)}" if facts.about and facts.kind != "runs" else ""
    return f"{facts.dtype}{[*facts.shape[1:]]} per {facts.kind} of {facts.of}s, padding {facts.padding:g}{about}"
