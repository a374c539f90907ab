"""The folder of a job: locks, parts and reports of its shards.

Files in `PREFIX.job`:

    job.json            settings and inputs that decide the bytes; processes with others are refused
    job.lock            held, shared, by every process of the job; exclusively by the one that writes `job.json`
    KEY.lock            held by the process that works on the shard of this key; contains its name
    KEY_0.bin, .idx     its part under the first key of texts; KEY.rejected.jsonl, .records, .hashes likewise
    KEY.journal         there while a process works on it: see `ShardJournal`
    KEY.json            its report, written last: the shard is done
    assembly.lock       held by the process that makes the datasets out of the parts; contains its name

Locks are `flock`: they end with the process that holds them. Where a filesystem keeps them on each machine by itself,
two machines may do the same shard; both write the same bytes, and files appear whole.

A folder is renamed before it is removed: no process can join one that is half gone. If the process that removes it is
killed, the next run removes the rest.
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
"""The name of the description."""

_MOST_JOB_BYTES = 1 << 29  # some millions of input files
# The digits are the key of a shard; a dot before them marks a file that is being written.
_OWN_NAME = re.compile(r"\.?(job\.json|job\.lock|assembly\.lock|[0-9a-f]{24})([._].*)?")
_REPORT_NAME = re.compile(r"[0-9a-f]{24}\.json")
_MOST_ATTEMPTS = 100  # to join; each fails only because another process left at that very moment
_OWNER_BYTES = 100
_MOST_SECONDS_BETWEEN_TOUCHES = 5.0
_SECONDS_BETWEEN_LOOKS = 0.1


class FolderGoneError(Exception):
    """Another process finished the job, and removed its folder."""


class Silence:
    """Measures how long a heartbeat has not changed; time in which this process itself was stopped does not count.

    Args:
        most_seconds: the most seconds that count between two calls.
    """

    def __init__(self, most_seconds: float) -> None:
        self._most_seconds, self._called = most_seconds, time.monotonic()
        self._seconds, self._beat = 0.0, None

    def seconds(self, beat: Any) -> float:
        """Returns the seconds since the first call with this heartbeat."""
        passed, self._called = time.monotonic() - self._called, time.monotonic()
        self._seconds = self._seconds + min(passed, self._most_seconds) if beat == self._beat else 0.0
        self._beat = beat
        return self._seconds


class JobFolder:
    """The folder at a path of a job, as one process sees it."""

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
        """Joins the job; on leaving, removes its folder if no shard is done.

        Args:
            makes: whether to make a missing folder.

        Raises:
            ConfigError: the folder belongs to a job with other settings, or processes work in it on other inputs.
            FolderGoneError: the folder is missing, and not to be made.
            StorageError: the folder cannot be made, or its filesystem has no locks.
        """
        try:
            with self._membership(makes=makes):
                yield
        finally:
            self._member = None
            if not any(os.path.exists(self.journal_path(shard)) for shard in self._job.shards):  # no record is suspect
                self._remove_alone(if_done=False)

    def _membership(self, *, makes: bool) -> ExitStack:
        """Returns what ends the membership of this process when it is closed."""
        for _ in range(_MOST_ATTEMPTS if makes else 1):
            if makes:
                with storage_errors("create", self.path), suppress(FileExistsError):
                    os.mkdir(self.path)
                if (foreign := next(_foreign_names(self.path), None)) is not None:
                    message = f"`{self.path}` cannot be the folder of a job: it holds `{foreign}`"
                    raise ConfigError(message, hint="move it away, or choose another output prefix or `work_folder`")
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
        """Describes this job in the folder while no other process takes part; refuses an unfinished one of another job.

        Parts of the same settings can be used whatever the inputs were: those of inputs that changed have other keys.
        """
        if (found := read_description(self._job_path)) == (expected := self._description()):
            return
        if found is not None and any(done_keys(self.path)):
            problem = ""
            if found["settings"] != expected["settings"]:
                problem = f"settings: {differences_of(found['settings'], expected['settings'])}"
            elif found["inputs"] != expected["inputs"] and (lost := {*found["files"]}.difference(expected["files"])):
                problem = f"inputs: {len(lost)} of them are not among those of this job"
            if problem:
                message = f"`{self.path}` belongs to an unfinished job with other {problem}"
                hint = "finish that job as it was, or give it up with `restart=True`, which removes what it has done"
                raise ConfigError(message, hint=hint)
        publish_bytes(self._job_path, json.dumps(expected, indent=1).encode() + b"\n", durable=True)

    def _require_same_job(self) -> None:
        found, expected = read_description(self._job_path), self._description()
        if found is None:
            raise FolderGoneError  # the process that was to write it died; on the next attempt this one may
        if found != expected:
            names = differences_of(found["settings"], expected["settings"]) or "its inputs are others, or have changed"
            message = f"another process works on another job in `{self.path}`: {names}"
            hint = "wait for its end, or choose another output prefix; two jobs cannot share one"
            raise ConfigError(message, hint=hint)

    def _description(self) -> dict[str, Any]:
        """Returns the description that the processes of a job must share."""
        described: dict[str, Any] = json.loads(json.dumps(self._job.description()))
        inputs = {"inputs": self._job.fingerprint, "files": self._job.input_keys(), "num_shards": len(self._job.shards)}
        return {"settings": described, **inputs}

    def _remove_alone(self, *, if_done: bool) -> None:
        """Removes the folder of this job if no other process takes part; only if no shard is done, unless `if_done`."""
        with suppress(FolderGoneError, StorageError):  # another process may have removed it
            if os.path.isdir(self.path) and (if_done or not any(done_keys(self.path))):
                with _open_lock(self._lock_path) as descriptor:
                    is_alone = _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self._lock_path)
                    if is_alone and read_description(self._job_path) in (None, self._description()):
                        self.remove()

    def remove_remains(self) -> None:
        """Removes what a kill or a loss of power left of this job, which is finished."""
        remove_own(self._removed_path)
        self._remove_alone(if_done=True)

    def restart(self) -> None:
        """Discards the shards that are done."""
        if self.is_gone:
            return
        with suppress(FolderGoneError), _open_lock(self._lock_path) as descriptor:
            if not _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self._lock_path):
                message = f"`{self.path}`: another process is working on this job"
                raise ConfigError(message, hint="end it first, or leave out `restart=True`")
            self.remove()

    def remove(self) -> None:
        """Removes the folder, but no foreign file in it; processes that wait for its locks get a `FolderGoneError`."""
        remove_own(self._removed_path)
        path = self.path
        with suppress(OSError):  # as where another file has that name
            if not any(_foreign_names(path)):
                os.rename(path, self._removed_path)
                path = self._removed_path
        remove_own(path)

    @property
    def is_gone(self) -> bool:
        """Whether another process has finished the job."""
        return not os.path.lexists(self._lock_path)

    def part_prefix(self, shard: Any) -> str:
        return os.path.join(self.path, shard.key)

    def journal_path(self, shard: Any) -> str:
        return journal_path(self.part_prefix(shard))

    def report(self, shard: Any) -> Any | None:
        """Returns the report of a shard, None if it is not done; cached."""
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
            # A loss of power may leave it so.
            _LOGGER.warning("shard %d is done again: %s", shard.number, error.message)
        return None

    def forget(self, shard: Any) -> None:
        """Removes the report of a shard, which is then done again."""
        self._reports.pop(shard.key, None)
        path = f"{self.part_prefix(shard)}.json"
        with storage_errors("remove", path), suppress(FileNotFoundError):
            os.unlink(path)

    @contextmanager
    def claimed(self, shard: Any, *, wait: bool) -> Iterator[bool]:
        """Yields whether this process may work on a shard: no other process does, and it is not done.

        The process that works on a shard touches its lock often. One that is frozen holds the lock without touching it;
        the shard may then be done twice: both write the same bytes, and files appear whole.

        Args:
            shard: shard to work on.
            wait: whether to wait until its worker is done, dead, or silent for `worker_timeout_seconds`.

        Raises:
            FolderGoneError: the job was finished meanwhile.
        """
        name = f"{shard.key}.lock"
        path = os.path.join(self.path, name)
        timeout_seconds, touched = self._job.worker_timeout_seconds, None
        silence = Silence(2 * _SECONDS_BETWEEN_LOOKS)
        while True:
            with self.lock(name, wait=False, pending=[self.part_prefix(shard)]) as descriptor:
                if descriptor is not None and self.report(shard) is None:
                    # Else the job was finished, and its folder removed, after the lock was taken.
                    if not _is_at(descriptor, path):
                        raise FolderGoneError
                    with _touched(descriptor, timeout_seconds):
                        yield True
                    return
            if descriptor is not None or not wait or self.report(shard) is not None:
                yield False
                return
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            with storage_errors("look at", path), suppress(FileNotFoundError):
                touched = os.stat(path).st_mtime_ns  # compared with itself only: clocks of machines differ
            if silence.seconds(touched) > timeout_seconds:
                _LOGGER.warning("shard %d is done by this process too: its worker is silent", shard.number)
                yield True
                return

    @contextmanager
    def lock(self, name: str, *, wait: bool = True, pending: Sequence[str] = ()) -> Iterator[int | None]:
        """Yields the descriptor of a lock that this process holds, None if another does.

        Args:
            name: name of the lock.
            wait: whether to wait until its holder releases it, or is dead.
            pending: prefixes of the paths that its holder writes: half-written files of a holder on this machine that
                was killed are removed.

        Raises:
            FolderGoneError: the job was finished meanwhile.
        """
        path = os.path.join(self.path, name)
        with _open_lock(path) as descriptor:
            if not _lock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), path):
                yield None
                return
            if self._member is not None and not _is_at(self._member, self._lock_path):
                raise FolderGoneError  # this is the folder of a later call, which begins anew
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
    """Locks an open file; returns False where another process holds it, and the operation does not wait."""
    with storage_errors("lock", path):
        try:
            if not lock(descriptor, operation):
                message = f"cannot lock `{path}`: its filesystem has no locks, and processes of a job need them"
                raise StorageError(message, hint="mount it with locks, or name a `work_folder` on one that has them")
        except BlockingIOError:
            return False
    if not _is_at(descriptor, path):
        raise FolderGoneError
    return True


def _is_at(descriptor: int, path: str) -> bool:
    with storage_errors("look at", path):
        return is_file_at(descriptor, path)


@contextmanager
def _touched(descriptor: int, timeout_seconds: float) -> Iterator[None]:
    """Touches an open file again and again, from a thread of its own."""
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
        thread.join()  # before the descriptor is closed, and means another file


def journal_path(part_prefix: str) -> str:
    """Returns the path of the journal of a part, see `ShardJournal`."""
    return f"{part_prefix}.journal"


def _foreign_names(folder: str) -> Iterator[str]:
    """Yields the names in a folder that are no files of a job."""
    with storage_errors("list", folder), suppress(FileNotFoundError):
        yield from (name for name in os.listdir(folder) if not _OWN_NAME.fullmatch(name))


def done_keys(folder: str) -> Iterator[str]:
    """Yields the keys of the shards that have a report."""
    with storage_errors("list", folder), suppress(FileNotFoundError):
        yield from (name.removesuffix(".json") for name in os.listdir(folder) if _REPORT_NAME.fullmatch(name))


def remove_own(folder: str) -> None:
    """Removes the files of a job from a folder, and the folder if nothing else is in it."""
    with suppress(OSError):
        names = filter(_OWN_NAME.fullmatch, os.listdir(folder))
        for name in sorted(names, key=lambda name: name != JOB):  # what is left without it is nobody's job
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


def read_description(path: str) -> Any:
    """Returns the description in a file; None if there is no such file."""
    try:
        found = read_json(path, most_bytes=_MOST_JOB_BYTES)
        if not isinstance(found, dict) or not {"settings", "inputs", "files"} <= set(found):
            raise ValueError("it does not describe a job")  # noqa: TRY301 - worded below
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        message = f"cannot read `{path}`: {error}"
        raise StorageError(message, hint="remove the folder; the job then begins anew") from error
    return found


def differences_of(found: Any, expected: dict[str, Any]) -> str:
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
