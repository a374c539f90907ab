"""Many datasets as one pair: rows stream through, tokens are copied by the operating system.

Every input is opened and every row of its index checked before the first byte is written. Inputs are open one at a
time, and rows pass in blocks, so that memory depends on neither their number nor their size.
"""

from __future__ import annotations

import bisect
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import overload

import numpy as np

from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError, StorageError
from tokenloom.indexed.catalogue import catalogue_path
from tokenloom.indexed.checksums import PairTally
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import DType, Header, bin_path, idx_path, prefix_of
from tokenloom.indexed.manifest.check import combined_manifest
from tokenloom.indexed.manifest.contents import CopiedTokens, Manifest, PairFacts
from tokenloom.indexed.manifest.file import manifest_bytes
from tokenloom.indexed.opening import inputs_stay
from tokenloom.indexed.verify import check_index, check_sidecars, check_tokens
from tokenloom.indexed.writing.index_writer import IndexWriter
from tokenloom.indexed.writing.joined_sidecars import JoinedSidecars
from tokenloom.indexed.writing.kept_documents import ConcatenatedPart, FilePiece, Piece, Selection
from tokenloom.indexed.writing.outputs import (
    MOST_LOCKED,
    PendingDataset,
    existing_path,
    has_same_sidecars,
    holds,
    is_same_file,
    publish_datasets,
    should_seal,
)
from tokenloom.progress import NOTHING_WRITTEN, also_told, if_stopped, task
from tokenloom.setting_types import checked_output_prefix, checked_paths
from tokenloom.storage.addresses import canonical_path, is_remote
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.copies import PendingObject
from tokenloom.storage.copying import copy_range, first_difference
from tokenloom.storage.extents import ExtentSource
from tokenloom.storage.local import MappedFile
from tokenloom.storage.publishing import OutputLock, exists_error, make_folder_of
from tokenloom.storage.resolve import is_missing, names_in, open_pending
from tokenloom.storage.versions import check_version, open_regular

_LOGGER = logging.getLogger(__name__)

_READ_BYTES = 16 << 20
_NUM_DIGITS = 5


@overload
def merge_datasets(
    prefixes: Sequence[str | os.PathLike[str]],
    output_prefix: str | os.PathLike[str],
    *,
    multimodal: bool = False,
    part_bytes: None = None,
    progress: Callable[[str], None] | None = None,
    advance: Callable[[int], None] | None = None,
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
    progress: Callable[[str], None] | None = None,
    advance: Callable[[int], None] | None = None,
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
    progress: Callable[[str], None] | None = None,
    advance: Callable[[int], None] | None = None,
    verify: bool = False,
    durable: bool = True,
    overwrite: bool = False,
    notice: Callable[[str], None] | None = None,
) -> IndexedDataset | list[IndexedDataset]:
    """Writes the documents of all datasets, in order, as one pair, and returns it opened.

    All inputs are opened and checked before the first byte is written. Token bytes are copied by the operating system,
    rows pass in blocks. What lies beside the inputs is joined too: roles, hashes of documents and manifests if all have
    them, origins if any has.

    With `part_bytes`, writes pairs `OUTPUT_00000`, `OUTPUT_00001`, … of at most so many bytes of tokens and returns all
    of them. They are cut between documents; one that is larger by itself is alone. All appear together in the end.

    An output that is there already is compared with the inputs; where it holds them, there is nothing to do.

    Args:
        prefixes: prefixes of the inputs, in the order wanted.
        output_prefix: prefix of the result; must not be one of the inputs.
        multimodal: whether the datasets hold modes.
        part_bytes: most bytes of tokens in each pair; None writes one pair.
        progress: called with each prefix once it is copied; with `part_bytes`, once per pair that it goes to.
        advance: called with the bytes of tokens copied since the last call.
        verify: compare the tokens of the inputs with their manifests first, then read them back from the disk and
            compare them with those of the inputs. Without, the manifest of the result says that they were not.
        durable: wait until the result would survive a loss of power; without, as `cp` does, it is faster.
        overwrite: replace outputs that are there and hold something else; they stay whole until the new ones are.
        notice: called with a sentence for each output that is there already.

    Raises:
        ConfigError: nothing to merge, the output is also an input, the dtypes or, as manifests tell, the tokenizers
            differ, only some have roles, or pairs of an earlier merge would stay among the new ones.
        OutputExistsError: there is something else under the output prefix, and no `overwrite`.
        OutputBusyError: another process writes the same output.
        DatasetFormatError: an input is damaged.
        StorageError: reading or writing fails; everything is as it was.
    """
    chosen = list(map(prefix_of, checked_paths("prefixes", prefixes, example='such as ["books", "web"]')))
    output_prefix = checked_output_prefix("output_prefix", output_prefix)
    with inputs_stay(chosen):
        if part_bytes is None:
            return write_concatenated(
                [ConcatenatedPart(prefix=prefix) for prefix in chosen],
                output_prefix,
                multimodal=multimodal,
                progress=progress,
                advance=advance,
                verify=verify,
                durable=durable,
                overwrite=overwrite,
                notice=notice,
                manifest=_manifest(chosen, multimodal=multimodal, verify=verify, whole=True) if chosen else None,
            )
        if part_bytes < 1:
            message = f"expected pairs of at least one byte, got part_bytes={part_bytes!r}"
            raise ConfigError(message)
        check_output(output_prefix, chosen)
        dtype = check_inputs(chosen, multimodal=multimodal, tokens=verify)
        pairs = list(_cut(chosen, part_bytes))
        outputs = [f"{prefix_of(output_prefix)}_{number:0{_NUM_DIGITS}}" for number in range(len(pairs))]
        for output in outputs:
            check_output(output, chosen)
        _check_no_others(prefix_of(output_prefix), outputs)
        combined_manifest(chosen, multimodal=multimodal)  # one tokenizer for all, before the first pair is written
        make_folder_of(outputs[0])
        with ExitStack() as stack:
            stack.enter_context(if_stopped(lambda: NOTHING_WRITTEN))
            total = sum(IndexedDataset(prefix).extents.num_held_bytes for prefix in chosen)
            merged = stack.enter_context(task("merge", unit="bytes", total=total))
            locks = [stack.enter_context(OutputLock(idx_path(output))) for output in outputs[:MOST_LOCKED]]
            new: list[PendingDataset] = []
            for parts, output in zip(pairs, outputs, strict=True):
                if not overwrite and is_there(parts, output, dtype=dtype, multimodal=multimodal):
                    tell_nothing_to_do(notice, output)
                    continue
                pending = write_pending(
                    parts,
                    output,
                    dtype=dtype,
                    multimodal=multimodal,
                    progress=progress,
                    advance=also_told(merged, advance),
                    verify=verify,
                    durable=durable,
                    manifest=_manifest(
                        [part.prefix for part in parts],
                        multimodal=multimodal,
                        verify=verify,
                        whole=all(part.is_whole for part in parts),
                    ),
                )
                stack.callback(pending.discard)
                if should_seal(len(outputs)):
                    pending.seal(durable=durable)
                new.append(pending)
            publish_datasets(new, overwrite=overwrite, durable=durable, locks=locks)
        return [IndexedDataset(output, multimodal=multimodal) for output in outputs]


