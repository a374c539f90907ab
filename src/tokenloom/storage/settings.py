"""Settings of object storage: cache, budgets and deadlines."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer, checked_number
from tokenloom.setting_types import Bytes, Count, Number, Seconds, check_local_folder, check_types

CACHE_VARIABLE = "TOKENLOOM_CACHE"
"""Environment variable with the folder of the cache of object storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStorageSettings:
    """Cache, budgets and deadlines of object storage. Budgets are for a whole node.

    Attributes:
        cache_path: folder of index files and blocks, on a disk or in memory (/dev/shm/...) of the node; its processes
            share it (default $TOKENLOOM_CACHE, else $XDG_CACHE_HOME/tokenloom, else ~/.cache/tokenloom).
        cache_bytes: most bytes of blocks in that folder.
        block_bytes: size of a block, and of the largest request.
        read_ahead_bytes: most bytes in memory of ranges that are fetched ahead.
        concurrency: requests at once.
        timeout_seconds: limit of one request.
        deadline_seconds: limit of one read, with all its retries.
        retries: most retries of one read (default: as many as fit into its deadline).

    Raises:
        ConfigError: a number is not above 0, or no block fits the cache.
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
        """`cache_path`, or its default."""
        if self.cache_path is not None:
            return self.cache_path
        if named := os.environ.get(CACHE_VARIABLE):
            check_local_folder(CACHE_VARIABLE, named)
            return named
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        return os.path.join(base, "tokenloom")
