"""The job folder: locks, and the parts and reports of shards.

Files in `PREFIX.job`:

    job.json            settings and inputs that decide the output bytes; a process whose job differs raises an error
    job.lock            shared lock of every process of the job; exclusive lock of the process that writes `job.json`
    KEY.lock            lock of the process that tokenizes the shard KEY; contains the owner's boot id and process id
    KEY_0.bin, .idx     the part's pair for the text key with index 0; also KEY.rejected.jsonl, KEY.records, KEY.hashes
    KEY.journal         exists while a process tokenizes the shard, see `ShardJournal`
    KEY.json            the shard's report, written last: the shard is done
    assembly.lock       lock of the process that assembles the parts into datasets; contents as KEY.lock

Locks are `flock` locks and end with their process. If a filesystem does not share locks between machines, two machines
may tokenize the same shard: both machines write the same bytes, and files appear atomically.

The folder is renamed before it is removed, so no process can join a half-removed folder. If the process that removes
the folder is killed, the next call removes the rest.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tokenloom.errors import ConfigError, StorageError
from tokenloom.machine import boot_id
from tokenloom.storage.atomic import (
    close_lock,
    is_file_at,
    lock,
    open_for_lock,
    publish_bytes,
    remove_pending,
    storage_errors,
    write_at,
)
from tokenloom.storage.json_files import read_json

if TYPE_CHECKING:
    from tokenloom.preprocess.sharded import ShardedJob

_LOGGER = logging.getLogger(__name__)
JOB = "job.json"
"""Name of the file that describes the job."""

_MOST_JOB_BYTES = 1 << 29  # enough for millions of input files
# The hex digits are the key of a shard; a leading dot marks a temporary file.
_OWN_NAME = re.compile(r"\.?(job\.json|job\.lock|assembly\.lock|[0-9a-f]{24})([._].*)?")
_REPORT_NAME = re.compile(r"[0-9a-f]{24}\.json")
_MOST_ATTEMPTS = 100  # to join; an attempt fails only if another process removes the folder at the same moment
_OWNER_BYTES = 100
_MOST_SECONDS_BETWEEN_TOUCHES = 5.0
_POLL_SECONDS = 0.1


class FolderGoneError(Exception):
    """Another process finished the job and removed its folder."""


class Silence:
    """A timer that measures for how long the value of a heartbeat has not changed.

    Each call of `seconds` adds at most `most_seconds`: a longer stop of this process does not count.
    """

    def __init__(self, most_seconds: float) -> None:
        self._most_seconds, self._called = most_seconds, time.monotonic()
        self._seconds, self._beat = 0.0, None

    def seconds(self, beat: Any) -> float:
        """Returns the seconds since the heartbeat last changed."""
        passed, self._called = time.monotonic() - self._called, time.monotonic()
        self._seconds = self._seconds + min(passed, self._most_seconds) if beat == self._beat else 0.0
        self._beat = beat
        return self._seconds


class JobFolder:
    """The job folder at a path: membership, locks and reports, for one process."""

    def __init__(self, path: str, job: ShardedJob) -> None:
        self.path = path
        self._job = job
        self._lock_path = os.path.join(path, "job.lock")
        self._job_path = os.path.join(path, JOB)
        self._removed_path = f"{path}.removed"
        self._member: int | None = None
        self._reports: dict[str, Any] = {}
        self._machine = boot_id()

    @contextmanager
    def joined(self, *, makes: bool = True) -> Iterator[None]:
        """Makes this process a member of the job during the `with` block.

        At the end removes the folder if no other process is a member and no shard has a report or a journal. If the
        folder is missing, creates it if `makes`, else raises `FolderGoneError`. Raises `ConfigError` if the folder
        belongs to an unfinished job with other settings or inputs.
        """
        try:
            with self._membership(makes=makes):
                yield
        finally:
            self._member = None
            if not self.has_journals():  # the attempt after a crash needs the journal
                self._remove_if_alone(even_if_done=False)

    def _membership(self, *, makes: bool) -> ExitStack:
        """Makes this process a member of the job, until the returned stack is closed."""
        for _ in range(_MOST_ATTEMPTS if makes else 1):
            if makes:
                with storage_errors("create", self.path), suppress(FileExistsError):
                    os.mkdir(self.path)
                if (foreign := next(_foreign_names(self.path), None)) is not None:
                    message = f"`{self.path}` cannot be a job folder: it contains `{foreign}`"
                    raise ConfigError(message, hint="move that file, or choose another output prefix or `work_folder`")
            with suppress(FolderGoneError), ExitStack() as stack:
                descriptor = stack.enter_context(_open_lock(self._lock_path))
                if _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self._lock_path):
                    self._take_over()
                _lock(descriptor, fcntl.LOCK_SH, self._lock_path)
                self._require_same_job()
                self._member = descriptor
                return stack.pop_all()
        raise FolderGoneError

    def _take_over(self) -> None:
        """Writes `job.json`, as the only member. Raises `ConfigError` if the folder has finished shards of another job.

        If only some inputs changed, finished shards of the other inputs stay usable: a shard's key hashes its inputs.
        """
        if (found := read_description(self._job_path)) == (expected := self._description()):
            return
        if found is not None and any(done_keys(self.path)):
            problem = ""
            if found["settings"] != expected["settings"]:
                problem = f"settings: {differences_of(found['settings'], expected['settings'])}"
            elif found["inputs"] != expected["inputs"] and (lost := {*found["files"]}.difference(expected["files"])):
                problem = f"inputs: {len(lost)} of its inputs are missing from this job"
            if problem:
                message = f"`{self.path}` belongs to an unfinished job with other {problem}"
                hint = "finish that job with its own settings and inputs, or discard its shards with `restart=True`"
                raise ConfigError(message, hint=hint)
        publish_bytes(self._job_path, json.dumps(expected, indent=1).encode() + b"\n", durable=True)

    def _require_same_job(self) -> None:
        found, expected = read_description(self._job_path), self._description()
        if found is None:
            raise FolderGoneError  # the writer of `job.json` died; the next attempt may write the file
        if found != expected:
            names = differences_of(found["settings"], expected["settings"]) or "its inputs differ or have changed"
            message = f"another process is running a different job in `{self.path}`: {names}"
            raise ConfigError(message, hint="wait until that job ends, or choose another output prefix")

    def _description(self) -> dict[str, Any]:
        """Returns the content of `job.json`, equal in all processes of the job."""
        described: dict[str, Any] = json.loads(json.dumps(self._job.description()))
        inputs = {"inputs": self._job.fingerprint, "files": self._job.input_keys(), "num_shards": len(self._job.shards)}
        return {"settings": described, **inputs}

    def _remove_if_alone(self, *, even_if_done: bool) -> None:
        """Removes the folder if no other process is a member and, unless `even_if_done`, no shard is done."""
        with suppress(FolderGoneError, StorageError):  # another process may have removed it
            if os.path.isdir(self.path) and (even_if_done or not any(done_keys(self.path))):
                with _open_lock(self._lock_path) as descriptor:
                    is_alone = _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self._lock_path)
                    if is_alone and read_description(self._job_path) in (None, self._description()):
                        self.remove()

    def remove_remains(self) -> None:
        """Removes the folder that a finished job left behind because of a kill or power loss."""
        remove_own(self._removed_path)
        self._remove_if_alone(even_if_done=True)

    def restart(self) -> None:
        """Discards all finished shards; raises `ConfigError` if another process is running the job."""
        if self.is_gone:
            return
        with suppress(FolderGoneError), _open_lock(self._lock_path) as descriptor:
            if not _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self._lock_path):
                message = f"`{self.path}`: another process is running this job"
                raise ConfigError(message, hint="stop that process first, or omit `restart=True`")
            self.remove()

    def remove(self) -> None:
        """Removes the job's files, then the empty folder; processes that wait for locks there get `FolderGoneError`."""
        remove_own(self._removed_path)
        path = self.path
        with suppress(OSError):  # another file may have that name
            if not any(_foreign_names(path)):
                os.rename(path, self._removed_path)
                path = self._removed_path
        remove_own(path)

    @property
    def is_gone(self) -> bool:
        """Whether another process finished the job and removed the folder."""
        return not os.path.lexists(self._lock_path)

    def part_prefix(self, shard: Any) -> str:
        return os.path.join(self.path, shard.key)

    def report(self, shard: Any) -> Any | None:
        """Returns the report of a shard, and caches it; returns None if the shard is not done."""
        if (known := self._reports.get(shard.key)) is not None:
            return known
        path = f"{self.part_prefix(shard)}.json"
        try:
            with storage_errors("read", path), suppress(FileNotFoundError), open(path, "rb") as stream:
                report = self._reports[shard.key] = self._job.read_report(stream.read(), path=path)
                return report
        except StorageError as error:
            if isinstance(error.__cause__, OSError):
                raise
            # A power loss can damage the file.
            _LOGGER.warning("redoing shard %d: %s", shard.number, error.message)
        return None

    def forget(self, shard: Any) -> None:
        """Removes the report of a shard, so that the shard is done again."""
        self._reports.pop(shard.key, None)
        path = f"{self.part_prefix(shard)}.json"
        with storage_errors("remove", path), suppress(FileNotFoundError):
            os.unlink(path)

    def has_journals(self) -> bool:
        """Returns whether a `ShardJournal` exists: a process is working on a shard, or crashed or hung in a shard."""
        return any(os.path.exists(journal_path(self.part_prefix(shard))) for shard in self._job.shards)

    @contextmanager
    def claimed(self, shard: Any, *, wait: bool) -> Iterator[bool]:
        """Locks a shard during the `with` block; yields False if the shard is done or another process has the lock.

        With `wait`, waits until the owner of the lock is done, dead, or silent for `worker_timeout_seconds`: an owner
        touches its lock file regularly. A silent (frozen) owner may wake up and do the shard a second time: both
        processes write the same bytes, and files appear atomically. Raises `FolderGoneError` if the job is finished.
        """
        name = f"{shard.key}.lock"
        path = os.path.join(self.path, name)
        timeout_seconds, touched = self._job.worker_timeout_seconds, None
        silence = Silence(2 * _POLL_SECONDS)
        while True:
            with self.lock(name, wait=False, pending=[self.part_prefix(shard)]) as descriptor:
                if descriptor is not None and self.report(shard) is None:
                    # The folder may have been removed after the lock was acquired.
                    if not _is_at(descriptor, path):
                        raise FolderGoneError
                    with _touched(descriptor, timeout_seconds):
                        yield True
                    return
            if descriptor is not None or not wait or self.report(shard) is not None:
                yield False
                return
            time.sleep(_POLL_SECONDS)
            with storage_errors("stat", path), suppress(FileNotFoundError):
                touched = os.stat(path).st_mtime_ns  # only compared with earlier values: clocks of machines differ
            if silence.seconds(touched) > timeout_seconds:
                _LOGGER.warning("this process does shard %d too: the owner of its lock does not respond", shard.number)
                yield True
                return

    @contextmanager
    def lock(self, name: str, *, wait: bool = True, pending: Sequence[str] = ()) -> Iterator[int | None]:
        """Acquires a lock during the `with` block; yields its file descriptor, None if another process has the lock.

        `pending` are path prefixes of the files that owners of this lock write: the temporary files of a previous
        owner on this machine are removed. Raises `FolderGoneError` if another process finished the job.
        """
        path = os.path.join(self.path, name)
        with _open_lock(path) as descriptor:
            if not _lock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), path):
                yield None
                return
            if self._member is not None and not _is_at(self._member, self._lock_path):
                raise FolderGoneError  # a later call created a new folder at this path
            with storage_errors("write", path):
                machine, _, process = os.pread(descriptor, _OWNER_BYTES, 0).decode("ascii", "replace").partition(" ")
                if machine == self._machine:
                    remove_pending(pending, process=process)
                os.ftruncate(descriptor, 0)
                write_at(descriptor, memoryview(f"{self._machine} {os.getpid()}".encode()), 0)
            yield descriptor


