"""What reading an input may take."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.errors import ConfigError
from tokenloom.setting_types import Bytes

LEAST_SHARD_BYTES = 64_000
"""A shard costs its own files and some milliseconds: a corpus in shards of single bytes takes for ever."""

_LEAST_MEMORY_BYTES = 64 << 20
_MOST_RECORD_BYTES = 1 << 30
_LEAST_WINDOW_BYTES, _MOST_WINDOW_BYTES = 1 << 20, 1 << 31  # what Zstandard can be told on every machine

RECORD_BYTES = 16 << 20
"""While it is tokenized, a text costs 5 times its size with `gigatoken`, 120 times with `tokenizers`: 2 GB."""

WINDOW_BYTES = 128 << 20
"""The command `zstd` has the same limit. Zstandard and xz allocate as much when a file says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """What reading an input may take, where each record is looked at in Python.

    Attributes:
        max_record_bytes: longest record (a line, a file of text, the texts of a row); longer ones are bad.
        max_window_bytes: most memory for what zstd and xz look back on; a file that needs more is an error.
        memory_bytes: largest record batch of a table, decoded; a larger one is an error.
    """

    max_record_bytes: Bytes = RECORD_BYTES
    max_window_bytes: Bytes = WINDOW_BYTES
    memory_bytes: Bytes = 1 << 30

    def __post_init__(self) -> None:
        """Checks the limits."""
        if self.memory_bytes < _LEAST_MEMORY_BYTES:
            message = f"expected memory_bytes of at least {_LEAST_MEMORY_BYTES}, got {self.memory_bytes!r}"
            raise ConfigError(message)
        if not 1 <= self.max_record_bytes <= _MOST_RECORD_BYTES:
            message = f"expected max_record_bytes from 1 to {_MOST_RECORD_BYTES}, got {self.max_record_bytes!r}"
            raise ConfigError(message)
        if not _LEAST_WINDOW_BYTES <= self.max_window_bytes <= _MOST_WINDOW_BYTES:
            expected = f"max_window_bytes from {_LEAST_WINDOW_BYTES} to {_MOST_WINDOW_BYTES}"
            message = f"expected {expected}, got {self.max_window_bytes!r}"
            raise ConfigError(message)

    def recorded(self) -> dict[str, int]:
        """Returns what of these decides which records are bad, for the manifest; nothing where it is as ever."""
        return {} if self.max_record_bytes == RECORD_BYTES else {"max_record_bytes": self.max_record_bytes}


DEFAULT_LIMITS = ReadLimits()


def check_shard_bytes(shard_bytes: int) -> None:
    """Refuses shards that are too small to come to an end with a corpus.

    Raises:
        ConfigError: they are.
    """
    if shard_bytes < LEAST_SHARD_BYTES:
        message = f"expected shard_bytes of at least {LEAST_SHARD_BYTES}, got {shard_bytes!r}"
        raise ConfigError(message)
