"""A file of JSON lines that grows while a training loop writes it: what was added since somebody looked last."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import StorageError

MOST_LINES = 2000
"""Lines that are kept: more than a screen has points."""

_MOST_BYTES = 1 << 24
"""How much of the end of a file is read at once, or kept of a line that has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What a file held when it was looked at.

    Attributes:
        lines: its last lines that are objects of JSON, oldest first.
        num_skipped: lines that are none, since it was looked at first.
        is_whole: whether no line before these was left out.
        changed: when it was written last; seconds since 1970. None if it is not there yet.
    """

    lines: tuple[dict[str, Any], ...]
    num_skipped: int
    is_whole: bool
    changed: float | None


class FollowedFile:
    """A file that is read as it grows. A file of the same name that takes its place is read anew. Safe from threads.

    Args:
        path: path of the file; it need not be there yet.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._reading = threading.Lock()
        self._begin(None)

    def _begin(self, identity: tuple[int, int] | None) -> None:
        self._identity = identity
        self._offset = 0
        self._rest = b""
        self._lines: deque[dict[str, Any]] = deque(maxlen=MOST_LINES)
        self._num_lines = 0
        self._num_skipped = 0
        self._is_whole = True

    def look(self) -> Followed:
        """Returns what it holds now; reads what was added alone.

        Raises:
            StorageError: it cannot be read.
        """
        with self._reading:
            try:
                with open(self.path, "rb") as stream:
                    status = os.fstat(stream.fileno())
                    identity = status.st_dev, status.st_ino
                    if identity != self._identity or status.st_size < self._offset:
                        self._begin(identity)
                    self._read(stream, status.st_size)
                    changed: float | None = status.st_mtime
            except FileNotFoundError:
                self._begin(None)
                changed = None
            except OSError as error:
                message = f"cannot read `{self.path}`: {error.strerror or error}"
                raise StorageError(message) from error
            is_whole = self._is_whole and self._num_lines <= MOST_LINES
            return Followed(lines=tuple(self._lines), num_skipped=self._num_skipped, is_whole=is_whole, changed=changed)

    def _read(self, stream: Any, size: int) -> None:
        if size - self._offset > _MOST_BYTES:
            self._offset, self._rest, self._is_whole = size - _MOST_BYTES, b"", False
            stream.seek(self._offset)
            self._offset += len(stream.readline())  # which begins before what is read
        stream.seek(self._offset)
        data = self._rest + stream.read(_MOST_BYTES)
        self._offset = stream.tell()
        *lines, self._rest = data.split(b"\n")
        if len(self._rest) > _MOST_BYTES:
            self._rest, self._num_skipped = b"", self._num_skipped + 1
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            self._lines.append(found)
            self._num_lines += 1
        else:
            self._num_skipped += 1
