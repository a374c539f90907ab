"""Many datasets as one pair: rows stream through, tokens are copied by the operating system.

Every input is opened and every row of its index checked before the first byte is written. Inputs are open one at a
time, and rows pass in blocks, so that memory depends on neither their number nor their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np

from tokenloom.errors import ConfigError, DatasetFormatError, StorageError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.index_writer import IndexWriter, publish_pair
from tokenloom.indexed.layout import DType, Header, bin_path, idx_path, prefix_of
from tokenloom.indexed.manifest import Manifest, PairFacts
from tokenloom.indexed.manifest_file import manifest_bytes
from tokenloom.indexed.roles_concatenation import ConcatenatedRoles
from tokenloom.indexed.selection import ConcatenatedPart, FilePiece, Piece, Selection
from tokenloom.indexed.tally import PairTally
from tokenloom.indexed.verify import index_problems
from tokenloom.storage.addresses import canonical_path
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.copies import PendingObject
from tokenloom.storage.copying import copy_range, first_difference
from tokenloom.storage.extents import ExtentSource
from tokenloom.storage.local import MappedFile
from tokenloom.storage.resolve import open_pending

_COMPARED_BYTES = 16 << 20


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
) -> IndexedDataset:
    """Writes the documents of all parts, in order, as one pair, and returns it opened.

    Nothing appears before all is written; a failure leaves nothing behind. Roles beside the inputs, see FORMAT.md, are
    joined too if all have them. Memory: blocks of rows, and for roles 8 bytes per sequence.

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
        parts: in the order wanted.
        output_prefix: of the result; must not be one of the inputs.
        multimodal: whether the inputs hold modes.
        progress: called with the prefix of each part once it is copied.
        advance: called with the bytes of tokens copied since the last call.
        verify: read the tokens back from the disk and compare them with those of the inputs.
        manifest: makes the manifest of the result from what its files hold; None for none. Tokens of whole datasets
            that have manifests themselves are not read for that.
        durable: wait until the pair would survive a loss of power; without, as `cp` does, it is faster.

    Raises:
        ConfigError: there is nothing to write, the output is also an input, the dtypes differ, a part names documents
            that its dataset does not have, or only some have roles.
        DatasetNotFoundError, DatasetFormatError: of an input that is missing or damaged.
        StorageError: reading or writing fails, an input changes meanwhile, or the comparison finds a difference.
    """
    prefixes = [part.prefix for part in parts]
    check_output(output_prefix, prefixes)
    dtype = check_inputs(prefixes, multimodal=multimodal)
    return write_checked(
        parts,
        output_prefix,
        dtype=dtype,
        multimodal=multimodal,
        progress=progress,
        advance=advance,
        verify=verify,
        manifest=manifest,
        durable=durable,
    )


def check_output(output_prefix: str, prefixes: Sequence[str]) -> None:
    """Checks that there are inputs, and that the output is none of them.

    Raises:
        ConfigError: there are none, or it is.
    """
    if not prefixes:
        message = "expected at least one dataset to merge, got none"
        raise ConfigError(message)
    target = prefix_of(output_prefix)
    if canonical_path(target) in {canonical_path(prefix_of(prefix)) for prefix in prefixes}:
        message = f"the output `{target}` is also an input"
        raise ConfigError(message, hint="choose another output prefix")


def check_inputs(prefixes: Sequence[str], *, multimodal: bool) -> np.dtype[np.generic]:
    """Returns the dtype of all datasets, after checking each of them as `open_checked` does, once.

    Raises:
        ConfigError: their dtypes differ.
        DatasetNotFoundError, DatasetFormatError: of one that is missing or damaged.
    """
    dtypes = {dataset.dtype for dataset in checked_inputs(prefixes, multimodal=multimodal)}
    return dtypes.pop()


def checked_inputs(prefixes: Sequence[str], *, multimodal: bool) -> Iterator[IndexedDataset]:
    """Yields each dataset, once, after checking it and that its dtype is that of those before; see `check_inputs`."""
    first, expected = "", None
    for prefix in dict.fromkeys(map(prefix_of, prefixes)):
        dataset = open_checked(prefix, multimodal=multimodal)
        if expected is None:
            first, expected = prefix, dataset.dtype
        if dataset.dtype != expected:
            message = f"`{prefix}` holds {dataset.dtype} tokens, but `{first}` holds {expected}"
            raise ConfigError(message, hint="datasets of one dtype only can be merged; tokenise one of them again")
        yield dataset


def open_checked(prefix: str, *, multimodal: bool) -> IndexedDataset:
    """Returns a dataset, every row of whose index is sound; tokens are not read.

    Raises:
        DatasetNotFoundError: it is not there.
        DatasetFormatError: a row is damaged.
        StorageError: a pair of a catalogue is missing, or another one took its place.
    """
    dataset = IndexedDataset(prefix, multimodal=multimodal)
    if problem := next(index_problems(dataset), None):
        raise DatasetFormatError(problem, hint=f"run `tokenloom verify {dataset.path_prefix}`")
    if isinstance(dataset.bin_reader, ExtentSource):
        dataset.bin_reader.check()
    return dataset


def write_checked(
    parts: Sequence[ConcatenatedPart],
    output_prefix: str,
    *,
    dtype: np.dtype[np.generic],
    multimodal: bool,
    progress: Callable[[str], None] | None = None,
    advance: Callable[[int], None] | None = None,
    verify: bool = False,
    manifest: Callable[[PairFacts], Manifest] | None = None,
    durable: bool = True,
) -> IndexedDataset:
    """Does what `write_concatenated` does, with inputs that `check_inputs` has checked and given the dtype of."""
    target = prefix_of(output_prefix)
    roles = ConcatenatedRoles(parts, target, multimodal=multimodal)
    tally = None if manifest is None else PairTally(dtype)
    with ExitStack() as stack:
        tokens = open_pending(bin_path(target), durable=durable)
        stack.callback(tokens.discard)
        index = open_pending(idx_path(target), durable=durable)
        stack.callback(index.discard)
        rows = IndexWriter(index, _header(parts, dtype, multimodal=multimodal), multimodal=multimodal)
        for part in parts:
            dataset = IndexedDataset(part.prefix, multimodal=multimodal)
            for block in Selection(dataset, part).blocks():
                rows.add_boundaries(rows.num_rows + np.cumsum(block.counts))
                rows.add_rows(block.lengths, block.modes)
                for piece in block.pieces():
                    put_piece(piece, tokens, advance=advance)
                    if tally is not None and not part.is_whole:
                        _tally_piece(tally, piece)
            if tally is not None and part.is_whole:
                tally.add_pair(dataset)
            if progress is not None:
                progress(part.prefix)
        rows.finish()
        tokens.sync()
        _check_size(tokens, rows.pointer)
        if verify:
            _compare(tokens, parts)
        roles.remove_old()
        record = None
        if manifest is not None and tally is not None:
            record = manifest_bytes(manifest(tally.facts_with(MappedFile(index.stream.name))))
        publish_pair(tokens, index, manifest=record)
    roles.publish()
    return IndexedDataset(target, multimodal=multimodal)


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
        write_back=target.is_durable,
        advance=advance,
    )


def _tally_piece(tally: PairTally, piece: Piece) -> None:
    if isinstance(piece, FilePiece):
        tally.add_file(piece.path, piece.offset, piece.length)
    else:
        tally.add_tokens(piece.data)


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


def _compare(tokens: PendingFile | PendingObject, parts: Sequence[ConcatenatedPart]) -> None:
    """Compares what was written with the inputs."""
    wrong = first_difference(tokens.stream.name, _contents(parts))
    if wrong is not None:
        message = f"`{tokens.path}`: byte {wrong} is not that of the inputs after copying"
        raise StorageError(message, hint="the disk or the memory is faulty, or an input changed while it was read")


def _contents(parts: Sequence[ConcatenatedPart]) -> Iterator[memoryview]:
    """Yields the bytes that parts are made of, in order."""
    for part in parts:
        for block in Selection(IndexedDataset(part.prefix), part).blocks():
            for piece in block.pieces():
                if not isinstance(piece, FilePiece):
                    yield piece.data
                    continue
                with storage_errors("read", piece.path), open(piece.path, "rb", buffering=0) as file:
                    file.seek(piece.offset)
                    for done in range(0, piece.length, _COMPARED_BYTES):
                        yield memoryview(file.read(min(_COMPARED_BYTES, piece.length - done)))
