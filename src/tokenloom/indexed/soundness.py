"""Whether an index is sound: every row, and the checksums of its manifest.

What opening a pair does not look at, and whoever reads all of an index must: one wrong length makes other samples of
all documents behind it. A pass of a kernel over the rows and one for the checksum, together about an eighth of the time
in which windows are shuffled over the same documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tokenloom import kernels
from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import Index, bin_path, idx_path
from tokenloom.indexed.manifest.check import manifest_of
from tokenloom.indexed.manifest.contents import FileChecksum
from tokenloom.progress import also_told, task

_ROWS = 1 << 20
_BYTES = 16 << 20
"""Read at once; a multiple of every token's width."""

_SOUND: WeakKeyDictionary[IndexedDataset, Index] = WeakKeyDictionary()
"""Datasets that were checked, with the index that they had open."""


def check_index(dataset: IndexedDataset, *, compares: bool = True) -> None:
    """Checks every row of an index, and its checksum where there is a manifest; remembered for this opened dataset.

    Args:
        dataset: whose index it is.
        compares: whether the checksum counts; to ask for it costs requests in object storage.

    Raises:
        DatasetFormatError: a row is damaged, or the manifest is of another index.
    """
    if _SOUND.get(dataset) is dataset.index:
        return
    problem = next(index_problems(dataset), None)
    if problem is None and compares and (manifest := manifest_of(dataset)) is not None:
        found = _index_checksum(dataset, manifest.pair.index)
        problem = checksum_problem(idx_path(dataset.path_prefix), manifest.pair.index, found)
    if problem is not None:
        raise DatasetFormatError(problem, hint=damaged_hint(dataset))
    _SOUND[dataset] = dataset.index


def check_sum(dataset: IndexedDataset, rows: range, num_tokens: int) -> None:
    """Checks what the lengths of consecutive rows add up to, which must be what lies between their ends; O(1).

    Args:
        dataset: dataset that holds them.
        rows: which.
        num_tokens: the sum of their lengths.

    Raises:
        DatasetFormatError: it is not; names the first damaged row.
    """
    if (expected := dataset.count_tokens(rows)) == num_tokens:
        return
    check_index(dataset)  # knows better what is wrong
    message = (
        f"`{idx_path(dataset.path_prefix)}`: expected lengths of {expected} tokens for sequences {rows.start} to "
        f"{rows.stop}, found {num_tokens}"
    )
    raise DatasetFormatError(message, hint=damaged_hint(dataset))


def check_tokens(dataset: IndexedDataset, *, progress: Callable[[int], None] | None = None) -> bool:
    """Reads all tokens and compares their checksum with that of the manifest.

    Args:
        dataset: the pair.
        progress: called with the bytes read since the last call.

    Returns:
        Whether there is a manifest; nothing is read without.

    Raises:
        DatasetFormatError: they have another checksum.
    """
    if (manifest := manifest_of(dataset)) is None:
        return False
    num_bytes = crc32 = 0
    total = sum(section.num_bytes for section in dataset.sections)
    with task(f"checking {dataset.path_prefix}", unit="bytes", total=total) as advance:
        tell = also_told(advance, progress)
        for section in dataset.sections:
            for begin in range(section.start, section.start + section.num_bytes, _BYTES):
                data = dataset.byte_source.read(begin, min(_BYTES, section.start + section.num_bytes - begin))
                num_bytes, crc32 = num_bytes + len(data), kernels.crc32(data, crc32)
                tell(len(data))
    found = FileChecksum(num_bytes=num_bytes, crc32=crc32)
    if problem := checksum_problem(bin_path(dataset.path_prefix), manifest.pair.tokens, found):
        raise DatasetFormatError(problem, hint=damaged_hint(dataset))
    return True


def checksum_problem(path: str, expected: FileChecksum, found: FileChecksum) -> str | None:
    """Returns how a file differs from what its manifest says, None if it does not."""
    if expected == found:
        return None
    return (
        f"`{path}`: expected {expected.num_bytes} bytes with CRC-32 {expected.crc32:08x}, as the manifest "
        f"says, found {found.num_bytes} with {found.crc32:08x}"
    )


def damaged_hint(dataset: IndexedDataset) -> str:
    """Returns what to do about a pair that is damaged."""
    return f"run `tokenloom verify {dataset.path_prefix}`"


