"""Columns of text in record batches into texts, without looking at any row; for batches with nothing unusual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.inputs.utf8_texts import Utf8Texts, joined_texts
from tokenloom.optional import require

Column = tuple[Sequence[str], NDArray[np.int64] | None]
"""Texts, and the number of texts before each document's end where a document may have several."""


def texts_of_columns(batches: Sequence[Any], keys: Sequence[str], *, max_record_bytes: int) -> list[Column] | None:
    """Returns the texts under each key; None if any row may hold none, or may be too long."""
    if any(batch.nbytes > max_record_bytes for batch in batches):
        return None
    columns: list[Column] = []
    for key in keys:
        parts = [_texts(batch, key) for batch in batches]
        if not all(parts):
            return None
        columns.append(_joined([part for part in parts if part is not None]))
    return columns


def _texts(batch: Any, key: str) -> Column | None:
    arrow = require("pyarrow", extra="parquet")
    column = _column(batch, key, arrow.types)
    if column is None or column.null_count:
        return None
    if _is_text(column.type, arrow.types):
        texts = _strings(column, arrow)
        return None if texts is None else (texts, None)
    if arrow.types.is_list(column.type) or arrow.types.is_large_list(column.type):
        values = column.flatten()
        if values.null_count or not _is_text(values.type, arrow.types):
            return None
        texts = _strings(values, arrow)
        offsets = column.offsets.to_numpy().astype(np.int64)
        return None if texts is None else (texts, offsets[1:] - offsets[0])
    return None


def _column(batch: Any, key: str, types: Any) -> Any | None:
    """Returns the array under a key, by the rule of `value_at`; None if there is none, or some objects are null."""
    names = batch.schema.names
    if names.count(key) == 1:
        return batch.column(key)
    head, dot, rest = key.partition(".")
    if key in names or not dot or names.count(head) != 1:
        return None
    column = batch.column(head)
    while types.is_struct(column.type) and not column.null_count:
        fields = [column.type.field(number).name for number in range(column.type.num_fields)]
        if rest in fields:
            return column.field(rest)
        head, dot, rest = rest.partition(".")
        if not dot or head not in fields:
            return None
        column = column.field(head)
    return None


def _is_text(kind: Any, types: Any) -> bool:
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _strings(array: Any, arrow: Any) -> Sequence[str] | None:
    """Returns the values of an array of text without nulls; None if one is not UTF-8."""
    try:
        if arrow.types.is_string(array.type) or arrow.types.is_large_string(array.type):
            array.validate(full=True)
            return _in_place(array, np.dtype(np.int32 if arrow.types.is_string(array.type) else np.int64))
        texts: list[str] = array.to_numpy(zero_copy_only=False).tolist()
    except arrow.ArrowException:
        return None
    return texts


def _in_place(array: Any, offset_dtype: np.dtype[Any]) -> Utf8Texts:
    """Returns the values of a valid array of strings as views of its bytes; the offsets may be copied."""
    _, offset_bytes, content_bytes = array.buffers()
    if not len(array):  # which need not have offsets
        return Utf8Texts(content=np.empty(0, dtype=np.uint8), offsets=np.zeros(1, dtype=np.int64))
    offsets = np.frombuffer(offset_bytes, dtype=offset_dtype)[array.offset : array.offset + len(array) + 1]
    content = np.frombuffer(content_bytes or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    return Utf8Texts(content=content, offsets=offsets.astype(np.int64) - offsets[0])


def _joined(parts: list[Column]) -> Column:
    if len(parts) == 1:
        return parts[0]
    texts = joined_texts([part for part, _ in parts])
    if all(ends is None for _, ends in parts):
        return texts, None
    assert all(ends is not None for _, ends in parts)  # the batches of a file have one schema
    starts = np.cumsum([0, *(len(part) for part, _ in parts[:-1])])
    return texts, np.concatenate([ends + start for (_, ends), start in zip(parts, starts, strict=True)])
