"""FlatBuffers as far as the metadata of Arrow needs them: https://flatbuffers.dev/internals.

What points outside its bytes raises `struct.error`, `IndexError` or `ValueError`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FlatTable:
    """A table in some bytes.

    Attributes:
        data: the bytes.
        start: offset of the table.
    """

    data: bytes
    start: int

    @staticmethod
    def root(data: bytes) -> FlatTable:
        """Returns the table that some bytes are."""
        return FlatTable(data, _unpack("I", data, 0))

    def number(self, field: int, kind: str) -> int:
        """Returns a number; 0 where there is none.

        Args:
            field: its number in the schema.
            kind: its format, as of `struct`.
        """
        at = self._place(field)
        return 0 if at is None else _unpack(kind, self.data, at)

    def table(self, field: int) -> FlatTable | None:
        """Returns a table inside; None where there is none."""
        at = self._place(field)
        return None if at is None else FlatTable(self.data, at + _unpack("I", self.data, at))

    def pairs(self, field: int) -> NDArray[np.int64]:
        """Returns a vector of pairs of numbers: int64[length, 2]."""
        return self._structs(field, 2)

    def blocks(self, field: int) -> NDArray[np.int64]:
        """Returns a vector of `Block`s of Arrow: int64[length, 3], offset, bytes of metadata and of the body."""
        found = self._structs(field, 3).copy()
        found[:, 1] = found[:, 1].astype(np.int32)  # 4 bytes, and 4 that fill up
        return found

    def _structs(self, field: int, num_words: int) -> NDArray[np.int64]:
        at = self._place(field)
        if at is None:
            return np.zeros((0, num_words), dtype=np.int64)
        at += _unpack("I", self.data, at)
        length = _unpack("I", self.data, at)
        if length * num_words * 8 > len(self.data) - at:
            message = f"a vector of {length} structs in {len(self.data)} bytes"
            raise ValueError(message)
        return np.frombuffer(self.data, dtype="<i8", count=length * num_words, offset=at + 4).reshape(-1, num_words)

    def _place(self, field: int) -> int | None:
        """Returns the offset of a field; None where the table lacks it."""
        fields = self.start - _unpack("i", self.data, self.start)
        at = 4 + 2 * field
        if at + 2 > _unpack("H", self.data, fields):
            return None
        offset = _unpack("H", self.data, fields + at)
        return self.start + offset if offset else None


def _unpack(kind: str, data: bytes, at: int) -> int:
    """Returns a number; offsets from the end, as Python has them, are none."""
    if at < 0:
        message = f"an offset of {at}"
        raise ValueError(message)
    number: int = struct.unpack_from(f"<{kind}", data, at)[0]
    return number
