"""A slice of an input file into blocks, whatever its format, as long as the file is the one that was planned with."""

from __future__ import annotations

from collections.abc import Sequence

from tokenloom.inputs import InputSlice
from tokenloom.inputs.blocks import MAX_RECORD_BYTES
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.limits import MEMORY_BYTES, WINDOW_BYTES, ReadLimits
from tokenloom.inputs.record_format import ReadOptions, SliceReader
from tokenloom.inputs.streams import check_unchanged


def open_slice(
    slice_: InputSlice,
    *,
    block_bytes: int,
    keys: Sequence[str] | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    max_window_bytes: int = WINDOW_BYTES,
    max_unit_bytes: int = MEMORY_BYTES,
) -> SliceReader:
    """Returns the reader of a slice.

    Args:
        slice_: slice to read.
        block_bytes, keys, max_record_bytes, max_window_bytes, max_unit_bytes: see `ReadOptions`.

    Raises:
        ConfigError: the format has no such keys.
        InputError: the file is not the one that was planned with, not of its format, or has no column for a key.
        StorageError: it cannot be opened.
        MissingExtraError: what reads it is not installed.
    """
    file = slice_.file
    found = FORMATS[file.format]
    if keys is not None:
        found.check_keys(file.path, keys)
    check_unchanged(file)
    options = ReadOptions(
        block_bytes=block_bytes,
        keys=keys,
        max_record_bytes=max_record_bytes,
        max_window_bytes=max_window_bytes,
        max_unit_bytes=max_unit_bytes,
    )
    return found.open(slice_, options)


def open_within(slice_: InputSlice, limits: ReadLimits, *, block_bytes: int) -> SliceReader:
    """Returns the reader of a slice, all columns of it, within some limits; see `open_slice`."""
    return open_slice(
        slice_,
        block_bytes=block_bytes,
        max_record_bytes=limits.max_record_bytes,
        max_window_bytes=limits.max_window_bytes,
        max_unit_bytes=limits.memory_bytes,
    )
