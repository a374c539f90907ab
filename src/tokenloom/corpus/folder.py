"""The folder of a job: who works on what, and what is done.

Files in `PREFIX.job`:

    job.json            what decides the bytes; processes with other settings or inputs are refused
    job.lock            held, shared, by every process that takes part; alone, by the one that writes `job.json`
    KEY.lock            held by the process that works on the shard of this key, and names it
    KEY_0.bin, .idx     what came out of it under the first key; KEY.rejected.jsonl, KEY.hashes likewise
    KEY.json            its report, written last: the shard is done
    assembly.lock       held by the process that makes the datasets out of the parts, and names it

Locks are `flock`: they die with the process that holds them, however it dies. Where a filesystem keeps them on each
machine by itself, two machines may do the same shard; both write the same bytes, and files appear whole.

A folder goes in one step, by another name: nobody can join one that is half gone. What is left under that name when the
process that removes it is killed goes with the next run.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from tokenloom.corpus.plan import CorpusPlan, PlannedShard
from tokenloom.corpus.report import ShardReport, boot_id
from tokenloom.errors import ConfigError, StorageError
from tokenloom.storage.atomic import PendingFile, remove_pending, storage_errors
from tokenloom.storage.locks import close_lock, is_file_at, open_for_lock, write_at

_LOGGER = logging.getLogger(__name__)
_JOB = "job.json"
_MOST_ATTEMPTS = 100
"""To join: each fails only because somebody else left at that very moment."""
_OWNER_BYTES = 100


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
        self._job_path = os.path.join(path, _JOB)
        self._removed_path = f"{path}.removed"
        self._reports: dict[str, ShardReport] = {}
        self._machine = boot_id()

    @contextmanager
    def joined(self, *, makes: bool = True) -> Iterator[None]:
        """Takes part in the job, and removes its folder in the end if nothing in it is of use.

        Args:
            makes: the folder, if it is not there.

        Raises:
            ConfigError: the folder belongs to a job with other settings, or processes work in it on other inputs.
            FolderGoneError: it is not there, and not to be made.
            StorageError: the folder cannot be made, or its filesystem has no locks.
        """
        try:
            with self._membership(makes=makes):
                yield
        finally:
            self._leave()

    def _membership(self, *, makes: bool) -> ExitStack:
        """Returns what ends the membership of this process when it is closed."""
        for _ in range(_MOST_ATTEMPTS if makes else 1):
            if makes:
                with storage_errors("create", self.path), suppress(FileExistsError):
                    os.mkdir(self.path)
            with suppress(FolderGoneError), ExitStack() as stack:
                descriptor = stack.enter_context(self._open_lock(self._lock_path))
                with suppress(BlockingIOError):
                    self._lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self._lock_path)
                    self._take_over()
                self._lock(descriptor, fcntl.LOCK_SH, self._lock_path)
                self._require_same_job()
                return stack.pop_all()
        raise FolderGoneError

    def _take_over(self) -> None:
        """Makes the folder that of this job, while nobody else takes part.

        Parts of the same settings are of use whatever the inputs were then: those of inputs that changed have other
        keys.
        """
        found, expected = _read_json(self._job_path), self._job()
        if found == expected:
            return
        if found is not None and found["settings"] != expected["settings"] and any(True for _ in self._done_keys()):
            names = _differences(found["settings"], expected["settings"])
            message = f"`{self.path}` belongs to an unfinished job with other settings: {names}"
            hint = "finish that job with its settings, or give it up with `restart`, which removes what it has done"
            raise ConfigError(message, hint=hint)
        with PendingFile(self._job_path) as file:
            file.write(json.dumps(expected, indent=1).encode() + b"\n")

    def _require_same_job(self) -> None:
        found, expected = _read_json(self._job_path), self._job()
        if found is None:
            raise FolderGoneError  # whoever was to write it died, and this process may be the one to do so now
        if found == expected:
            return
        names = _differences(found["settings"], expected["settings"]) or "its inputs are others, or have changed"
        message = f"another process works on another job in `{self.path}`: {names}"
        hint = "wait for its end, or choose another output prefix; two jobs cannot share one"
        raise ConfigError(message, hint=hint)

    def _job(self) -> dict[str, Any]:
        """Returns what the processes that share the folder must agree on."""
        described: dict[str, Any] = json.loads(json.dumps(self._plan.description()))
        return {"settings": described, "inputs": self._plan.fingerprint}

    def _leave(self) -> None:
        """Removes the folder if this is the last process and no shard is done."""
        if any(True for _ in self._done_keys()):
            return
        # Nothing to do where somebody else takes part, or has removed it.
        with suppress(BlockingIOError, FolderGoneError, StorageError), self._open_lock(self._lock_path) as descriptor:
            self._lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self._lock_path)
            self.remove()

    def remove_remains(self) -> None:
        """Removes what a process left behind that was killed after it had finished this very job."""
        shutil.rmtree(self._removed_path, ignore_errors=True)
        if os.path.lexists(self._job_path) and _read_json(self._job_path) == self._job():
            with suppress(BlockingIOError, FolderGoneError, StorageError), self._open_lock(self._lock_path) as lock:
                self._lock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, self._lock_path)
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
        """Removes the folder; those who wait for a lock in it are told that it is gone."""
        shutil.rmtree(self._removed_path, ignore_errors=True)
        with suppress(OSError):
            os.rename(self.path, self._removed_path)
            shutil.rmtree(self._removed_path, ignore_errors=True)

    def part_prefix(self, shard: PlannedShard) -> str:
        """Returns what the names of the files of a shard begin with."""
        return os.path.join(self.path, shard.key)

    def report_path(self, shard: PlannedShard) -> str:
        """Returns the path of the report of a shard."""
        return f"{self.part_prefix(shard)}.json"

    def report(self, shard: PlannedShard) -> ShardReport | None:
        """Returns what came out of a shard, None if it is not done; what was read once is remembered."""
        if (known := self._reports.get(shard.key)) is not None:
            return known
        path = self.report_path(shard)
        try:
            with open(path, "rb") as stream:
                data = stream.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            message = f"cannot read `{path}`: {error.strerror or error}"
            raise StorageError(message) from error
        try:
            report = ShardReport.from_json(data, path=path)
        except StorageError as error:  # a loss of power may leave it so
            _LOGGER.warning("shard %d is done again: %s", shard.number, error.message)
            return None
        self._reports[shard.key] = report
        return report

    def forget(self, shard: PlannedShard) -> None:
        """Removes the report of a shard, which is then done again."""
        self._reports.pop(shard.key, None)
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
        name = f"{shard.key}.lock"
        with self.lock(name, wait=wait, pending=[self.part_prefix(shard)]) as descriptor:
            is_free = descriptor is not None and self.report(shard) is None
            # No report may also mean that the job was finished after the lock was taken, and its folder removed.
            if is_free and descriptor is not None and not is_file_at(descriptor, os.path.join(self.path, name)):
                raise FolderGoneError
            yield is_free

    @contextmanager
    def lock(self, name: str, *, wait: bool = True, pending: Sequence[str] = ()) -> Iterator[int | None]:
        """Yields the descriptor of a lock that this process holds, None if another does.

        Args:
            name: of the lock.
            wait: until whoever holds it lets go, or is dead.
            pending: beginnings of the paths that whoever holds it writes: what a process of this machine that was
                killed meanwhile left half written is removed.

        Raises:
            FolderGoneError: the job was finished meanwhile.
        """
        path = os.path.join(self.path, name)
        with self._open_lock(path) as descriptor:
            try:
                self._lock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), path)
            except BlockingIOError:
                yield None
                return
            with storage_errors("write", path):
                machine, _, process = os.pread(descriptor, _OWNER_BYTES, 0).decode("ascii", "replace").partition(" ")
                if machine == self._machine:
                    remove_pending(pending, process=process)
                os.ftruncate(descriptor, 0)
                write_at(descriptor, memoryview(f"{self._machine} {os.getpid()}".encode()), 0)
            yield descriptor

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
        with suppress(FileNotFoundError), os.scandir(self.path) as entries:
            for name in (entry.name for entry in entries):
                if name.endswith(".json") and not name.startswith(".") and "_" not in name and name != _JOB:
                    yield name.removesuffix(".json")


def _read_json(path: str) -> Any:
    try:
        with open(path, "rb") as stream:
            found = json.load(stream)
        if not isinstance(found, dict) or not {"settings", "inputs"} <= set(found):
            raise ValueError("it does not describe a job")  # noqa: TRY301, EM101 - worded below
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        message = f"cannot read `{path}`: {error}"
        raise StorageError(message, hint="remove the folder; the job then begins anew") from error
    return found


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
