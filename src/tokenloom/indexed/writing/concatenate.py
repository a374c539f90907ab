"""Many datasets as one pair: rows stream through, tokens are copied by the operating system.

Every input is opened and every row of its index checked before the first byte is written. Inputs are open one at a
time, and rows pass in blocks, so that memory depends on neither their number nor their size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np

from tokenloom.errors import DatasetFormatError, DatasetNotFoundError, StorageError
from tokenloom.indexed.checksums import PairTally
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import DType, Header, bin_path, idx_path, prefix_of
from tokenloom.indexed.manifest.contents import Manifest, PairFacts
from tokenloom.indexed.manifest.file import manifest_bytes
from tokenloom.indexed.opening import inputs_stay
from tokenloom.indexed.writing.checked_inputs import check_inputs, check_output
from tokenloom.indexed.writing.index_writer import IndexWriter
from tokenloom.indexed.writing.joined_sidecars import JoinedSidecars
from tokenloom.indexed.writing.kept_documents import ConcatenatedPart, FilePiece, Piece, Selection
from tokenloom.indexed.writing.outputs import (
    PendingDataset,
    existing_path,
    has_same_sidecars,
    holds,
    is_same_file,
    publish_datasets,
)
from tokenloom.progress import NOTHING_WRITTEN, also_told, if_stopped, task
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.copies import PendingObject
from tokenloom.storage.copying import copy_range, first_difference
from tokenloom.storage.local import MappedFile
from tokenloom.storage.publishing import OutputLock, exists_error, make_folder_of
from tokenloom.storage.resolve import open_pending
from tokenloom.storage.versions import check_version, open_regular

_LOGGER = logging.getLogger(__name__)

_READ_BYTES = 16 << 20


def write_concatenated(
    parts: Sequence[ConcatenatedPart],
    output_prefix: str,
    *,
    multimodal: bool = False,
    progress: Callable[[str], None] | None = None,
    advance: Callable[[int], None] | None = None,
    verify: bool = False,
    manifest: Callable[[PairFacts], Manifest] | None = None,
    durable: bool = True,
    overwrite: bool = False,
    notice: Callable[[str], None] | None = None,
) -> IndexedDataset:
    """Writes the documents of all parts, in order, as one pair, and returns it opened.

    Nothing appears before all is written; a failure leaves everything as it was. What lies beside the
    inputs, see FORMAT.md, is joined too: roles and hashes if all have them, origins if any has. Memory: blocks of rows,
    and for roles 8 bytes per sequence.

    A dataset that is there already is compared with the parts; if it holds them, there is nothing to do.

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
        multimodal: whether the inputs hold modes.
        progress: called with the prefix of each part once it is copied.
        advance: called with the bytes of tokens copied since the last call.
        verify: compare the tokens of the inputs with their manifests first, then read them back from the disk and
            compare them with those of the inputs.
        manifest: makes the manifest of the result from what its files hold; None for none. Tokens of whole datasets
            that have manifests themselves are not read for that.
        durable: wait until the pair would survive a loss of power; without, as `cp` does, it is faster.
        overwrite: replace a dataset that is there and holds something else; it stays whole until the new one is.
        notice: called with a sentence where there is nothing to do.

    Raises:
        ConfigError: there is nothing to write, the output is also an input, the dtypes differ, a part names documents
            that its dataset does not have, or only some have roles.
        OutputExistsError: there is something else under the output prefix, and no `overwrite`.
        OutputBusyError: another process writes the same output.
        DatasetNotFoundError, DatasetFormatError: of an input that is missing or damaged.
        StorageError: reading or writing fails, an input changes meanwhile, or the comparison finds a difference.
    """
    prefixes = [part.prefix for part in parts]
    check_output(output_prefix, prefixes)
    target = prefix_of(output_prefix)
    make_folder_of(target)
    with if_stopped(lambda: NOTHING_WRITTEN), OutputLock(idx_path(target)) as lock, inputs_stay(prefixes):
        dtype = check_inputs(prefixes, multimodal=multimodal, tokens=verify)
        if not overwrite and is_there(parts, target, dtype=dtype, multimodal=multimodal):
            tell_nothing_to_do(notice, target)
        else:
            pending = write_pending(
                parts,
                target,
                dtype=dtype,
                multimodal=multimodal,
                progress=progress,
                advance=advance,
                verify=verify,
                manifest=manifest,
                durable=durable,
            )
            publish_datasets([pending], overwrite=overwrite, durable=durable, locks=[lock])
    return IndexedDataset(target, multimodal=multimodal)


def tell_nothing_to_do(notice: Callable[[str], None] | None, prefix: str) -> None:
    """Says that an output is there already, made of the same inputs."""
    text = f"nothing to do: `{prefix}` holds these inputs already"
    _LOGGER.info("%s", text)
    if notice is not None:
        notice(text)


def is_there(parts: Sequence[ConcatenatedPart], target: str, *, dtype: np.dtype[np.generic], multimodal: bool) -> bool:
    """Whether a pair holds what the parts come to, byte for byte; what cannot be so at a glance is not read.

    Raises:
        OutputExistsError: something else is there.
    """
    if (path := existing_path(target)) is None:
        return False
    try:
        found = IndexedDataset(target, multimodal=multimodal)
    except (DatasetFormatError, DatasetNotFoundError) as error:
        raise exists_error(path) from error
    header = _header(parts, dtype, multimodal=multimodal)
    num_bytes = sum(_num_bytes(part, multimodal=multimodal) for part in parts)
    if found.catalogue is not None or found.index.header != header or found.byte_source.num_bytes != num_bytes:
        raise exists_error(path)
    joining = JoinedSidecars(parts, target, multimodal=multimodal, durable=False)
    index = open_pending(idx_path(target), durable=False)
    try:
        _write_rows(parts, index, header, multimodal=multimodal)
        is_same = is_same_file(index) and holds(found.byte_source, _compared(parts, target, num_bytes))
        if is_same:
            joined = joining.write(len(found), found.byte_source, found.index_source())
            try:
                is_same = has_same_sidecars(target, joined.files)
            finally:
                joined.discard()
    finally:
        index.discard()
    if not is_same:
        raise exists_error(path)
    return True


def _num_bytes(part: ConcatenatedPart, *, multimodal: bool) -> int:
    """Returns the bytes of tokens of a part."""
    dataset = IndexedDataset(part.prefix, multimodal=multimodal)
    if part.is_whole:
        return dataset.extents.num_held_bytes
    blocks = Selection(dataset, part).blocks()
    return sum(int(block.lengths.sum(dtype=np.int64)) for block in blocks) * dataset.dtype.itemsize


def write_pending(
    parts: Sequence[ConcatenatedPart],
    target: str,
    *,
    dtype: np.dtype[np.generic],
    multimodal: bool,
    progress: Callable[[str], None] | None = None,
    advance: Callable[[int], None] | None = None,
    verify: bool = False,
    manifest: Callable[[PairFacts], Manifest] | None = None,
    durable: bool = True,
) -> PendingDataset:
    """Writes what `write_concatenated` does, with inputs that `check_inputs` has checked and given the dtype of.

    Nothing has a name yet: `publish_datasets` makes it appear.
    """
    joining = JoinedSidecars(parts, target, multimodal=multimodal, durable=durable)
    tally = None if manifest is None else PairTally(dtype)
    with ExitStack() as stack:
        tokens = open_pending(bin_path(target), durable=durable)
        stack.callback(tokens.discard)
        index = open_pending(idx_path(target), durable=durable)
        stack.callback(index.discard)

        total = sum(_num_bytes(part, multimodal=multimodal) for part in parts)
        copied = stack.enter_context(task(f"writing {target}", unit="bytes", total=total))
        tell = also_told(copied, advance)

        def copy(part: ConcatenatedPart, piece: Piece) -> None:
            put_piece(piece, tokens, advance=tell)
            if tally is not None and not part.is_whole:
                _tally_piece(tally, piece)

        def end(part: ConcatenatedPart, dataset: IndexedDataset) -> None:
            if tally is not None and part.is_whole:
                tally.add_pair(dataset)
            dataset.check_index()
            if progress is not None:
                progress(part.prefix)

        header = _header(parts, dtype, multimodal=multimodal)
        num_bytes = _write_rows(parts, index, header, multimodal=multimodal, copy=copy, end=end)
        tokens.sync()
        _check_size(tokens, num_bytes)
        if verify:
            _compare(tokens, parts, target, num_bytes)
        pending = PendingDataset(prefix=target, tokens=tokens, index=index)
        written_index = MappedFile(index.readable_path)
        joined = joining.write(header.num_sequences, MappedFile(tokens.readable_path), written_index)
        stack.callback(joined.discard)
        pending.add_beside(joined.files)
        if manifest is not None and tally is not None:
            pending.manifest = manifest_bytes(manifest(joined.facts(tally.facts(written_index))))
        stack.pop_all()
    return pending


def _write_rows(
    parts: Sequence[ConcatenatedPart],
    index: PendingFile | PendingObject,
    header: Header,
    *,
    multimodal: bool,
    copy: Callable[[ConcatenatedPart, Piece], None] | None = None,
    end: Callable[[ConcatenatedPart, IndexedDataset], None] | None = None,
) -> int:
    """Writes the index of all parts, and returns the bytes of tokens that it needs.

    Args:
        parts: what it is of.
        index: empty.
        header: header with the final counts.
        multimodal: whether there are modes.
        copy: called with each piece of tokens, in order.
        end: called after each part.
    """
    rows = IndexWriter(index, header, multimodal=multimodal)
    for part in parts:
        dataset = IndexedDataset(part.prefix, multimodal=multimodal)
        for block in Selection(dataset, part).blocks():
            rows.add_boundaries(rows.num_rows + np.cumsum(block.counts))
            rows.add_rows(block.lengths, block.modes)
            for piece in block.pieces() if copy is not None else ():
                copy(part, piece)  # type: ignore[misc]
        if end is not None:
            end(part, dataset)
    rows.finish()
    return rows.pointer


def put_piece(
    piece: Piece, target: PendingFile | PendingObject, *, advance: Callable[[int], None] | None = None
) -> None:
    """Appends bytes to a file.

    Raises:
        StorageError: reading or writing fails, or the source is shorter than it was.
    """
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


def _tally_piece(tally: PairTally, piece: Piece) -> None:
    for data in _read(piece):
        tally.add_tokens(data)


def _header(parts: Sequence[ConcatenatedPart], dtype: np.dtype[np.generic], *, multimodal: bool) -> Header:
    documents = sequences = 0
    for part in parts:
        found = Selection(IndexedDataset(part.prefix, multimodal=multimodal), part).count()
        documents, sequences = documents + found[0], sequences + found[1]
    code = DType.code_from_dtype(dtype)
    return Header(dtype_code=code, num_sequences=sequences, num_boundaries=documents + 1)


def _check_size(tokens: PendingFile | PendingObject, expected: int) -> None:
    with storage_errors("read", tokens.path):
        found = tokens.stream.seek(0, 2)
    if found != expected:
        message = f"`{tokens.path}`: expected {expected} bytes, which the index needs, but {found} were copied"
        raise StorageError(message, hint="an input changed while it was read")


def _compare(
    tokens: PendingFile | PendingObject, parts: Sequence[ConcatenatedPart], target: str, num_bytes: int
) -> None:
    """Compares what was written with the inputs."""
    wrong = first_difference(tokens.readable_path, _compared(parts, target, num_bytes))
    if wrong is not None:
        message = f"`{tokens.path}`: byte {wrong} is not that of the inputs after copying"
        raise StorageError(message, hint="the disk or the memory is faulty, or an input changed while it was read")


def _compared(parts: Sequence[ConcatenatedPart], target: str, num_bytes: int) -> Iterator[memoryview]:
    """Yields the bytes that parts are made of, in order, and shows how many of them were compared."""
    with task(f"comparing {target}", unit="bytes", total=num_bytes) as advance:
        for data in _contents(parts):
            yield data
            advance(len(data))


def _contents(parts: Sequence[ConcatenatedPart]) -> Iterator[memoryview]:
    """Yields the bytes that parts are made of, in order."""
    for part in parts:
        for block in Selection(IndexedDataset(part.prefix), part).blocks():
            for piece in block.pieces():
                yield from _read(piece)


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
