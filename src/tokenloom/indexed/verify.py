"""Checking a pair: every row of its index, the checksums of its manifest, and what lies beside it.

Opening a pair looks at none of that, and whoever reads all of an index must: one wrong length makes other samples of
all documents behind it. A pass of a kernel over the rows and one for the checksum take about an eighth of the time in
which windows are shuffled over the same documents.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import check_rows, first_fall
from tokenloom.errors import DatasetFormatError, DatasetNotFoundError
from tokenloom.indexed.checksums import FileTally, PairTally, source_checksum, token_blocks
from tokenloom.indexed.columns import Column, open_column, read_columns, token_place
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import Index, bin_path, idx_path
from tokenloom.indexed.manifests import FileChecksum, PairFacts, manifest_of, manifest_path, read_manifest
from tokenloom.indexed.origins import read_origins
from tokenloom.progress import task
from tokenloom.rendering.card import HasFacts
from tokenloom.storage.extents import ExtentSource

_ROWS_AT_ONCE = 1 << 22

_SOUND: WeakKeyDictionary[IndexedDataset, Index] = WeakKeyDictionary()
"""Datasets that were checked, with the index that they had open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport(HasFacts):
    """What a complete check found.

    Attributes:
        num_tokens: tokens read.
        smallest_token, largest_token: extremes of all tokens; None for an empty dataset, floats for a float dtype.
        problems: a sentence per defect, with file, field, expected and found; empty if the pair is sound.
        has_manifest: whether there was a manifest to compare counts and checksums with.
        has_images: whether bytes of images are among the tokens, so that the extremes tell nothing of a vocabulary.
    """

    num_tokens: int
    smallest_token: int | float | None
    largest_token: int | float | None
    problems: tuple[str, ...]
    has_manifest: bool = False
    has_images: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problems

    def facts(self) -> dict[str, Any]:
        """Returns what was found; see `HasFacts`."""
        return {
            "problems": [*self.problems],
            "sound": self.ok,
            "tokens read": self.num_tokens,
            "smallest token": self.smallest_token,
            "largest token": self.largest_token,
            "compared with a manifest": self.has_manifest,
        }


def verify_dataset(prefix: str, *, multimodal: bool = False, vocab_size: int | None = None) -> VerifyReport:
    """Reads the whole pair, and what lies beside it, and reports the first defect of each array.

    Of a catalogue, all pairs that are missing or replaced are reported, and tokens are read only if there are none.
    One sequential pass over both files in bounded memory; what lies beside them is looked at as a whole. Counts and
    checksums are compared with those of a manifest. Opening errors are raised, not reported.

    Args:
        prefix: prefix of the pair.
        multimodal: whether it holds modes.
        vocab_size: tokens must be in [0, vocab_size); None for what a manifest says.

    Raises:
        DatasetNotFoundError, DatasetFormatError: the pair cannot be opened at all.
        ChangedFileError: a file was truncated or overwritten while it was read.
    """
    dataset = IndexedDataset(prefix, multimodal=multimodal)
    problems = list(index_problems(dataset))
    lost = list(dataset.byte_source.problems()) if isinstance(dataset.byte_source, ExtentSource) else []
    problems += lost
    manifest = None
    try:
        manifest = read_manifest(dataset.path_prefix, settings=dataset.object_storage)
    except DatasetFormatError as error:
        problems.append(error.message)
    for section in () if lost else dataset.sections:
        if section.num_bytes % dataset.dtype.itemsize:
            found_bytes = f"found {section.num_bytes} bytes"
            problems.append(f"`{section.path}`: expected a whole number of {dataset.dtype} tokens, {found_bytes}")
    facts, has_images = None if manifest is None else manifest.pair, dataset.index.has_modes
    tally = PairTally(dataset.dtype)
    smallest: int | float | None = None
    largest: int | float | None = None
    for tokens in () if lost else _read_tokens(dataset, f"verify {prefix}"):
        if facts is not None:
            tally.add_tokens(tokens.data)
        low, high = tokens.min().item(), tokens.max().item()
        smallest = low if smallest is None else min(smallest, low)
        largest = high if largest is None else max(largest, high)
    if facts is not None and not lost:
        found = tally.facts(dataset.index_source())
        if has_images:
            found = dataclasses.replace(found, largest_token=facts.largest_token)  # of the texts alone
        problems += _differences(dataset.path_prefix, facts, found)
    problems += column_problems(dataset)
    if vocab_size is None and manifest is not None and not has_images:
        vocab_size = manifest.tokenizer.vocab_size
    if vocab_size is not None and smallest is not None and largest is not None:
        where = f"`{dataset.tokens_path}`: expected tokens"
        if largest >= vocab_size:
            problems.append(f"{where} below {vocab_size} (the vocabulary), found {largest}")
        if smallest < 0:
            problems.append(f"{where} from 0 on, found {smallest}")
    return VerifyReport(
        num_tokens=dataset.num_tokens,
        smallest_token=smallest,
        largest_token=largest,
        problems=tuple(problems),
        has_manifest=manifest is not None,
        has_images=has_images,
    )


