"""The pages of a column of Parquet, from their headers: what reading them will take, before anything is decoded.

The footer says how large a column is, the headers how large each page is, and only these are believed by whoever
decodes: 300 bytes can stand for 20 GB, a text that a dictionary holds once and 20,000 rows refer to. So the headers are
walked along, which costs some 20 microseconds per page, and of dictionaries the longest value is looked up.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import InputError
from tokenloom.optional import require

ReadAt = Callable[[int, int], bytes]
"""Returns up to so many bytes of the file from an offset on: (length, offset)."""

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_PLAIN_DICTIONARY, _DELTA_BYTE_ARRAY, _RLE_DICTIONARY = 2, 7, 8
_HEADER_BYTES, _MOST_HEADER_BYTES = 1 << 10, 16 << 20  # read at once; believed by the library at most
_MOST_DEPTH = 8
_CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd", "LZ4": "lz4_raw"}
_MOST_RATIO = 100
_VALUE_BYTES = 8
"""Bytes that a value takes beside its text, offsets and levels included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of values.

    Attributes:
        num_values: number of values in it; rows, where columns hold no lists.
        num_bytes: decoded, of all values.
        value_bytes: decoded, of each, where a value may be stored once for many; 0 where each stands for itself.
    """

    num_values: int
    num_bytes: int
    value_bytes: int = 0

    def most_bytes(self, num_rows: int) -> int:
        """Returns what so many rows of it take at most."""
        return self.num_bytes + min(num_rows, self.num_values) * (self.value_bytes + _VALUE_BYTES)


def pages_of(read: ReadAt, column: Any, *, max_bytes: int) -> list[Page]:
    """Returns the pages of a column of a row group.

    Args:
        read: the file.
        column: `pyarrow.parquet.ColumnChunkMetaData`.
        max_bytes: most bytes of a page; larger ones are an `InputError`.

    Raises:
        InputError: a header is damaged, or a page too large.
    """
    offsets = [column.data_page_offset]
    if column.has_dictionary_page and column.dictionary_page_offset is not None:
        offsets.append(column.dictionary_page_offset)
    at = min(offset for offset in offsets if offset > 0)
    stop = at + column.total_compressed_size
    pages: list[Page] = []
    longest = num_values = 0
    while at < stop and num_values < column.num_values:
        header, length = _header(read, at)
        size, stored = _number(header, 2), _number(header, 3)
        if size > max_bytes:
            message = f"a page of the column {column.path_in_schema!r} takes {size} bytes, more than {max_bytes}"
            raise InputError(message, hint="write smaller pages, or allow more with `memory_bytes`")
        kind = _number(header, 1)
        if kind == _DICTIONARY:
            longest = _longest(read(stored, at + length), size, column)
        elif kind in (_DATA, _DATA_V2):
            pages.append(_page(header, kind, size, longest))
            num_values += pages[-1].num_values
        at += length + stored
    return pages


def rows_within(columns: Sequence[Sequence[Page]], *, most_rows: int, num_bytes: int) -> int:
    """Returns how many rows, wherever they begin, take no more than some bytes beside the largest single row.

    Few rows at a time do not make a long row shorter, and cost a millisecond each.

    Args:
        columns: the pages of each column, which holds no lists.
        most_rows: returned at most; 1 or more.
        num_bytes: bytes for each column.
    """
    num_rows = most_rows
    for pages in columns:
        most = num_bytes + _most_bytes(pages, 1)
        while num_rows > 1 and _most_bytes(pages, num_rows) > most:
            num_rows //= 2
    return num_rows


def check_lists(column: Any, pages: Sequence[Page], *, max_bytes: int) -> None:
    """Refuses a column of lists of which a single row may take too much: it is not known how many rows there are.

    Only where it takes far more than is stored: nobody's texts compress so well.

    Raises:
        InputError: it may.
    """
    num_bytes = sum(page.most_bytes(page.num_values) for page in pages)
    if num_bytes > max(max_bytes, _MOST_RATIO * column.total_compressed_size):
        message = f"lists of the column {column.path_in_schema!r} take up to {num_bytes} bytes, more than {max_bytes}"
        raise InputError(message, hint="write smaller row groups, or allow more with `memory_bytes`")


def _most_bytes(pages: Sequence[Page], num_rows: int) -> int:
    """Returns what so many consecutive rows take at most, with all of each page that they touch."""
    most = total = first = 0
    end = start = 0  # row numbers: of the end of the last page looked at, and of the end of the first one counted
    for page in pages:
        total += page.most_bytes(num_rows)
        while start + pages[first].num_values < end - num_rows + 2:
            start += pages[first].num_values
            total -= pages[first].most_bytes(num_rows)
            first += 1
        end += page.num_values
        most = max(most, total)
    return most


def _page(header: dict[int, Any], kind: int, size: int, longest: int) -> Page:
    details = header.get(5 if kind == _DATA else 8)
    if not isinstance(details, dict):
        message = "a page without its header"
        raise InputError(message)
    encoding = _number(details, 2 if kind == _DATA else 4)
    value_bytes = 0
    if encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
        value_bytes = longest
    elif encoding == _DELTA_BYTE_ARRAY:  # a value may repeat all of the one before
        value_bytes = size
    return Page(num_values=_number(details, 1), num_bytes=size, value_bytes=value_bytes)


def _longest(data: bytes, size: int, column: Any) -> int:
    """Returns the length of the longest value of a dictionary; where it cannot be told, that of all of them."""
    if column.physical_type != "BYTE_ARRAY":
        return _VALUE_BYTES if column.physical_type != "FIXED_LEN_BYTE_ARRAY" else size
    arrow = require("pyarrow", extra="parquet")
    if column.compression in _CODECS:
        try:
            data = arrow.decompress(data, decompressed_size=size, codec=_CODECS[column.compression], asbytes=True)
        except (arrow.ArrowException, OSError):  # the library will say what is wrong with it
            return size
    elif column.compression != "UNCOMPRESSED":
        return size
    longest = at = 0
    while at + 4 <= len(data):
        (length,) = struct.unpack_from("<I", data, at)
        longest = max(longest, length)
        at += 4 + length
    return min(longest, size)


def _header(read: ReadAt, at: int) -> tuple[dict[int, Any], int]:
    """Returns the fields of the header at an offset, by their numbers, and its length."""
    num_bytes = _HEADER_BYTES
    while True:
        data = read(num_bytes, at)
        try:
            return _struct(data, 0, 0)
        except IndexError as error:
            if len(data) < num_bytes or num_bytes >= _MOST_HEADER_BYTES:
                message = f"no page begins at byte {at}"
                raise InputError(message) from error
        num_bytes *= 16


def _number(fields: dict[int, Any], number: int) -> int:
    value = fields.get(number)
    if type(value) is not int or value < 0:
        message = f"a page whose header has {value!r} in field {number}"
        raise InputError(message)
    return value


# Thrift's compact protocol: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
# What ends too early raises IndexError.


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    fields: dict[int, Any] = {}
    number = 0
    while (first := data[at]) != 0:
        at += 1
        if first >> 4:
            number += first >> 4
        else:
            number, at = _zigzag(data, at)
        fields[number], at = _value(data, at, first & 15, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind == 3:
        return data[at], at + 1
    if kind in (4, 5, 6):
        return _zigzag(data, at)
    if kind == 7:
        return None, at + 8
    if kind == 8:
        length, at = _varint(data, at)
        return None, at + length
    if kind == 12 and depth < _MOST_DEPTH:
        return _struct(data, at, depth + 1)
    if kind in (9, 10) and depth < _MOST_DEPTH:
        return None, _after_list(data, at, depth + 1)
    message = f"a page whose header has a field of type {kind}"
    raise InputError(message)


def _after_list(data: bytes, at: int, depth: int) -> int:
    first = data[at]
    count, at = (first >> 4, at + 1) if first >> 4 < 15 else _varint(data, at + 1)
    for _ in range(count):
        if first & 15 in (1, 2):
            at += 1
        else:
            _, at = _value(data, at, first & 15, depth)
        data[at - 1]  # raises where the list ends too early
    return at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    message = "a page whose header has a number without end"
    raise InputError(message)


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at
