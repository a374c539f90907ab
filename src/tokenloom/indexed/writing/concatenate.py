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
from functools import partial
from typing import overload

import numpy as np

from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError, StorageError
from tokenloom.indexed.catalogue import Catalogue, CataloguePart, catalogue_path
from tokenloom.indexed.checksums import PairTally
from tokenloom.indexed.columns import WrittenColumn
from tokenloom.indexed.dataset import IndexedDataset, inputs_stay
from tokenloom.indexed.layout import DType, Header, bin_path, idx_path, prefix_of
from tokenloom.indexed.manifests import CopiedTokens, Manifest, PairFacts, combined_manifest, manifest_bytes
from tokenloom.indexed.verify import check_columns, check_index, check_tokens
from tokenloom.indexed.writing.index_writer import IndexWriter
from tokenloom.indexed.writing.joined_columns import JoinedColumns
from tokenloom.indexed.writing.kept_documents import Block, ConcatenatedPart, FilePiece, Piece, Selection
from tokenloom.indexed.writing.outputs import (
    MOST_LOCKED,
    PendingDataset,
    existing_path,
    is_published,
    publish_datasets,
    should_seal,
)
from tokenloom.progress import NOTHING_WRITTEN, if_stopped, task
from tokenloom.setting_types import checked_output_prefix, checked_paths
from tokenloom.storage.addresses import canonical_path, is_remote
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.extents import ExtentSource, record_file
from tokenloom.storage.local import ByteSource, MappedFile, copy_range, first_difference
from tokenloom.storage.publishing import OutputLock, exists_error, make_folder_of
from tokenloom.storage.resolve import exists, is_missing, names_in, open_pending
from tokenloom.storage.versions import check_version, open_regular

_LOGGER = logging.getLogger(__name__)

