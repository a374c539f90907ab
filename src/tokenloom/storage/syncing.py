"""Files onto the disk in the background, for those who need not wait for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tokenloom.errors import StorageError

_LOGGER = logging.getLogger(__name__)

_executor: ThreadPoolExecutor | None = None
_unfinished: set[Future[None]] = set()


def sync_later(paths: Sequence[str], then: Callable[[], None]) -> None:
    """Makes files durable, and then calls something, in a thread that the end of the process waits for.

    Nothing is called where a file is gone or replaced meanwhile, or where the disk fails, which is logged.

    Args:
        paths: paths of complete files.
        then: says somewhere that they are durable.
    """
    global _executor
    if _executor is None:
        _executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenloom-sync")
    future = _executor.submit(_sync, list(paths), then)
    _unfinished.add(future)
    future.add_done_callback(_unfinished.discard)


def finish_syncs() -> None:
    """Waits for what `sync_later` was given."""
    wait(set(_unfinished))


def _sync(paths: Sequence[str], then: Callable[[], None]) -> None:
    try:
        synced = [_sync_file(path) for path in paths]
        if synced == [_identity(os.stat(path)) for path in paths]:
            then()
    except FileNotFoundError:
        pass
    except (OSError, StorageError) as error:
        _LOGGER.warning("what was written may be lost with the next loss of power: %s", error)


def _sync_file(path: str) -> tuple[int, int]:
    """Makes a file durable, and returns which one it was."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
        return _identity(os.fstat(handle))
    finally:
        os.close(handle)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _begin_in_child() -> None:
    global _executor
    _executor = None  # its thread is the parent's
    _unfinished.clear()


os.register_at_fork(after_in_child=_begin_in_child)
