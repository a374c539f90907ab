"""Complete checks of pairs in the background of a run, once per node: every row, and every checksum of the manifests.

Opening looks at the ends of files, building indices at all rows; tokens are only looked at here. A thread reads them
while the run goes on, and what it found is kept beside the indices under the identity of the files, to the inode and
the nanosecond, so that the next start on this node has nothing to read. Processes of a node take turns: one reads a
pair, the others learn what was found.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from tokenloom.errors import DatasetFormatError, OutputBusyError, StorageError, TokenloomError
from tokenloom.indexed.columns import columns_there
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import column_path, columns_path, idx_path
from tokenloom.indexed.manifests import PairFacts, manifest_of, manifest_path
from tokenloom.indexed.verify import check_columns, check_index, check_tokens
from tokenloom.progress import waiting_for
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import publish_bytes
from tokenloom.storage.json_files import UnusableJsonError, read_json
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.publishing import OutputLock
from tokenloom.storage.resolve import is_missing
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.versions import version_of

_LOGGER = logging.getLogger(__name__)

_VERSION = 3
_FLAG_BYTES = 1 << 14
_NICENESS = 10
_PATIENCE_AT_EXIT_SECONDS = 10.0


class _StoppedError(Exception):
    """The process ends; what was not read stays unread."""


class Verification:
    """The complete check of some pairs; get one with `verification`, or from a config with `verify="full"`.

    Safe from several threads. Processes that are forked later learn what is found; those that are spawned with a
    dataset look for themselves, which costs nothing once the pairs were read.

    Args:
        folder: where results are kept.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._flag = mmap.mmap(-1, _FLAG_BYTES)  # shared with forked workers, which have no thread
        self._added: dict[str, ObjectStorageSettings | None] = {}
        self._waiting: list[str] = []
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()
        self._warned = False
        atexit.register(self._stop)

    def add(self, prefix: str, settings: ObjectStorageSettings | None = None) -> None:
        """Adds a pair or a catalogue, which is checked soon; nothing happens if it was added before.

        Args:
            prefix: prefix of the pair.
            settings: settings of object storage.
        """
        if self._owner != os.getpid():  # the parent of this fork checks it, and may have held the lock
            return
        with self._changed:
            if prefix in self._added:
                return
            self._added[prefix] = settings
            self._waiting.append(prefix)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tokenloom-verification", daemon=True)
                self._thread.start()

    def check(self) -> None:
        """Raises if damage was found so far; takes some ten nanoseconds if not.

        Raises:
            DatasetFormatError: a pair is damaged; names the file.
            StorageError: one could not be read.
        """
        if self._flag[0]:
            is_format, message, hint = json.loads(self._flag[1:].rstrip(b"\0"))
            raise (DatasetFormatError if is_format else StorageError)(message, hint=hint)

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Waits until all pairs were checked, and returns whether that is so; in a fork, only checks.

        Args:
            timeout_seconds: most time to wait; None for as long as it takes.

        Raises:
            DatasetFormatError, StorageError: as `check`.
        """
        self.check()
        if self._owner != os.getpid():
            return False
        with self._changed:
            done = self._changed.wait_for(lambda: self._thread is None or self._flag[0], timeout_seconds)
        self.check()
        return bool(done)

    def __reduce__(self) -> tuple[Callable[..., Verification], tuple[Any, ...]]:
        return verification, (self._folder, dict(self._added))

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)  # of this thread alone
        problem: TokenloomError | None = StorageError("the verification of data ended early")
        try:
            while True:
                with self._changed:
                    if not self._waiting:
                        problem, self._thread = None, None
                        return
                    prefix = self._waiting.pop(0)
                self._verify(prefix)
        except TokenloomError as error:
            problem = error
        except _StoppedError:
            problem = None
        finally:
            with self._changed:
                if problem is not None:
                    self._tell(problem)
                if self._thread is threading.current_thread():
                    self._thread = None
                self._changed.notify_all()

    def _verify(self, prefix: str) -> None:
        """Raises what is wrong with a pair: as somebody found who looked at the same files, or by looking at them."""
        settings = self._added[prefix]
        dataset = IndexedDataset(prefix, mmap=False, object_storage=settings)
        facts = _facts_of(dataset)
        identity = _identity_of(dataset, facts)
        if facts is None and not self._warned:
            self._warned = True
            _LOGGER.warning("`%s` has no manifest: nothing says what its tokens should be (told once)", prefix)
        path = os.path.join(self._folder, f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json")
        with self._locked(path) as is_locked:
            if self._stopping.is_set():
                raise _StoppedError
            if (record := _read_record(path, identity)) is not None:
                if (message := record["problem"]) is None:
                    return
                hint = f"found before, see `{path}`; write the pair again, or remove that file to look again"
                raise DatasetFormatError(str(message), hint=hint)
            problem = self._read(dataset)
            again = IndexedDataset(prefix, object_storage=settings)
            if _identity_of(again, _facts_of(again)) != identity:
                message = f"`{prefix}` was written to while it was verified"
                raise StorageError(message, hint="train on data that nobody writes")
            if is_locked:
                _write_record(path, identity, None if problem is None else problem.message)
            if problem is not None:
                raise problem

    @contextmanager
    def _locked(self, path: str) -> Iterator[bool]:
        """Excludes other processes from making a result, and yields whether it does; where it cannot, all go on."""
        lock: OutputLock | None = None
        with waiting_for(f"`{path}`, which another process makes"):
            while lock is None and not self._stopping.is_set():
                try:
                    os.makedirs(self._folder, mode=0o700, exist_ok=True)
                    lock = OutputLock(path)
                except OutputBusyError:
                    continue
                except OSError as error:
                    _LOGGER.warning("cannot lock `%s`, so that others may do the same work: %s", path, error)
                    break
        with lock or nullcontext():
            yield lock is not None

    def _read(self, dataset: IndexedDataset) -> DatasetFormatError | None:
        """Reads all of a pair and returns what is wrong."""
        try:
            check_index(dataset)
            check_columns(dataset)
            check_tokens(dataset, progress=self._go_on)
        except DatasetFormatError as error:
            return error
        _LOGGER.info("verified `%s`", dataset.path_prefix)
        return None

    def _go_on(self, num_bytes: int) -> None:
        if self._stopping.is_set():
            raise _StoppedError

    def _tell(self, problem: TokenloomError) -> None:
        data = json.dumps([isinstance(problem, DatasetFormatError), problem.message, problem.hint]).encode()
        if len(data) >= _FLAG_BYTES:
            data = json.dumps([True, problem.message[:1000], None]).encode()
        self._flag[1 : 1 + len(data)] = data
        self._flag[0] = 1  # last: then the text is there

    def _stop(self) -> None:
        self._stopping.set()
        if (thread := self._thread) is not None and self._owner == os.getpid():
            thread.join(_PATIENCE_AT_EXIT_SECONDS)


_VERIFICATIONS: dict[str, Verification] = {}


def verification(folder: str, pairs: Mapping[str, ObjectStorageSettings | None] | None = None) -> Verification:
    """Returns the verification whose results are kept in a folder, one per process."""
    if (found := _VERIFICATIONS.get(folder)) is None:
        found = _VERIFICATIONS.setdefault(folder, Verification(folder))
    for prefix, settings in (pairs or {}).items():
        found.add(prefix, settings)
    return found


def _facts_of(dataset: IndexedDataset) -> PairFacts | None:
    """Returns what the manifest of a dataset says; None if there is none, or a damaged one, which the check names."""
    try:
        manifest = manifest_of(dataset)
    except DatasetFormatError:
        return None
    return None if manifest is None else manifest.pair


def _identity_of(dataset: IndexedDataset, facts: PairFacts | None) -> str:
    """Returns JSON that changes when any file of a dataset does.

    Of local files, device, inode, size, and the times of the last change of contents and of anything; of objects, size
    and etag; and the checksums of the manifest, since not every store has etags.
    """
    paths = [section.path for section in dataset.sections]
    prefix = dataset.path_prefix
    paths += [idx_path(prefix), manifest_path(prefix), columns_path(prefix)]
    paths += [column_path(prefix, name) for name in columns_there(prefix)]
    states = {path if is_remote(path) else os.path.abspath(path): _state_of(path, dataset) for path in paths}
    files = [] if facts is None else [facts.tokens, facts.index]
    return json.dumps([_VERSION, states, [[each.num_bytes, each.crc32] for each in files]], sort_keys=True)


def _state_of(path: str, dataset: IndexedDataset) -> list[Any] | None:
    try:
        if is_remote(path):
            version = RemoteFile(path, dataset.object_storage).version
            return [version.num_bytes, version.etag]
        return list(version_of(path)[:5])
    except StorageError as error:
        if is_missing(error):
            return None
        raise


def _read_record(path: str, identity: str) -> dict[str, Any] | None:
    """Returns what is kept of a check of the same files; None if there is nothing that can be read."""
    try:
        record = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, UnusableJsonError) as error:
        _LOGGER.warning("data are verified again, because `%s` cannot be read: %s", path, error)
        return None
    is_ours = isinstance(record, dict) and record.get("identity") == identity and "problem" in record
    return record if is_ours else None


def _write_record(path: str, identity: str, problem: str | None) -> None:
    """Keeps what a check found; a folder that cannot be written is logged."""
    try:
        publish_bytes(path, json.dumps({"identity": identity, "problem": problem}).encode())
    except StorageError as error:
        _LOGGER.warning("what was verified is not remembered: %s", error.message)