_READ_BYTES = 16 << 20
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

    All inputs are opened and checked before the first byte is written. Token bytes are copied by the operating system,
    rows pass in blocks. Columns are joined by their kind, see `JoinedColumns`, and manifests if all have them.

    With `part_bytes`, writes pairs `OUTPUT_00000`, `OUTPUT_00001`, … of at most so many bytes of tokens and returns all
    of them. They are cut between documents; one that is larger by itself is alone. All appear together in the end.

    A result that is there already, byte for byte, stays as it is.

    Args:
        prefixes: prefixes of the inputs, in the order wanted.
        output_prefix: prefix of the result; must not be one of the inputs.
        multimodal: whether the datasets hold modes.
        part_bytes: most bytes of tokens in each pair; None writes one pair.
        verify: compare the tokens of the inputs with their manifests first, then read them back from the disk and
            compare them with those of the inputs. Without, the manifest of the result says that they were not.
        durable: wait until the result would survive a loss of power; without, as `cp` does, it is faster.
        overwrite: replace outputs that are there and hold something else; they stay whole until the new ones are.
        notice: called with a sentence for each output that is there already.

    Raises:
        ConfigError: nothing to merge, the output is also an input, the dtypes or, as manifests tell, the tokenizers
            differ, only some have a column per token, or pairs of an earlier merge would stay among the new ones.
        OutputExistsError: there is something else under the output prefix, and no `overwrite`.
        OutputBusyError: another process writes the same output.
        DatasetFormatError: an input is damaged.
        StorageError: reading or writing fails; everything is as it was.
    """
    chosen = list(map(prefix_of, checked_paths("prefixes", prefixes, example='such as ["books", "web"]')))
    target = prefix_of(checked_output_prefix("output_prefix", output_prefix))
    opened = partial(IndexedDataset, multimodal=multimodal)
    with inputs_stay(chosen):
        check_output(target, chosen)
        outputs = {target: [ConcatenatedPart(prefix=prefix) for prefix in chosen]}
        if part_bytes is not None:
            if part_bytes < 1:
                message = f"expected pairs of at least one byte, got part_bytes={part_bytes!r}"
                raise ConfigError(message)
            check_inputs(chosen, multimodal=multimodal)
            cut = enumerate(_cut(chosen, part_bytes))
            outputs = {f"{target}_{number:0{_NUM_DIGITS}}": parts for number, parts in cut}
            _check_no_others(target, list(outputs))
            combined_manifest(map(opened, chosen))  # one tokenizer for all, before the first pair is written

        def make_manifest(parts: Sequence[ConcatenatedPart]) -> MakeManifest | None:
            is_whole = all(part.is_whole for part in parts)
            copied: CopiedTokens = "compared" if verify else "inherited" if is_whole else "unverified"
            return combined_manifest((opened(part.prefix) for part in parts), copied_tokens=copied)

        written = _write_all(
            outputs,
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

    Memory: blocks of rows.

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
        manifest: makes the manifest of the result from what its files hold; None for none. Tokens of whole datasets
            that have manifests themselves are not read for that.

    Raises:
        ConfigError: as `merge_datasets`, or a part names documents that its dataset does not have.
        OutputExistsError, OutputBusyError, DatasetFormatError, StorageError: as `merge_datasets`.
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
    outputs: Mapping[str, Sequence[ConcatenatedPart]],
    *,
    multimodal: bool,
    verify: bool,
    manifest: Callable[[Sequence[ConcatenatedPart]], MakeManifest | None],
    durable: bool,
    overwrite: bool,
    notice: Callable[[str], None] | None,
) -> list[IndexedDataset]:
    """Writes pairs, by their prefixes, and returns them opened; all appear together."""
    prefixes = list(dict.fromkeys(part.prefix for parts in outputs.values() for part in parts))
    for target in outputs:
        check_output(target, prefixes)
    make_folder_of(next(iter(outputs)))
    with ExitStack() as stack:
        stack.enter_context(if_stopped(lambda: NOTHING_WRITTEN))
        locks = [stack.enter_context(OutputLock(idx_path(target))) for target in list(outputs)[:MOST_LOCKED]]
        dtype = check_inputs(prefixes, multimodal=multimodal, tokens=verify)
        new = []
        for target, parts in outputs.items():
            joining = _Joining(parts, target, dtype, manifest(parts), multimodal=multimodal, durable=durable)
            if not overwrite:
                joining.refuse_others()
            pending = joining.write_pair(verify=verify)
            stack.callback(pending.discard)
            if _is_new(pending, overwrite=overwrite, notice=notice):
                if should_seal(len(outputs)):
                    pending.seal(durable=durable)
                new.append(pending)
        publish_datasets(new, overwrite=overwrite, durable=durable, locks=locks)
    return [IndexedDataset(target, multimodal=multimodal) for target in outputs]


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

    The result is an index, `OUTPUT.idx`, and a list of the pairs, `OUTPUT.catalogue`, see FORMAT.md. Its prefix is as
    good as that of a pair. Pairs below the folder of the catalogue are named from there, so that the folder can be
    moved; others by their whole path or address. A pair that changes later is an error when it is read. Catalogues
    among the inputs are resolved to their pairs. Columns are joined by their kind, see `JoinedColumns`,
    and manifests if all have them.

    Every row of the inputs is checked, and rows pass in blocks, one input after the other.

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
        verify: read all tokens and compare them with the manifests. Without, the manifest of the result says that
            they were not.

    Raises:
        ConfigError: as `merge_datasets`, or a pair is there, or a catalogue in object storage would name local files.
        OutputExistsError, OutputBusyError, DatasetFormatError, StorageError: as `merge_datasets`.
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
    catalogue = Catalogue([part for part, _ in named])
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
        counts = CataloguePart(file=file, num_sequences=len(section.rows), num_documents=len(section.documents))
        yield counts, ConcatenatedPart(prefix=dataset.path_prefix, documents=section.documents)


def _is_new(pending: PendingDataset, *, overwrite: bool, notice: Callable[[str], None] | None) -> bool:
    """Whether a dataset is to be published; one that is there already is given up, and said to be there."""
    if overwrite or not is_published(pending):
        return True
    pending.discard()
    text = f"nothing to do: `{pending.prefix}` holds these inputs already"
    _LOGGER.info("%s", text)
    if notice is not None:
        notice(text)
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
    """Writes what `write_concatenated` does, with inputs that `check_inputs` has checked and given the dtype of.

    Nothing has a name yet: `publish_datasets` makes it appear, with further columns that are written already.
    """
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


class _Joining:
    """Documents of many datasets as those of one: its rows, its tokens, and what lies beside it."""

    def __init__(
        self,
        parts: Sequence[ConcatenatedPart],
        target: str,
        dtype: np.dtype[np.generic],
        manifest: MakeManifest | None,
        *,
        multimodal: bool,
        durable: bool = True,
    ) -> None:
        self._parts = parts
        self._target = target
        self._dtype = dtype
        self._manifest = manifest
        self._multimodal = multimodal
        self._durable = durable
        self.tally: PairTally | None = None if manifest is None else PairTally(dtype)
        self._columns = JoinedColumns(parts, target, multimodal=multimodal, durable=durable)

    def write_pair(self, *, verify: bool = False, columns: Mapping[str, WrittenColumn] | None = None) -> PendingDataset:
        """Returns all of it as a pair with further columns, which has no name yet."""
        _, num_bytes = self._sizes()
        with _opened(self._target, bin_path(self._target), durable=self._durable) as (pending, tokens, index):
            with task(f"writing {self._target}", unit="bytes", total=num_bytes) as advance:
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
        if (path := existing_path(self._target)) is None:
            return
        try:
            found = self._open(self._target)
        except (DatasetFormatError, DatasetNotFoundError) as error:
            raise exists_error(path) from error
        if found.catalogue is not None or (found.index.header, found.byte_source.num_bytes) != self._sizes():
            raise exists_error(path)

    def write_rows(
        self,
        index: PendingFile,
        *,
        starts: Sequence[int] | None = None,
        tokens: PendingFile | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> int:
        """Writes the index, and returns where the bytes of tokens end.

        Args:
            index: empty.
            starts: where the bytes of each part begin; None for where those of the part before end.
            tokens: file that these bytes are copied to; None to copy none.
            advance: called with the bytes that were copied.
        """
        rows = IndexWriter(index, self._sizes()[0], multimodal=self._multimodal)
        for number, part in enumerate(self._parts):
            dataset = self._open(part.prefix)
            rows.pointer = rows.pointer if starts is None else starts[number]
            for block in Selection(dataset, part).blocks():
                rows.add_boundaries(rows.num_rows + np.cumsum(block.counts))
                rows.add_rows(block.lengths, block.modes)
                if tokens is not None:
                    self._copy(part, block, tokens, advance)
            if tokens is not None and self.tally is not None and part.is_whole:
                self.tally.add_pair(dataset)
            dataset.check_index()
        rows.finish()
        return rows.pointer

    def _copy(
        self,
        part: ConcatenatedPart,
        block: Block,
        tokens: PendingFile,
        advance: Callable[[int], None] | None,
    ) -> None:
        for piece in block.pieces():
            put_piece(piece, tokens, advance=advance)
            if self.tally is not None and not part.is_whole:
                for data in _read(piece):
                    self.tally.add_tokens(data)

    def add_columns(self, pending: PendingDataset, tokens: ByteSource) -> None:
        """Writes the columns of a dataset whose tokens and index are complete, and its manifest."""
        pending.columns |= self._columns.write()
        pending.describe(tokens)
        if self._manifest is not None and self.tally is not None:
            facts = self.tally.facts(MappedFile(pending.index.readable_path))
            pending.manifest = manifest_bytes(self._manifest(facts))

    def _open(self, prefix: str) -> IndexedDataset:
        return IndexedDataset(prefix, multimodal=self._multimodal)

    def _sizes(self) -> tuple[Header, int]:
        """Returns the header of the index, and the bytes of all tokens."""
        found = [Selection(self._open(part.prefix), part).count() for part in self._parts]
        documents, sequences, num_tokens = (sum(each[column] for each in found) for column in range(3))
        code = DType.code_from_dtype(self._dtype)
        header = Header(dtype_code=code, num_sequences=sequences, num_boundaries=documents + 1)
        return header, num_tokens * self._dtype.itemsize

    def _contents(self, advance: Callable[[int], None]) -> Iterator[memoryview]:
        """Yields the bytes that parts are made of, in order."""
        for part in self._parts:
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
    with storage_errors("read", piece.path), open(open_regular(piece.path), "rb", buffering=0) as file:
        file.seek(piece.offset)
        left = piece.length
        while left:
            check_version(file.fileno(), piece.version, piece.path)
            data = memoryview(file.read(min(_READ_BYTES, left)))
            if not data:
                message = f"`{piece.path}` ended {left} bytes before what was read of it"
                raise StorageError(message, hint="the file was truncated while it was read")
            yield data
            left -= len(data)
        check_version(file.fileno(), piece.version, piece.path)


def _cut(prefixes: Sequence[str], part_bytes: int) -> Iterator[list[ConcatenatedPart]]:
    """Yields what each pair is made of: as many whole documents as fit, at least one; O(log documents) per cut."""
    parts: list[ConcatenatedPart] = []
    room = part_bytes
    for prefix in prefixes:
        dataset = IndexedDataset(prefix)
        first = 0
        while first < dataset.num_documents:
            last = _last_that_fits(dataset, first, room)
            if last <= first and parts:
                yield parts
                parts, room = [], part_bytes
                continue
            last = max(last, first + 1)
            parts.append(ConcatenatedPart(prefix=prefix, documents=range(first, last)))
            room -= _bytes_before(dataset, last) - _bytes_before(dataset, first)
            first = last
    if parts:
        yield parts
    elif not any(IndexedDataset(prefix).num_documents for prefix in prefixes):
        yield [ConcatenatedPart(prefix=prefixes[0])]


def _last_that_fits(dataset: IndexedDataset, first: int, room: int) -> int:
    """Returns one past the last document that ends within so many bytes from the start of another."""
    most = _bytes_before(dataset, first) + room
    documents = range(dataset.num_documents + 1)
    return bisect.bisect_right(documents, most, lo=first, key=lambda document: _bytes_before(dataset, document)) - 1


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
