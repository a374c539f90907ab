"""The bytes of an input file, decompressed: from its beginning, or from the first line of a slice on."""

from __future__ import annotations

import io
import os

from tokenloom.errors import InputError, MissingObjectError
from tokenloom.inputs import STDIN, InputFile, InputSlice
from tokenloom.inputs.codecs import Read, compression_of, decompressed, magic_bytes
from tokenloom.storage.addresses import ObjectVersion, is_remote
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import open_stream

_BUFFER_BYTES = 256 << 10
_SKIP_BYTES = 64 << 10
"""Read at once where only the end of a line is looked for."""


def version_of(version: ObjectVersion) -> tuple[int, str]:
    """Returns what an `InputFile` keeps of the version of an object: size and etag."""
    return version.num_bytes, version.etag or ""


def object_version(file: InputFile) -> ObjectVersion:
    """Returns the version of the object that was there when the job was planned."""
    return ObjectVersion(num_bytes=file.num_bytes, etag=file.version or None)


class SliceStream:
    """The text of a slice, decompressed: of lines, those that begin in it, whole; of anything else, all of it.

    Args:
        slice_: slice of a file of lines or text.
        max_window_bytes: see `decompressed`.

    Raises:
        StorageError: it cannot be opened.
        InputError: its compressed data is damaged at the very beginning.
    """

    def __init__(self, slice_: InputSlice, *, max_window_bytes: int) -> None:
        file = slice_.file
        by_bytes = file.is_cut_by_bytes
        self._start = max(0, slice_.start - 1) if by_bytes else 0  # from the newline before it, if there is one
        self._file = _opened(file, start=self._start, stop=slice_.stop if by_bytes else None)
        self._end: int | None = None
        try:
            compression = file.compression
            if file.is_stream:
                with storage_errors("read", file.path):
                    compression = compression_of(self._file.peek(magic_bytes()))
            self.read: Read = decompressed(self._file, file.path, compression, max_window_bytes=max_window_bytes)
            self._lines: _LinesWithin | None = None
            if by_bytes and (slice_.start > 0 or slice_.stop < file.num_bytes):
                self._lines = _LinesWithin(self.read, slice_.start, slice_.stop)
                self.read = self._lines.read
        except BaseException:
            self._file.close()
            raise

    @property
    def position(self) -> int:
        """Bytes of the file, compressed as it may be, read so far; 0 where the system does not tell (a pipe)."""
        if self._end is not None:
            return self._end
        return self._file.tell() - self._start if self._file.seekable() else 0

    @property
    def is_in_last_line(self) -> bool:
        """Whether nothing but the rest of a line that began before will be read."""
        return self._lines is not None and self._lines.is_behind_slice

    def close(self) -> None:
        """Closes the file; the position stays."""
        if not self._file.closed:
            self._end = self.position
            self._file.close()


def _opened(file: InputFile, *, start: int, stop: int | None) -> io.BufferedReader:
    if file.path == STDIN:
        return io.BufferedReader(io.FileIO(0, closefd=False), _BUFFER_BYTES)
    version = object_version(file) if is_remote(file.path) else None
    return open_stream(file.path, buffer_bytes=_BUFFER_BYTES, start=start, stop=stop, version=version)[0]


class _LinesWithin:
    """Reads the lines that begin in [start, stop), from a file that is positioned a byte before `start`."""

    def __init__(self, read: Read, start: int, stop: int) -> None:
        self._read_file = read
        self._stop = stop
        self._position = max(0, start - 1)  # of the next byte to come from the file
        self._has_begun = start == 0
        self._rest = b""  # read behind the end of the line before
        self._is_within_line = False
        self._has_ended = start >= stop

    def read(self, count: int) -> bytes:
        """Returns up to `count` bytes; b"" behind the last line."""
        if not self._has_begun:
            self._has_begun = True
            self._rest = self._first_line()
        if self._rest:
            chunk, self._rest = self._rest[:count], self._rest[count:]
            return self._noted(chunk)
        if self._has_ended:
            return b""
        if self._position < self._stop:
            return self._noted(self._chunk(min(count, self._stop - self._position)))
        return self._rest_of_line(count) if self._is_within_line else b""

    @property
    def is_behind_slice(self) -> bool:
        """Whether no line begins from here on."""
        return not self._rest and (self._has_ended or self._position >= self._stop)

    def _first_line(self) -> bytes:
        """Skips to where a line begins; returns what was read of the slice with it."""
        while (
            left := self._stop - 1 - self._position
        ) > 0:  # a newline behind that ends no line before the slice's stop
            chunk = self._chunk(min(_SKIP_BYTES, left))
            if not chunk:
                break
            _, newline, rest = chunk.partition(b"\n")
            if newline:
                return rest
        self._has_ended = True
        return b""

    def _rest_of_line(self, count: int) -> bytes:
        line, newline, _ = self._chunk(min(count, _SKIP_BYTES)).partition(b"\n")
        self._has_ended = bool(newline)
        return line + newline

    def _chunk(self, count: int) -> bytes:
        chunk = self._read_file(count)
        self._position += len(chunk)
        return chunk

    def _noted(self, chunk: bytes) -> bytes:
        self._is_within_line = bool(chunk) and not chunk.endswith(b"\n")
        return chunk


def check_unchanged(file: InputFile) -> None:
    """Refuses a file that is not the one that was planned with, as far as its size and version tell.

    Raises:
        InputError: it grew, shrank, was replaced or removed.
        StorageError: it cannot be asked for.
    """
    if file.is_stream:
        return
    try:
        num_bytes, version = size_and_version(file.path)
    except (FileNotFoundError, MissingObjectError) as error:
        raise changed_file(file, "it is gone") from error
    if num_bytes > file.num_bytes:
        raise changed_file(file, f"it grew from {file.num_bytes} to {num_bytes} bytes")
    if num_bytes < file.num_bytes:
        raise changed_file(file, f"it shrank from {file.num_bytes} to {num_bytes} bytes")
    if version != file.version:
        raise changed_file(file, "it was replaced or written to")


def size_and_version(path: str) -> tuple[int, str]:
    """Returns the size of a file, and what changes when it does, as an `InputFile` keeps them.

    Raises:
        FileNotFoundError, MissingObjectError: it is gone.
        StorageError: it cannot be asked for.
    """
    if is_remote(path):
        return version_of(RemoteFile(path).version)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise
    except OSError:
        with storage_errors("open", path):
            raise
    return status.st_size, str(status.st_mtime_ns)


def changed_file(file: InputFile, what: str) -> InputError:
    """Returns the error for a file that is not the one that was planned with."""
    message = f"`{file.path}` changed after the job was planned: {what}"
    return InputError(message, hint="let nothing write to the input while it is read, and plan the job anew")