def _manifest(
    prefixes: Sequence[str], *, multimodal: bool, verify: bool, whole: bool
) -> Callable[[PairFacts], Manifest] | None:
    """Returns what makes the manifest of a merged pair; with `verify`, their tokens were compared."""
    copied: CopiedTokens = "compared" if verify else "inherited" if whole else "unverified"
    return combined_manifest(prefixes, multimodal=multimodal, copied_tokens=copied)


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
                for data in _read(piece):
                    tally.add_tokens(data)

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
    """Checks that there are inputs, and that the output is none of them.

    Raises:
        ConfigError: there are none, or it is.
    """
    if not prefixes:
        message = "expected at least one dataset to merge, got none"
        raise ConfigError(message)
    target = prefix_of(output_prefix)
    owned = _identities(target)
    for prefix in map(prefix_of, prefixes):
        if canonical_path(target) == canonical_path(prefix) or not owned.isdisjoint(_identities(prefix)):
            message = f"the output `{target}` is also an input"
            raise ConfigError(message, hint="choose another output prefix")
    for dataset in (IndexedDataset(prefix) for prefix in dict.fromkeys(prefixes) if owned):
        for section in dataset.sections if dataset.catalogue is not None else ():
            if not owned.isdisjoint(_identities(section.prefix)):
                message = f"the output `{target}` is a pair of the catalogue `{dataset.path_prefix}`, an input"
                raise ConfigError(message, hint="choose another output prefix")


def _identities(prefix: str) -> set[tuple[int, int]]:
    """Returns device and inode of the files of a dataset, however they are named; none of objects."""
    if is_remote(prefix):
        return set()
    found = set()
    for path in (idx_path(prefix), bin_path(prefix), catalogue_path(prefix)):
        with suppress(OSError):
            status = os.stat(path)
            found.add((status.st_dev, status.st_ino))
    return found


def check_inputs(prefixes: Sequence[str], *, multimodal: bool, tokens: bool = False) -> np.dtype[np.generic]:
    """Returns the dtype of all datasets, after checking each of them as `open_checked` does, once.

    Args:
        prefixes: prefixes of the datasets.
        multimodal: whether they hold modes.
        tokens: see `open_checked`.

    Raises:
        ConfigError: their dtypes differ.
        DatasetNotFoundError, DatasetFormatError: of one that is missing or damaged.
    """
    dtypes = {dataset.dtype for dataset in checked_inputs(prefixes, multimodal=multimodal, tokens=tokens)}
    return dtypes.pop()


def checked_inputs(prefixes: Sequence[str], *, multimodal: bool, tokens: bool = False) -> Iterator[IndexedDataset]:
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
    """Returns a dataset with a sound index and sound files beside it, every row of them, as its manifest has them.

    Args:
        prefix: prefix of the dataset.
        multimodal: whether it holds modes.
        tokens: whether all tokens are read, too, and compared with the manifest; there may be none.

    Raises:
        DatasetNotFoundError: it is not there.
        DatasetFormatError: something in it is damaged, or its manifest was written for other data.
        StorageError: a pair of a catalogue is missing, or another one took its place.
    """
    dataset = IndexedDataset(prefix, multimodal=multimodal)
    check_index(dataset)
    check_sidecars(dataset)
    if isinstance(dataset.byte_source, ExtentSource):
        dataset.byte_source.check()
    if tokens:
        check_tokens(dataset)
    return dataset