@contextmanager
def _open_lock(path: str) -> Iterator[int]:
    with storage_errors("open", path):
        try:
            descriptor = open_for_lock(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError as error:
            raise FolderGoneError from error
    try:
        yield descriptor
    finally:
        close_lock(descriptor)


def _lock(descriptor: int, operation: int, path: str) -> bool:
    """Locks an open file; returns False if `operation` is non-blocking and another process has the lock."""
    with storage_errors("lock", path):
        try:
            if not lock(descriptor, operation):
                message = f"cannot lock `{path}`: its filesystem does not support locks"
                raise StorageError(message, hint="mount it with locks, or set `work_folder` to another filesystem")
        except BlockingIOError:
            return False
    if not _is_at(descriptor, path):
        raise FolderGoneError
    return True


def _is_at(descriptor: int, path: str) -> bool:
    with storage_errors("stat", path):
        return is_file_at(descriptor, path)


@contextmanager
def _touched(descriptor: int, timeout_seconds: float) -> Iterator[None]:
    """Updates the mtime of an open file regularly during the `with` block, from a background thread."""
    ended = threading.Event()
    seconds = min(_MOST_SECONDS_BETWEEN_TOUCHES, timeout_seconds / 8)

    def touch() -> None:
        while not ended.wait(seconds):
            with suppress(OSError):
                os.utime(descriptor)

    thread = threading.Thread(target=touch, name="tokenloom-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()  # before the descriptor is closed and reused


def journal_path(part_prefix: str) -> str:
    """Returns the path of the journal of a part; see `ShardJournal`."""
    return f"{part_prefix}.journal"


def _foreign_names(folder: str) -> Iterator[str]:
    with storage_errors("list", folder), suppress(FileNotFoundError):
        yield from (name for name in os.listdir(folder) if not _OWN_NAME.fullmatch(name))


def done_keys(folder: str) -> Iterator[str]:
    """Yields the keys of the finished shards."""
    with storage_errors("list", folder), suppress(FileNotFoundError):
        yield from (name.removesuffix(".json") for name in os.listdir(folder) if _REPORT_NAME.fullmatch(name))


def remove_own(folder: str) -> None:
    """Removes the files of a job from a folder, then the folder if it is empty."""
    with suppress(OSError):
        names = filter(_OWN_NAME.fullmatch, os.listdir(folder))
        for name in sorted(names, key=lambda name: name != JOB):  # `job.json` first: without it, no job can resume
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


def read_description(path: str) -> Any:
    """Returns the content of a `job.json`; None if the file does not exist."""
    try:
        found = read_json(path, most_bytes=_MOST_JOB_BYTES)
        if not isinstance(found, dict) or not {"settings", "inputs", "files"} <= set(found):
            raise ValueError("not a description of a job")  # noqa: TRY301 - wrapped below
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        message = f"cannot read `{path}`: {error}"
        raise StorageError(message, hint="remove the folder; the job then starts from the beginning") from error
    return found


def differences_of(found: Any, expected: dict[str, Any]) -> str:
    """Returns a phrase that lists the settings in which two jobs differ."""
    flat_found, flat_expected = dict(_flat(found)), dict(_flat(expected))
    names = sorted(name for name in {*flat_found, *flat_expected} if flat_found.get(name) != flat_expected.get(name))
    return "; ".join(f"{name} was {flat_found.get(name)!r}, is {flat_expected.get(name)!r}" for name in names)


def _flat(values: Any) -> Iterator[tuple[str, Any]]:
    for name, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, dict) and name in ("shards", "job"):
            yield from _flat(value)
        else:
            yield name, value
