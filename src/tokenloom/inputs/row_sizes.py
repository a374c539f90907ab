"""How much text each row of a record batch stands for: arrays that share values say little about it themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.optional import require

Sizes = NDArray[np.int64] | int
"""Bytes of each value; a number where all have as many."""

_VALUE_BYTES = 8
"""Size of a value that is no text, once somebody looks at it: a reference at least. Elements of lists take as much
beside their text."""


def row_bytes(batch: Any) -> NDArray[np.int64]:
    """Returns the bytes of text and other values of each row, decoded: int64[num_rows]; costs no more than to decode.

    Args:
        batch: `pyarrow.RecordBatch`, whose offsets and indices are valid.
    """
    total = np.zeros(len(batch), dtype=np.int64)
    for column in batch.columns:
        total += _sizes(column)
    return total


def _sizes(array: Any) -> Sizes:
    types = require("pyarrow", extra="parquet").types
    kind = array.type
    for is_kind, sizes in _MEASURES:
        if getattr(types, is_kind)(kind):
            return sizes(array)
    if hasattr(array, "storage"):  # an extension
        return _sizes(array.storage)
    try:
        return max(_VALUE_BYTES, int(kind.bit_width) // 8)
    except ValueError:  # unions, and nulls
        return _VALUE_BYTES


def _of_text(array: Any) -> Sizes:
    lengths = require("pyarrow.compute", extra="parquet").binary_length(array)
    return _numbers(lengths)


def _of_views(array: Any) -> Sizes:
    views = np.frombuffer(array.buffers()[1], dtype=np.int32)  # 4 for each, the first of them the length
    return views[4 * array.offset : 4 * (array.offset + len(array)) : 4].astype(np.int64)


def _of_dictionary(array: Any) -> Sizes:
    sizes = _sizes(array.dictionary)
    if isinstance(sizes, int) or not len(sizes):
        return sizes if isinstance(sizes, int) else 0
    return sizes[_numbers(array.indices)]


def _of_runs(array: Any) -> Sizes:
    sizes = _sizes(array.values)
    if isinstance(sizes, int):
        return sizes
    rows = np.arange(array.offset, array.offset + len(array))
    return sizes[np.searchsorted(_numbers(array.run_ends), rows, side="right")]


def _of_lists(array: Any) -> Sizes:
    offsets = _numbers(array.offsets)
    return _of_elements(array, offsets[:-1], offsets[1:])


def _of_list_views(array: Any) -> Sizes:
    starts = _numbers(array.offsets)
    return _of_elements(array, starts, starts + _numbers(array.sizes))


def _of_elements(array: Any, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Sizes:
    if not len(starts):
        return 0
    first = int(starts.min())
    sizes = _sizes(array.values.slice(first, int(stops.max()) - first))
    if isinstance(sizes, int):
        return (stops - starts) * (sizes + _VALUE_BYTES)
    ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes + _VALUE_BYTES)])
    totals: NDArray[np.int64] = ends[stops - first] - ends[starts - first]
    return totals


def _of_lists_of_one_length(array: Any) -> Sizes:
    length: int = array.type.list_size
    sizes = _sizes(array.values.slice(array.offset * length, len(array) * length))
    if isinstance(sizes, int):
        return length * (sizes + _VALUE_BYTES)
    totals: NDArray[np.int64] = sizes.reshape(-1, length).sum(axis=1) + length * _VALUE_BYTES
    return totals


def _of_structs(array: Any) -> Sizes:
    fields = range(array.type.num_fields)
    total: Sizes = _VALUE_BYTES * len(fields)
    for number in fields:
        total = total + _sizes(array.field(number))
    return total


def _numbers(array: Any) -> NDArray[np.int64]:
    """Returns the values of an array of integers, 0 for nulls."""
    found: NDArray[np.int64] = array.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


_MEASURES: tuple[tuple[str, Callable[[Any], Sizes]], ...] = (
    ("is_string", _of_text),
    ("is_large_string", _of_text),
    ("is_binary", _of_text),
    ("is_large_binary", _of_text),
    ("is_string_view", _of_views),
    ("is_binary_view", _of_views),
    ("is_dictionary", _of_dictionary),
    ("is_run_end_encoded", _of_runs),
    ("is_list", _of_lists),
    ("is_large_list", _of_lists),
    ("is_map", _of_lists),
    ("is_list_view", _of_list_views),
    ("is_large_list_view", _of_list_views),
    ("is_fixed_size_list", _of_lists_of_one_length),
    ("is_struct", _of_structs),
)
"""What sizes the rows of each type, by names of `pyarrow.types`."""
