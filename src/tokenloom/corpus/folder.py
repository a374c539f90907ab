"""The folder of a job: who works on what, and what is done.

Files in `PREFIX.job`:

    job.json            what decides the bytes; processes with other settings are refused
    job.lock            held, shared, by every process that takes part
    KEY.lock            held by the process that works on the shard of this key
    KEY_text.bin, .idx  what came out of it; KEY.rejected.jsonl, KEY.hashes.npy likewise
    KEY.json            its report, written last: the shard is done
    assembly.lock       held by the process that makes the datasets out of the parts

Locks are `flock`: they die with the process that holds them, however it dies. Where a filesystem keeps them on each
machine by itself, two machines may do the same shard; both write the same bytes, and files appear whole.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tokenloom.corpus.plan import CorpusPlan, PlannedShard
from tokenloom.corpus.report import ShardReport
from tokenloom.errors import ConfigError, StorageError
from tokenloom.storage.atomic import publish_bytes, storage_errors
from tokenloom.storage.locks import close_lock, is_file_at, open_for_lock

_JOB = "job.json"


class FolderGoneError(Exception):
    """Another process finished the job, and removed its folder."""


class JobFolder:
    """The folder of a job, as one process sees it.

    Args:
        path: of the folder.
        plan: of the job.
    """

    def __init__(self, path: str, plan: CorpusPlan) -> None:
        self.path = path
        self._plan = plan
        self._lock_path = os.path.join(path, "job.lock")

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Takes part in the job; makes the folder first, and removes it in the end if nothing in it is of use.

        Raises:
            ConfigError: the folder belongs to a job with other settings.
            FolderGoneError: the job was finished meanwhile.
            StorageError: the folder cannot be made, or its filesystem has no locks.
        """
        with storage_errors("create", self.path), suppress(FileExistsError):
            os.mkdir(self.path)
        try:
            with self._open_lock(self._lock_path) as descriptor:
                self._lock(descriptor, fcntl.LOCK_SH, self._lock_path)
                self._require_same_job()
                yield
        finally:
            self._leave()

    def _require_same_job(self) -> None:
        path = os.path.join(self.path, _JOB)
        description = self._plan.description()
        found = _read_json(path)
        if found is None:
            with storage_errors("write", path):
                publish_bytes(path, json.dumps(description, indent=1).encode() + b"\n")
        elif found != json.loads(json.dumps(description)):
            names = _differences(found, description)
            message = f"`{self.path}` belongs to a job with other settings: {names}"
            hint = "finish that job with its settings, or give it up with `restart`, which removes what it has done"
            raise ConfigError(message, hint=hint)

    def _leave(self) -> None:
        """Removes the folder if this is the last process and no shard is done."""
        if any(True for _ in self._done_keys()):
            return
        # Nothing to do where somebody else takes part, or has removed it.
        with suppress(BlockingIOError, FolderGoneError, StorageError), self._open_lock(self._lock_path) as descriptor:
            self._lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self._lock_path)
            self.remove()

    def restart(self) -> None:
        """Gives up what was done.

        Raises:
            ConfigError: a process is working on it.
        """
        if not os.path.lexists(self._lock_path):
            return
        with self._open_lock(self._lock_path) as descriptor:
            try:
                self._lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self._lock_path)
            except BlockingIOError as error:
                message = f"`{self.path}`: another process is working on this job"
                raise ConfigError(message, hint="end it first, or leave out `restart` to share its work") from error
            self.remove()

    def remove(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def part_prefix(self, shard: PlannedShard) -> str:
        """Returns what the names of the files of a shard begin with."""
        return os.path.join(self.path, shard.key)

    def report_path(self, shard: PlannedShard) -> str:
        """Returns the path of the report of a shard."""
        return f"{self.part_prefix(shard)}.json"

    def report(self, shard: PlannedShard) -> ShardReport | None:
        """Returns what came out of a shard, None if it is not done."""
        path = self.report_path(shard)
        try:
            with open(path, "rb") as stream:
                data = stream.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            message = f"cannot read `{path}`: {error.strerror or error}"
            raise StorageError(message) from error
        return ShardReport.from_json(data, path=path)

    def forget(self, shard: PlannedShard) -> None:
        """Removes the report of a shard, which is then done again."""
        with storage_errors("remove", self.report_path(shard)), suppress(FileNotFoundError):
            os.unlink(self.report_path(shard))

    @contextmanager
    def claimed(self, shard: PlannedShard, *, wait: bool) -> Iterator[bool]:
        """Yields whether this process may work on a shard: nobody else does, and it is not done.

        Args:
            shard: to work on.
            wait: until whoever works on it is done, or dead.

        Raises:
            FolderGoneError: the job was finished meanwhile.
        """
        with self.lock(f"{shard.key}.lock", wait=wait) as is_ours:
            yield is_ours and self.report(shard) is None

    @contextmanager
    def lock(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Yields whether this process holds the lock of a name.

        Raises:
            FolderGoneError: the job was finished meanwhile.
        """
        path = os.path.join(self.path, name)
        with self._open_lock(path) as descriptor:
            try:
                self._lock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), path)
            except BlockingIOError:
                yield False
                return
            yield True

    @contextmanager
    def _open_lock(self, path: str) -> Iterator[int]:
        try:
            descriptor = open_for_lock(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError as error:
            raise FolderGoneError from error
        except OSError as error:
            message = f"cannot open `{path}`: {error.strerror or error}"
            raise StorageError(message) from error
        try:
            yield descriptor
        finally:
            close_lock(descriptor)

    def _lock(self, descriptor: int, operation: int, path: str) -> None:
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            raise
        except OSError as error:
            message = f"cannot lock `{path}`: {error.strerror or error}"
            hint = None
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
                hint = "this filesystem has no locks: mount it with them, or name a `work_folder` on one that has"
            raise StorageError(message, hint=hint) from error
        if not is_file_at(descriptor, path):
            raise FolderGoneError

    def _done_keys(self) -> Iterator[str]:
        with suppress(FileNotFoundError):
            for name in os.listdir(self.path):
                if name.endswith(".json") and not name.startswith(".") and name != _JOB:
                    yield name.removesuffix(".json")


def _read_json(path: str) -> Any:
    try:
        with open(path, "rb") as stream:
            return json.load(stream)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        message = f"cannot read `{path}`: {error}"
        raise StorageError(message, hint="remove the folder; the job then begins anew") from error


def _differences(found: Any, expected: dict[str, Any]) -> str:
    """Returns the settings in which two jobs differ, in words."""
    flat_found, flat_expected = dict(_flat(found)), dict(_flat(expected))
    names = sorted(name for name in {*flat_found, *flat_expected} if flat_found.get(name) != flat_expected.get(name))
    return "; ".join(f"{name} was {flat_found.get(name)!r}, and is {flat_expected.get(name)!r}" for name in names)


def _flat(values: Any) -> Iterator[tuple[str, Any]]:
    for name, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, dict) and name in ("shards", "job"):
            yield from _flat(value)
        else:
            yield name, value
