"""The readers of `.bin` files that the reference has, over sources of ours: `read(dtype, count, offset)`."""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ChangedFileError, ConfigError, StorageError
from tokenloom.storage.local import Bytes, ByteSource, MappedFile, PositionalFile
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.settings import ObjectStorageSettings

logger: logging.Logger = logging.getLogger(__name__)

_USUAL_CHUNK_BYTES = 256 << 20
"""The reference's default, which it reads at each miss; ours reads what is asked for, and blocks of a usual size."""


@runtime_checkable
class IndexCacheSettings(Protocol):
    """What the reference's `ObjectStorageConfig` says, of whichever package it is."""

    path_to_idx_cache: str
    bin_chunk_nbytes: int


def settings_of(config: IndexCacheSettings | ObjectStorageSettings | None) -> ObjectStorageSettings | None:
    """Returns our settings for those of the reference, or those that are ours already.

    Raises:
        ConfigError: they are neither, or no bytes are to be read.
    """
    if config is None or isinstance(config, ObjectStorageSettings):
        return config
    if not isinstance(config, IndexCacheSettings):
        message = f"expected an `ObjectStorageConfig`, found {type(config).__name__}"
        raise ConfigError(message)
    if config.bin_chunk_nbytes == _USUAL_CHUNK_BYTES:
        return ObjectStorageSettings(cache_path=config.path_to_idx_cache)
    cache_bytes = max(ObjectStorageSettings().cache_bytes, config.bin_chunk_nbytes)
    return ObjectStorageSettings(
        cache_path=config.path_to_idx_cache, block_bytes=config.bin_chunk_nbytes, cache_bytes=cache_bytes
    )


class BinReader(ABC):
    """Gives numbers of a `.bin` file."""

    @abstractmethod
    def read(self, dtype: Any, count: int, offset: int) -> NDArray[Any]:
        """Returns numbers as dtype[count].

        Args:
            dtype: dtype of the numbers.
            count: how many.
            offset: where the first begins, in bytes.
        """


class SourceReader(BinReader):
    """A reader over a source of bytes.

    Attributes:
        source: the bytes.
    """

    source: ByteSource

    @classmethod
    def over(cls, bin_path: str, source: ByteSource) -> Self:
        """Returns a reader of a file that is open."""
        reader = cls.__new__(cls)
        reader._take(bin_path, source)
        return reader

    def _take(self, bin_path: str, source: ByteSource) -> None:
        self._bin_path = bin_path
        self.source = source

    def read(self, dtype: Any, count: int, offset: int) -> NDArray[Any]:
        """Returns numbers as dtype[count]; of a mapped file, a read-only view. A negative count is all there are.

        Raises:
            ValueError: the file does not hold so many.
        """
        wanted, begin, source = np.dtype(dtype), int(offset), self.source
        size = (source.num_bytes - begin) // wanted.itemsize if count < 0 else int(count)
        num_bytes = size * wanted.itemsize
        if not 0 <= begin <= source.num_bytes - num_bytes:
            message = (
                f"bytes [{begin}, {begin + num_bytes}) of `{self._bin_path}` were asked for, "
                f"but it has {source.num_bytes}"
            )
            raise ValueError(message)
        return source.read(begin, num_bytes).view(wanted)


class MMapBinReader(SourceReader):
    """Reads views of a local file that is mapped into memory."""

    def __init__(self, bin_path: str) -> None:
        self._take(bin_path, MappedFile(os.fspath(bin_path)))


class FileBinReader(SourceReader):
    """Reads a local file by position; a read that fails is tried again, after a while, and then after twice as long.

    Args:
        bin_path: path of the file.
        num_max_retries: how often it is tried again.
        sleep_duration_start: the first while, in seconds.
    """

    num_max_retries: int = 3
    sleep_duration_start: float = 10

    def __init__(self, bin_path: str, num_max_retries: int = 3, sleep_duration_start: float = 10) -> None:
        self.num_max_retries = num_max_retries
        self.sleep_duration_start = sleep_duration_start
        self._take(bin_path, PositionalFile(os.fspath(bin_path)))

    def _take(self, bin_path: str, source: ByteSource) -> None:
        super()._take(bin_path, RetriedFile(source, self) if isinstance(source, PositionalFile) else source)


class RetriedFile(PositionalFile):
    """A file that is read by position, of which a read that fails is tried again.

    Args:
        file: the file.
        patience: says how often, and after what time.
    """

    def __init__(self, file: PositionalFile, patience: FileBinReader) -> None:
        super().__init__(file.path)
        file.version.check(self.version, file.path)
        self._patience = patience

    def read(self, offset: int, length: int) -> Bytes:
        return retry(lambda: PositionalFile.read(self, offset, length), self._patience)


def retry(read: Callable[[], Bytes], patience: FileBinReader) -> Bytes:
    """Returns what a read gives, which may fail because of the system some times first."""
    wait, times = patience.sleep_duration_start, patience.num_max_retries
    for attempt in range(1, times + 1):
        try:
            return read()
        except ChangedFileError:
            raise
        except StorageError as error:
            if error.__cause__ is None:  # not the system: it will not be another answer
                raise
            logger.warning("attempt %d of %d failed, the next is in %g s: %s", attempt, times + 1, wait, error)
            time.sleep(wait)
            wait *= 2
    return read()


class RemoteReader(SourceReader):
    """Reads an object by exact ranges.

    Args:
        bin_path: its address.
        object_storage_config: where copies are kept, and how large blocks are.
    """

    def __init__(self, bin_path: str, object_storage_config: Any) -> None:
        self._take(bin_path, RemoteFile(bin_path, settings_of(object_storage_config)))


class S3BinReader(RemoteReader):
    """Reads an object of `s3://`."""


class MultiStorageClientBinReader(RemoteReader):
    """Reads an object of `msc://`."""


class ReaderSource:
    """The bytes that a reader of a user's own gives, which is asked for numbers of the dataset's dtype.

    Args:
        reader: what has `read(dtype, count, offset)`.
        source: the file that it is said to read, of which the size counts.
        dtype: the dtype of the tokens.
    """

    mapped = None

    def __init__(self, reader: Any, source: ByteSource, dtype: np.dtype[Any]) -> None:
        self.reader = reader
        self._num_bytes = source.num_bytes
        self._dtype = dtype

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def read(self, offset: int, length: int) -> Bytes:
        """Returns bytes; of numbers that they cut, the rest is left out."""
        size = self._dtype.itemsize
        first, stop = offset // size, -(-(offset + length) // size)
        numbers = self.reader.read(dtype=self._dtype.type, count=stop - first, offset=first * size)
        found = np.ascontiguousarray(numbers, dtype=self._dtype).view(np.uint8)
        return found[offset - first * size :][:length]

    def read_many(self, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[Bytes]:
        return map(self.read, offsets, lengths)
