"""Settings for data in object storage: cache, limits and deadlines."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer, checked_number
from tokenloom.setting_types import Bytes, Count, Number, Seconds, check_local_folder, check_types

CACHE_VARIABLE = "TOKENLOOM_CACHE"
"""Environment variable that names the folder of the object cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStorageSettings:
    """Cache, limits and deadlines for data in object storage. Limits are for all processes of a node together.

    Attributes:
        cache_path: local folder, shared by all processes of a node, for index files and blocks; on disk or in memory
            (/dev/shm). Default: $TOKENLOOM_CACHE, else $XDG_CACHE_HOME/tokenloom, else ~/.cache/tokenloom.
        cache_bytes: maximum number of bytes of all blocks in that folder.
        block_bytes: number of bytes of a block, and maximum number of bytes per request.
        read_ahead_bytes: maximum number of prefetched bytes in memory.
        concurrency: maximum number of concurrent requests.
        timeout_seconds: time limit for one request.
        deadline_seconds: time limit for one read, including all its retries.
        retries: maximum number of retries of one read (default: as many as fit within `deadline_seconds`).

    Raises:
        ConfigError: a number is out of range, or a block does not fit the cache.
    """

    cache_path: str | None = None
    cache_bytes: Bytes = 8 << 30
    block_bytes: Bytes = 4 << 20
    read_ahead_bytes: Bytes = 1 << 30
    concurrency: Count = 32
    timeout_seconds: Seconds = 30.0
    deadline_seconds: Seconds = 120.0
    retries: Number | None = None

    def __post_init__(self) -> None:
        check_types(self)
        check_local_folder("cache_path", self.cache_path)
        for name in ("cache_bytes", "block_bytes", "read_ahead_bytes", "concurrency"):
            checked_integer(name, getattr(self, name), at_least=1)
        if self.retries is not None:
            checked_integer("retries", self.retries, at_least=0)
        for name in ("timeout_seconds", "deadline_seconds"):
            checked_number(name, getattr(self, name), above=0)
        if self.block_bytes > self.cache_bytes:
            raise ConfigError(f"`cache_bytes`: must hold a block of {self.block_bytes} bytes, got {self.cache_bytes}")

    @property
    def folder(self) -> str:
        """The folder of the cache: `cache_path` or its default."""
        if self.cache_path is not None:
            return self.cache_path
        if named := os.environ.get(CACHE_VARIABLE):
            check_local_folder(CACHE_VARIABLE, named)
            return named
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        return os.path.join(base, "tokenloom")