def check_index(dataset: IndexedDataset, *, compares: bool = True) -> None:
    """Checks every row of an index, and its checksum where there is a manifest; remembered for this opened dataset.

    Args:
        dataset: whose index it is.
        compares: whether the checksum counts; to ask for it costs requests in object storage.
    """
    if _SOUND.get(dataset) is dataset.index:
        return
    problem = next(index_problems(dataset), None)
    if problem is None and compares and (manifest := manifest_of(dataset)) is not None:
        found = source_checksum(dataset.index_source())
        problem = _checksum_problem(idx_path(dataset.path_prefix), manifest.pair.index, found)
    _refuse(dataset, problem)
    _SOUND[dataset] = dataset.index


def check_sum(dataset: IndexedDataset, rows: range, num_tokens: int) -> None:
    """Checks what the lengths of consecutive rows add up to, which must be what lies between their ends; O(1)."""
    if (expected := dataset.count_tokens(rows)) != num_tokens:
        check_index(dataset)  # knows better what is wrong
        where = f"`{idx_path(dataset.path_prefix)}`: expected lengths of {expected} tokens"
        _refuse(dataset, f"{where} for sequences {rows.start} to {rows.stop}, found {num_tokens}")


def check_tokens(dataset: IndexedDataset, *, progress: Callable[[int], None] | None = None) -> None:
    """Reads all tokens and compares their checksum with that of the manifest; reads nothing without one."""
    if (manifest := manifest_of(dataset)) is not None:
        tally = FileTally()
        for tokens in _read_tokens(dataset, f"checking {dataset.path_prefix}", progress):
            tally.add(tokens.data)
        expected = manifest.pair.tokens
        _refuse(dataset, _checksum_problem(bin_path(dataset.path_prefix), expected, tally.checksum()))


def check_columns(pair: IndexedDataset, *, names: Collection[str] | None = None) -> None:
    """Reads columns beside a pair, all or some of them, and compares their checksums."""
    _refuse(pair, next(column_problems(pair, names=names, refuses_nan=False), None))


def column_problems(
    pair: IndexedDataset, *, names: Collection[str] | None = None, refuses_nan: bool = True
) -> Iterator[str]:
    """Yields one sentence for each way in which a column beside a pair is not sound; they are read as a whole."""
    try:
        chosen = [name for name in read_columns(pair) if names is None or name in names]
    except DatasetFormatError as error:
        yield error.message
        return
    for name in chosen:
        try:
            column = open_column(pair, name)
            assert column is not None
            column.verify()
            if column.facts.kind == "runs" and (origins := read_origins(pair)) is not None:
                for _ in origins.pieces():
                    pass  # each looks at its rows
        except (DatasetFormatError, DatasetNotFoundError) as error:
            yield error.message
            continue
        if refuses_nan and (place := _first_nan(pair, column)) is not None:
            yield f"`{column.path}`: expected numbers, found NaN {place}"


