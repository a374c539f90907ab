"""What a target makes of the bytes that it is given: numbers, arrays and files, whatever the bytes."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Bytes:
    """Bytes that are taken from the front; behind the end there are zeros, so that every input means something."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """Returns the next bytes, as many as there are."""
        found = self._data[self._at : self._at + count]
        self._at += count
        return found

    def rest(self) -> bytes:
        """Returns all that is left."""
        return self.take(len(self._data))

    def part(self) -> bytes:
        """Returns as many bytes as two of them say."""
        return self.take(int.from_bytes(self.take(2), "little"))

    def integer(self, low: int, high: int) -> int:
        """Returns a number in [low, high]."""
        width = ((high - low).bit_length() + 7) // 8
        return low + int.from_bytes(self.take(width), "little") % (high - low + 1)

    def flag(self) -> bool:
        """Returns whether the next byte is odd."""
        return bool(self.integer(0, 255) & 1)

    def integers(self, low: int, high: int, *, most: int) -> list[int]:
        """Returns at most so many numbers in [low, high]."""
        return [self.integer(low, high) for _ in range(self.integer(0, most))]

    def array(self, dtype: Any, *, most: int) -> NDArray[Any]:
        """Returns at most so many numbers of a dtype, with any bits."""
        count = self.integer(0, most)
        return np.frombuffer(
            self.take(count * np.dtype(dtype).itemsize).ljust(count * np.dtype(dtype).itemsize, b"\0"), dtype=dtype
        )


def join(*parts: bytes) -> bytes:
    """Returns bytes of which `Bytes.part` gives these, and `Bytes.rest` the last."""
    return b"".join(len(part).to_bytes(2, "little") + part for part in parts[:-1]) + parts[-1]


class Scratch:
    """A folder in memory for the files of one target; it goes when the process does."""

    def __init__(self) -> None:
        memory = "/dev/shm"
        self._owner = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix="tokenloom-fuzz-", dir=memory if os.path.isdir(memory) else None))

    def write(self, name: str, data: bytes) -> str:
        """Writes a new file of that name, which leaves mappings of the old one alone; returns its path."""
        path = self.path / name
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        return str(path)

    def remove(self, *names: str) -> None:
        """Removes files."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def __del__(self) -> None:
        if os.getpid() == self._owner:
            shutil.rmtree(self.path, ignore_errors=True)