def _index_checksum(dataset: IndexedDataset, expected: FileChecksum) -> FileChecksum:
    """Returns the checksum of the index as it is open, and of the modes behind it, which text readers do not open."""
    header, arrays = dataset.index.header, dataset.index.arrays
    crc32 = kernels.crc32(header.pack())
    for array in (arrays.lengths, arrays.pointers, arrays.boundaries):
        crc32 = kernels.crc32(array, crc32)
    num_bytes, source = header.modes_offset, dataset.index_source()
    modes = arrays.modes
    if modes is None and source.num_bytes == header.idx_bytes(multimodal=True) == expected.num_bytes:
        modes = source.read(num_bytes, header.num_sequences).view(np.int8)
    if modes is not None:
        num_bytes, crc32 = num_bytes + len(modes), kernels.crc32(modes, crc32)
    return FileChecksum(num_bytes=num_bytes, crc32=crc32)


def index_problems(dataset: IndexedDataset) -> Iterator[str]:
    """Yields one sentence for each array of the index that is inconsistent; one pass over its rows."""
    is_sound = _rows_are_sound(dataset)
    dataset.check_index()
    if is_sound:
        return
    for problems in (_length_problems(dataset), _pointer_problems(dataset), _boundary_problems(dataset)):
        problem = next(problems, None)
        dataset.check_index()
        if problem:
            yield problem


def _rows_are_sound(dataset: IndexedDataset) -> bool:
    """Says whether nothing is wrong; what it is, slower code finds out."""
    arrays, itemsize = dataset.index.arrays, dataset.dtype.itemsize
    for section in dataset.sections:
        rows = slice(section.rows.start, section.rows.stop)
        end = kernels.check_rows(arrays.lengths[rows], arrays.pointers[rows], start=section.start, itemsize=itemsize)
        if end != (len(section.rows), section.start + section.num_bytes):
            return False
        if int(arrays.boundaries[section.documents.start]) != section.rows.start:
            return False
    return kernels.first_fall(arrays.boundaries) == len(arrays.boundaries)


def _rows(array: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    for begin in range(0, len(array), _ROWS):
        yield begin, array[begin : begin + _ROWS]


def _length_problems(dataset: IndexedDataset) -> Iterator[str]:
    for begin, lengths in _rows(dataset.sequence_lengths):
        for row in np.flatnonzero(lengths < 0):
            yield (
                f"`{idx_path(dataset.path_prefix)}`: expected a length from 0 on, "
                f"found {lengths[row]} for sequence {begin + row}"
            )


def _pointer_problems(dataset: IndexedDataset) -> Iterator[str]:
    where = f"`{idx_path(dataset.path_prefix)}`: expected"
    for section in dataset.sections:
        expected = section.start
        for begin, lengths in _rows(dataset.sequence_lengths[section.rows.start : section.rows.stop]):
            first = section.rows.start + begin
            ends = expected + np.cumsum(lengths, dtype=np.int64) * dataset.dtype.itemsize
            pointers = dataset.index.sequence_pointers[first : first + len(lengths)]
            starts = np.concatenate([np.array([expected], dtype=np.int64), ends[:-1]])
            for row in np.flatnonzero(pointers != starts):
                is_start = begin + row == 0 and section.start > 0
                before = "the start of its pair" if is_start else "the end of the sequence before"
                yield f"{where} pointer {starts[row]} ({before}), found {pointers[row]} for sequence {first + row}"
            expected = int(ends[-1])
        if expected != (end := section.start + section.num_bytes):
            yield f"{where} the sequences of `{section.path}` to end at byte {end}, found {expected}"


def _boundary_problems(dataset: IndexedDataset) -> Iterator[str]:
    for section in dataset.sections:
        first = int(dataset.document_indices[section.documents.start])
        if first != section.rows.start:
            yield (
                f"`{idx_path(dataset.path_prefix)}`: expected document {section.documents.start}, the first of "
                f"`{section.path}`, to begin with sequence {section.rows.start}, found {first}"
            )
    before = 0
    for begin, boundaries in _rows(dataset.document_indices):
        joined = np.concatenate([np.array([before], dtype=np.int64), boundaries])
        for row in np.flatnonzero(joined[1:] < joined[:-1]):
            yield (
                f"`{idx_path(dataset.path_prefix)}`: expected document boundaries that do not fall, "
                f"found {joined[row + 1]} for boundary {begin + row} after {joined[row]}"
            )
        before = int(boundaries[-1])
