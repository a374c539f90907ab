"""The bytes of an input file, decompressed; and its version, to compare with that of the plan."""

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
    """Returns size and etag of an object, as in an `InputFile`."""
    return version.num_bytes, version.etag or ""


def object_version(file: InputFile) -> ObjectVersion:
    """Returns the version of an object when the job was planned."""
    return ObjectVersion(num_bytes=file.num_bytes, etag=file.version or None)


class SliceStream:
    """The text of a file, decompressed; of a slice of lines, from the byte before it on.

    Args:
        slice_: slice of a file of lines or text.
        max_window_bytes: see `decompressed`.

    Attributes:
        read: returns at most so many bytes, b"" at the end of the file.
    """

    def __init__(self, slice_: InputSlice, *, max_window_bytes: int) -> None:
        file = slice_.file
        by_bytes = file.is_cut_by_bytes
        self._start = max(0, slice_.start - 1) if by_bytes else 0  # from the newline before it, if there is one
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
        """Bytes of the file read so far, before decompression; 0 if unknown (a pipe)."""
        if self._end is not None:
            return self._end
        return self._file.tell() - self._start if self._file.seekable() else 0

    def close(self) -> None:
        """Closes the file; the position stays."""
        if not self._file.closed:
            self._end = self.position
            self._file.close()


def open_bytes(file: InputFile, *, start: int = 0, stop: int | None = None) -> io.BufferedReader:
    """Returns the bytes of a file as they are, some of them or all, to be read from beginning to end."""
    if file.path == STDIN:
        return io.BufferedReader(io.FileIO(0, closefd=False), _BUFFER_BYTES)
    version = object_version(file) if is_remote(file.path) else None
    return open_stream(file.path, buffer_bytes=_BUFFER_BYTES, start=start, stop=stop, version=version)


def check_unchanged(file: InputFile) -> None:
    """Raises if size or version of a file changed after the job was planned."""
    if file.is_stream:
        return
    try:
        num_bytes, version = size_and_version(file.path)
    except (FileNotFoundError, MissingObjectError) as error:
        raise changed_file(file, "it is gone") from error
    if num_bytes != file.num_bytes:
        what = "grew" if num_bytes > file.num_bytes else "shrank"
        raise changed_file(file, f"it {what} from {file.num_bytes} to {num_bytes} bytes")
    if version != file.version:
        raise changed_file(file, "it was replaced or written to")


def size_and_version(path: str) -> tuple[int, str]:
    """Returns size and version of a file, as in an `InputFile`; `FileNotFoundError` or `MissingObjectError` if gone."""
    if is_remote(path):
        return version_of(RemoteFile(path).version)
    status = os.stat(path)
    return status.st_size, str(status.st_mtime_ns)


def changed_file(file: InputFile, what: str) -> InputError:
    """Returns the error for a file that changed after the job was planned."""
    message = f"`{file.path}` changed after the job was planned: {what}"
    return InputError(message, hint="let nothing write to the input while it is read, and plan the job anew")
