"""What spans were made of, read again: their tokens, and the records of input files, where these are still the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError, MissingObjectError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import OriginFile
from tokenloom.inputs import STDIN
from tokenloom.inputs.find import inspect_input, whole_file
from tokenloom.inputs.record_format import open_slice
from tokenloom.inputs.records import data_of, records_of
from tokenloom.inputs.streams import size_and_version
from tokenloom.run.audit.span_table import SpanTable
from tokenloom.storage.settings import ObjectStorageSettings

_BLOCK_BYTES = 4 << 20
_TEXT_FORMATS = {"line": "text-lines", "file": "text-files"}
"""How to read text that neither its name nor its first bytes tell: lines of JSON are lines, too."""


def input_problem(file: OriginFile) -> str | None:
    """Returns how an input file differs from what was tokenized, as a sentence; None if nothing is known to differ.

    Sizes are compared, and where they were recorded times of change, or etags of objects.

    Raises:
        StorageError: it cannot be asked for.
    """
    if file.path == STDIN:
        return "the input came from standard input, and cannot be read again"
    try:
        num_bytes, version = size_and_version(file.path)
    except (FileNotFoundError, MissingObjectError):
        return f"`{file.path}` is not there any more"
    if num_bytes != file.num_bytes:
        return f"`{file.path}` has {num_bytes:,} bytes, and had {file.num_bytes:,} when it was tokenized"
    if file.version and version and version != file.version:
        return f"`{file.path}` was replaced or written to since it was tokenized"
    return None


def read_records(file: OriginFile, numbers: Iterable[int]) -> dict[int, str]:
    """Returns records of an input file by number: lines as they are, rows as JSON. One pass up to the last of them.

    Args:
        file: the file.
        numbers: lines or rows, from 1; those that are not there are left out.

    Raises:
        InputError, StorageError: the file cannot be read.
        ConfigError: nothing tells its format.
    """
    wanted = set(numbers)
    if file.path == STDIN:
        message = "expected an input file, found standard input, which cannot be read again"
        raise InputError(message)
    inspected = inspect_input(file.path, default_format=_TEXT_FORMATS.get(file.unit))
    reader = open_slice(whole_file(inspected), block_bytes=_BLOCK_BYTES)
    found: dict[int, str] = {}
    try:
        last, done = max(wanted, default=0), 0
        for block in reader.blocks():
            first, done = done + 1, reader.num_rows
            if not wanted.isdisjoint(range(first, done + 1)):
                records = (record for record in records_of(block) if record.number in wanted)
                found |= {record.number: data_of(record).decode("utf-8", "replace") for record in records}
            if done >= last:
                break
    finally:
        reader.close()
    return found


_TOKENS_AT_ONCE = 1 << 22


def span_tokens(table: SpanTable, *, object_storage: ObjectStorageSettings | None = None) -> list[NDArray[Any]]:
    """Returns the tokens of each span, in the dtype of its pair; none of documents that are denied.

    Args:
        table: the spans.
        object_storage: how to read what lies in object storage.

    Raises:
        DatasetNotFoundError, DatasetFormatError, StorageError: a pair cannot be read.
    """
    found: list[NDArray[Any]] = [np.empty(0, dtype=np.int64)] * len(table)
    pairs, rows = table.pairs()
    wanted = ~table.denied
    for pair in np.unique(pairs[wanted]).tolist():
        opened = IndexedDataset(table.pair_rows.prefixes[pair], object_storage=object_storage)
        chosen = np.flatnonzero(wanted & (pairs == pair))
        pieces = np.cumsum(table.lengths[chosen]) // _TOKENS_AT_ONCE
        for piece in np.unique(pieces).tolist():
            some = chosen[pieces == piece]
            tokens = opened.gather(rows[some], table.starts[some], table.lengths[some])
            for number, part in zip(some.tolist(), np.split(tokens, np.cumsum(table.lengths[some])[:-1]), strict=True):
                found[number] = part
    return found
