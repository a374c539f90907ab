"""gzip, by `isal`, whose reader notices damage and truncation and keeps to a window of 32 KiB."""

from __future__ import annotations

from io import BufferedReader

from tokenloom.errors import StorageError
from tokenloom.inputs.codecs.codec import Codec, Read, damaged, truncated
from tokenloom.optional import require
from tokenloom.storage.atomic import storage_errors


class Gzip(Codec):
    """gzip."""

    suffixes: tuple[str, ...] = (".gz",)
    magic = b"\x1f\x8b"

    def open(self, file: BufferedReader, path: str, *, window_bytes: int) -> Read:
        """Returns what reads the text; see `Codec`."""
        igzip = require("isal.igzip", extra="preprocess")
        with storage_errors("read", path):
            if not file.peek(1):  # for the library, no bytes at all are no members, all of them whole
                raise truncated(path, "gzip")
        stream = igzip.IGzipFile(fileobj=file, mode="rb")

        def read(count: int) -> bytes:
            try:
                data: bytes = stream.read(count)
            except EOFError as error:
                raise truncated(path, "gzip") from error
            except (igzip.BadGzipFile, igzip.isal_zlib.error, OverflowError) as error:  # a header without end
                raise damaged(path, "gzip", error) from error
            except StorageError:
                raise
            except OSError as error:
                message = f"cannot read `{path}`: {error.strerror or error}"
                raise StorageError(message) from error
            return data

        return read


GZIP = Gzip()
