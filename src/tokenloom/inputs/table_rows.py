"""The rows of record batches one by one, as objects that Python's own values make up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tokenloom.inputs.blocks import HEAD_BYTES
from tokenloom.inputs.decoding import not_utf8
from tokenloom.inputs.records import NumberedRecord, UnusableLineError

_SHOWN_ELEMENTS = 8  # of a list that is too long


def rows_of(batches: Sequence[Any], *, first_record: int) -> Iterator[NumberedRecord]:
    """Yields the rows of record batches, numbered from the first record on."""
    number = first_record
    for batch in batches:
        try:
            rows: list[Any] = batch.to_pylist()
        except (ValueError, OverflowError):  # a value that Python cannot hold; most often text that is not UTF-8
            rows = [_row(batch, at) for at in range(len(batch))]
        for row in rows:
            yield NumberedRecord(number, row)
            number += 1


def beginning_of(row: Any) -> bytes:
    """Returns the first bytes of a record batch of one row as JSON; no more of its texts is looked at."""
    values = {name: _head(column[0]) for name, column in zip(row.schema.names, row.columns, strict=True)}
    return json.dumps(values, ensure_ascii=False, default=repr).encode("utf-8", "replace")[:HEAD_BYTES]


def _head(scalar: Any) -> Any:
    if not scalar.is_valid:
        return None
    if hasattr(scalar, "as_buffer"):
        return bytes(memoryview(scalar.as_buffer())[:HEAD_BYTES]).decode("utf-8", "replace")
    if hasattr(scalar, "values") and hasattr(scalar.values, "slice"):  # of a list
        return [_head(value) for value in scalar.values.slice(0, _SHOWN_ELEMENTS)]
    if hasattr(scalar, "items"):  # a struct
        return {name: _head(value) for name, value in scalar.items()}
    value = getattr(scalar, "value", None)  # of a dictionary or an extension
    return _head(value) if hasattr(value, "is_valid") else scalar.as_py()


def _row(batch: Any, at: int) -> Any:
    try:
        return batch.slice(at, 1).to_pylist()[0]
    except UnicodeDecodeError as error:
        return UnusableLineError(not_utf8(error))
    except (ValueError, OverflowError) as error:
        return UnusableLineError(f"a value that cannot be read: {error}")
