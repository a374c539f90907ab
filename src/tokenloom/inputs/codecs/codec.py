"""What a compression is to those that read files, and how damage is worded."""

from __future__ import annotations

from collections.abc import Callable
from io import BufferedReader
from typing import Protocol

from tokenloom.errors import InputError
from tokenloom.storage.atomic import storage_errors

Read = Callable[[int], bytes]
"""Returns at most so many bytes of text, at least one, or b"" at the end."""


class Codec(Protocol):
    """A compression of whole files, of one or more members each.

    Attributes:
        suffixes: suffixes of its files, in lower case.
        magic: first bytes that tell it.
    """

    suffixes: tuple[str, ...]
    magic: bytes

    def open(self, file: BufferedReader, path: str, *, window_bytes: int) -> Read:
        """Returns what reads the text of a file; see `decompressed`.

        Args:
            file: a binary stream.
            path: path of the file, for messages.
            window_bytes: most memory for what decompressing looks back on; more is an `InputError`.
        """


def read_from(file: BufferedReader, path: str, count: int) -> bytes:
    """Returns up to so many bytes as they are.

    Raises:
        StorageError: reading fails.
    """
    with storage_errors("read", path):
        return file.read(count)


def truncated(path: str, kind: str) -> InputError:
    """Returns the error for a file that ends within a member."""
    message = f"`{path}`: the {kind} data ends too early"
    return InputError(message, hint="the file is truncated or still being written")


def damaged(path: str, kind: str, error: Exception) -> InputError:
    """Returns the error for a member that cannot be decompressed."""
    return InputError(f"`{path}`: expected {kind} data, but it is damaged: {error}")