def _first_nan(pair: IndexedDataset, column: Column) -> str | None:
    """Returns where the first value is that is not a number, in words; None if all are numbers."""
    for begin in range(0, len(column.data) if column.data.dtype.kind == "f" else 0, _ROWS_AT_ONCE):
        wrong = np.isnan(column.data[begin : begin + _ROWS_AT_ONCE])
        column.check()
        if wrong.any():
            row = begin + int(np.argmax(wrong.reshape(len(wrong), -1).any(axis=1)))
            if column.facts.kind != "token":
                return f"for {column.facts.kind} {row}"
            return token_place(pair, row)
    return None


def _refuse(dataset: IndexedDataset, problem: str | None) -> None:
    if problem is not None:
        raise DatasetFormatError(problem, hint=f"run `tokenloom verify {dataset.path_prefix}`")


def _read_tokens(
    dataset: IndexedDataset, description: str, progress: Callable[[int], None] | None = None
) -> Iterator[NDArray[Any]]:
    """Yields all tokens in blocks, and tells how many bytes were read."""
    with task(description, unit="bytes", total=sum(each.num_bytes for each in dataset.sections)) as advance:
        for tokens in token_blocks(dataset):
            yield tokens
            advance(tokens.nbytes)
            if progress is not None:
                progress(tokens.nbytes)


def _checksum_problem(path: str, expected: FileChecksum, found: FileChecksum) -> str | None:
    """Returns how a file differs from what its manifest says, None if it does not."""
    if expected == found:
        return None
    return (
        f"`{path}`: expected {expected.num_bytes} bytes with CRC-32 {expected.crc32:08x}, as the manifest "
        f"says, found {found.num_bytes} with {found.crc32:08x}"
    )


def _differences(prefix: str, expected: PairFacts, found: PairFacts) -> Iterator[str]:
    """Yields one sentence for each way in which a pair is not what its manifest says."""
    for name in ("dtype", "num_documents", "num_sequences", "num_tokens", "largest_token"):
        if (recorded := getattr(expected, name)) != (value := getattr(found, name)):
            yield f"`{manifest_path(prefix)}`: expected {name} of {value!r}, as the pair has, found {recorded!r}"
    files = ((bin_path(prefix), expected.tokens, found.tokens), (idx_path(prefix), expected.index, found.index))
    yield from filter(None, (_checksum_problem(*file) for file in files))


def index_problems(dataset: IndexedDataset) -> Iterator[str]:
    """Yields one sentence for the first row that is damaged, and one for the first boundary; one pass over each."""
    found = [problem for problem in (_row_problem(dataset), _boundary_problem(dataset)) if problem is not None]
    dataset.check_index()
    yield from (f"`{dataset.idx_path}`: expected {problem}" for problem in found)


def _row_problem(dataset: IndexedDataset) -> str | None:
    index, itemsize = dataset.index, dataset.dtype.itemsize
    for section in dataset.sections:
        rows, stop = slice(section.rows.start, section.rows.stop), section.start + section.num_bytes
        number, expected = check_rows(
            index.sequence_lengths[rows], index.sequence_pointers[rows], start=section.start, itemsize=itemsize
        )
        row = section.rows.start + number
        if number == len(section.rows):
            if expected != stop:
                return f"the sequences of `{section.path}` to end at byte {stop}, found {expected}"
        elif index.sequence_pointers[row] == expected:
            return f"a length from 0 on, found {index.sequence_lengths[row]} for sequence {row}"
        else:
            before = "the start of its pair" if number == 0 and section.start else "the end of the sequence before"
            return f"pointer {expected} ({before}), found {index.sequence_pointers[row]} for sequence {row}"
    return None


def _boundary_problem(dataset: IndexedDataset) -> str | None:
    boundaries = dataset.index.document_indices
    for section in dataset.sections:
        if (first := int(boundaries[section.documents.start])) != section.rows.start:
            document = f"document {section.documents.start}, the first of `{section.path}`,"
            return f"{document} to begin with sequence {section.rows.start}, found {first}"
    if (fall := first_fall(boundaries)) < len(boundaries):
        found = f"{boundaries[fall]} for boundary {fall} after {boundaries[fall - 1]}"
        return f"document boundaries that do not fall, found {found}"
    return None
