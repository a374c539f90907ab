"""Reads decompressed bytes of input files, and checks that files did not change after planning."""

from __future__ import annotations

import io
import os

from tokenloom.errors import InputError, MissingObjectError
from tokenloom.inputs import STDIN, InputFile, InputSlice
from tokenloom.inputs.codecs import MAGIC_BYTES, Read, compression_of, decompressed
from tokenloom.storage.addresses import ObjectVersion, is_remote
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import open_stream

_BUFFER_BYTES = 256 << 10


def version_of(version: ObjectVersion) -> tuple[int, str]:
    """Returns the size and etag of an object in object storage, in the form that `InputFile` contains."""
    return version.num_bytes, version.etag or ""


def object_version(file: InputFile) -> ObjectVersion:
    """Returns the version that an object in object storage had at planning time."""
    return ObjectVersion(num_bytes=file.num_bytes, etag=file.version or None)


class SliceStream:
    """A stream of the decompressed text of a slice; `read(size)` returns 1 to `size` bytes, or b"" at the end.

    Begins at byte 0 of the file or, if the slice is a byte range, one byte before the slice.
    """

    def __init__(self, slice_: InputSlice, *, max_window_bytes: int) -> None:
        file = slice_.file
        by_bytes = file.is_cut_by_bytes
        self._start = max(0, slice_.start - 1) if by_bytes else 0  # a newline there ends the previous line
        self._file = open_bytes(file, start=self._start, stop=slice_.stop if by_bytes else None)
        self._end: int | None = None
        try:
            compression = file.compression
            if file.is_stream:
                with storage_errors("read", file.path):
                    compression = compression_of(self._file.peek(MAGIC_BYTES))
            self.read: Read = decompressed(self._file, file.path, compression, max_window_bytes=max_window_bytes)
        except BaseException:
            self._file.close()
            raise

    @property
    def position(self) -> int:
        """Number of bytes that were read from the file so far, before decompression; 0 for a pipe."""
        if self._end is not None:
            return self._end
        return self._file.tell() - self._start if self._file.seekable() else 0

    def close(self) -> None:
        """Closes the file; `position` stays available."""
        if not self._file.closed:
            self._end = self.position
            self._file.close()


def open_bytes(file: InputFile, *, start: int = 0, stop: int | None = None) -> io.BufferedReader:
    """Opens the bytes [start, stop) of a file for sequential reading, without decompression."""
    if file.path == STDIN:
        return io.BufferedReader(io.FileIO(0, closefd=False), _BUFFER_BYTES)
    version = object_version(file) if is_remote(file.path) else None
    return open_stream(file.path, buffer_bytes=_BUFFER_BYTES, start=start, stop=stop, version=version)


def check_unchanged(file: InputFile) -> None:
    """Raises `InputError` if the size or version of a file changed after planning."""
    if file.is_stream:
        return
    try:
        num_bytes, version = size_and_version(file.path)
    except (FileNotFoundError, MissingObjectError) as error:
        raise changed_file(file, "it no longer exists") from error
    if num_bytes != file.num_bytes:
        what = "grew" if num_bytes > file.num_bytes else "shrank"
        raise changed_file(file, f"it {what} from {file.num_bytes} to {num_bytes} bytes")
    if version != file.version:
        raise changed_file(file, "it was replaced or modified")


def size_and_version(path: str) -> tuple[int, str]:
    """Returns the current size and version of a file; raises `FileNotFoundError` or `MissingObjectError` if missing."""
    if is_remote(path):
        return version_of(RemoteFile(path).version)
    status = os.stat(path)
    return status.st_size, str(status.st_mtime_ns)


def changed_file(file: InputFile, what: str) -> InputError:
    """Returns the error for a file that changed after planning."""
    message = f"`{file.path}` changed after the job was planned: {what}"
    return InputError(message, hint="run the job again, and do not modify the input during the job")
