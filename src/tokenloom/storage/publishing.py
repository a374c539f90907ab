"""Publication of groups of files: all files of a group appear together, or none.

A journal beside the group, `.NAME.replacing` for the key file NAME, makes the renames of all files atomic:

1. All new files are complete, and synced if durable, under hidden names.
2. The journal, which lists the new files, appears. From now on the new group is valid.
3. The old key file is removed (in a pair: the index). Readers open no other file of the group without it.
4. The other new files are renamed, and old files without a successor are removed.
5. The new key file is renamed, and the journal is removed.

With several groups, step 2 has three parts: the first group gets a journal without files; each other group gets a
journal that refers to the first group; the first journal is written again, with the files of all groups. All groups
complete a step before any group begins the next step. The journal of the first group is removed last.

A failure or crash before step 2 leaves the old group. After step 2, the next process that writes or opens the group
takes the remaining steps (`recover`). So a reader finds the old group, the new group or no group, but never a mixture.

A lock, `.NAME.lock`, excludes other writers of a group; the lock ends with its process (`OutputLock`).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Literal

from tokenloom.errors import OutputBusyError, OutputExistsError, StorageError
from tokenloom.machine import is_running
from tokenloom.progress import waiting_for
from tokenloom.storage import atomic
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import PendingFile, hidden_path, publish_bytes, storage_errors, sync_folder
from tokenloom.storage.json_files import UnusableJsonError, from_members, members_of, parse_json
from tokenloom.storage.versions import open_regular

_LOGGER = logging.getLogger(__name__)

_PATIENCE_SECONDS = 30.0  # longest wait of a reader for a group that is being replaced
_LOOK_SECONDS = 0.02
_BRIEF_SECONDS = 1.0  # longest wait of a writer for a lock; readers hold a lock only for the renames of a recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup:
    """Files that are published together; readers open the key file first, and no other file if it is missing.

    `files` are new, unpublished files, the key file last. `names` are the final paths of all files that an old or new
    version of the group may have; publishing removes each existing file among `names` that `files` does not replace.
    """

    key: str
    files: Sequence[PendingFile]
    names: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """The journal of a group. Only the journal of `first` lists files, those of all groups; others only name `first`.

    `new` maps final to hidden paths, and is empty until all groups have journals. `gone` lists old files to remove.
    """

    first: str
    keys: tuple[str, ...] = ()
    new: Mapping[str, str] = field(default_factory=dict)
    gone: tuple[str, ...] = ()

    def renamed(self, rename: Callable[[str], str]) -> Journal:
        return Journal(
            first=rename(self.first),
            keys=tuple(map(rename, self.keys)),
            new={rename(path): rename(hidden) for path, hidden in self.new.items()},
            gone=tuple(map(rename, self.gone)),
        )


def publish_together(groups: Sequence[FileGroup], *, replace: bool, locked: Collection[str] = ()) -> None:
    """Publishes the files of all groups and removes old files; a failure or crash leaves all old or all new groups.

    Existing files are replaced only if `replace`. `locked` has the keys of groups that the caller has locked; with
    several groups, the first must be among them. Other groups are locked until their journals exclude writers.

    Raises:
        OutputExistsError: a file exists, and `replace` is False.
        OutputBusyError: another process is writing a group.
        StorageError: writing failed. The old files remain, unless a note says that new files appear when opened next.
    """
    if not groups:
        return
    files, old_keys = [file for group in groups for file in group.files], list[str]()
    durable = any(file.is_durable for file in files)
    first, gone = groups[0].key, list[str]()
    keys = tuple(group.files[-1].path for group in groups)  # paths of the key files, spelled as in `files`
    try:
        for file in files:
            file.seal()
        if durable:
            for folder in other_folders(first, [file.path for file in files]):
                sync_folder(folder)
        for group in groups:
            with nullcontext() if group.key in locked else OutputLock(group.key):
                gone += _replaced(group, replace=replace)
                if len(groups) > 1:  # has no effect until the first journal lists files
                    begun = Journal(first=first, keys=keys if group.key == first else ())
                    _write_journal(begun, group.key, durable=durable)
        new = {file.path: file.readable_path for file in files}
        journal = Journal(first=first, keys=keys, new=new, gone=tuple(gone))
        _check_complete(journal)
        old_keys = [key for key in keys if os.path.lexists(key)]
        _write_journal(journal, first, durable=durable)
        _finish(journal, durable=durable)
    except BaseException as error:
        if (end := _end_failed(first, keys, old_keys)) == "old":
            for file in files:
                file.discard()
        elif end == "begun":
            error.add_note(f"the new files at `{first}` are complete, and appear when `{first}` is opened next")
        if end != "new" or not isinstance(error, OSError):
            raise
    finally:
        for file in files:
            file.release()


def _check_complete(journal: Journal, *, has_begun: bool = False) -> None:
    for path, hidden in journal.new.items():
        if not os.path.lexists(hidden) and not (has_begun and os.path.lexists(path)):
            hint = f"remove `{journal_path(journal.first)}` if it exists, and write the output again"
            raise StorageError(f"no file `{hidden}` to rename to `{path}`", hint=hint)


def _end_failed(first: str, keys: Sequence[str], old_keys: Sequence[str]) -> Literal["old", "new", "begun"]:
    """Ends a failed replacement: returns "new" if finished, "old" if withdrawn, "begun" if neither is possible."""
    try:
        if (journal := _read_journal(first)) is not None:
            with suppress(OSError):
                _finish(journal)
                return "new" if journal.new else "old"
            if not all(map(os.path.lexists, (*journal.new.values(), *old_keys))):
                return "begun"
            remove_file(journal_path(first))
            if other_folders(first, journal.new):
                sync_folder(os.path.dirname(first) or ".")  # before the hidden files that the journal lists are removed
    except OSError:
        return "begun"
    with suppress(OSError):  # without the first journal, the other journals have no effect
        _remove_journals(keys[1:], first)
    return "old"


def _replaced(group: FileGroup, *, replace: bool) -> list[str]:
    names = (*group.names, *(file.path for file in group.files), group.key)
    old = {canonical_name(path): path for path in names if os.path.lexists(path)}  # several paths may name one file
    for path in old.values():
        if os.path.isdir(path):
            raise StorageError(f"cannot replace `{path}`: it is a folder", hint="move it, or choose another output")
    if old and not replace:
        raise exists_error(old.get(canonical_name(group.key)) or next(iter(old.values())))
    placed = {canonical_name(file.path) for file in group.files}
    return [path for name, path in old.items() if name not in placed]


def _finish(journal: Journal, *, durable: bool = True) -> None:
    """Takes steps 3 to 5 of the module docstring; call again after a failure. The caller must lock the first group."""
    others = other_folders(journal.first, [*journal.new, *journal.gone])
    folders = [os.path.dirname(journal.first) or ".", *others]
    between = folders if others else []
    left = {path: hidden for path, hidden in journal.new.items() if os.path.lexists(hidden)}
    left_keys = [key for key in journal.keys if key in left]

    def sync(folders: Iterable[str]) -> None:
        for folder in folders if durable else ():
            sync_folder(folder)

    with storage_errors("replace", journal.first):
        _check_complete(journal, has_begun=True)
        sync(between)  # makes the journal durable
        for key in left_keys:
            remove_file(key)
        sync(between)  # makes the removals durable before anything changes in another folder
        for path in left:
            if path not in journal.keys:
                os.replace(left[path], path)
        for path in journal.gone:
            remove_file(path)
        sync(between)
        for key in left_keys:
            os.replace(left[key], key)
        sync(folders)
        _remove_journals(journal.keys[1:], journal.first)
        sync(other_folders(journal.first, journal.keys))
        remove_file(journal_path(journal.first))


def _remove_journals(keys: Sequence[str], first: str) -> None:
    """Removes those journals of the groups `keys` that refer to the group `first`."""
    for key in keys:
        journal = _read_journal(key)
        if journal is not None and canonical_name(journal.first) == canonical_name(first):
            remove_file(journal_path(key))


def other_folders(key: str, paths: Iterable[str]) -> list[str]:
    """Returns the folders of `paths` except the folder of `key`."""
    # After a loss of power, renames have kept their order only within one folder.
    home = os.path.dirname(key) or "."
    return [folder for folder in dict.fromkeys(os.path.dirname(path) or "." for path in paths) if folder != home]


def journal_path(key: str) -> str:
    return hidden_path(key, "replacing")


def _write_journal(journal: Journal, key: str, *, durable: bool) -> None:
    """Writes the journal of a group, with relative paths, as other machines may mount the folder at another path."""
    folder = os.path.realpath(os.path.dirname(key) or ".")
    relative = journal.renamed(lambda name: os.path.relpath(canonical_name(name), folder))
    publish_bytes(journal_path(key), json.dumps(members_of(relative)).encode(), durable=durable)


def _read_journal(key: str) -> Journal | None:
    """Returns the journal of a group, each path joined to the folder of `key`; None if there is no journal."""
    path = journal_path(key)
    try:
        with open(path, "rb") as stream:
            found = from_members(Journal, parse_json(stream.read()))
    except FileNotFoundError:
        return None
    except UnusableJsonError as error:
        message = f"`{path}`: the journal is damaged: {str(error).removeprefix(': ')}"
        raise StorageError(message, hint="check the files beside the journal, then remove the journal") from error
    return found.renamed(lambda name: os.path.join(os.path.dirname(key), name))


def canonical_name(path: str) -> str:
    """Returns a path with all links in its folder resolved; if the file itself is a link, this link stays."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def remove_file(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def recover(key: str) -> bool:
    """Finishes a replacement whose process died, or waits up to 30 s for a live one; False without a replacement."""
    if is_remote(key) or not os.path.lexists(journal_path(key)):
        return False
    deadline = time.monotonic() + _PATIENCE_SECONDS
    with waiting_for(f"`{key}`, which another process is replacing"):
        while os.path.lexists(journal_path(key)):
            try:
                OutputLock(key).release()  # taking the lock recovers the group
            except OutputBusyError:
                if time.monotonic() > deadline:
                    raise
            except StorageError as error:
                message = f"a process died while it replaced `{key}`, and the replacement cannot be finished: {error}"
                raise StorageError(message, hint="open the output as a user who can write to its folder") from error
    return True


def tidy(key: str) -> None:
    """Recovers a group and removes other leftovers of dead writers; does nothing while a writer holds the lock."""
    if not is_remote(key) and any(map(os.path.lexists, (journal_path(key), hidden_path(key, "lock")))):
        with suppress(OutputBusyError):
            OutputLock(key).release()


class OutputLock(AbstractContextManager["OutputLock"]):
    """A lock that excludes other writers of a group of files until `release`; taking it also recovers the group.

    `OutputBusyError` if another writer, in this or another process, holds the lock. The lock excludes nobody in object
    storage or, with a warning, on a filesystem without locks. Garbage collection releases the lock, but not in a fork.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self._pid = os.getpid()
        self._path = hidden_path(key, "lock")
        self._descriptor: int | None = None
        if is_remote(key):
            return
        self._descriptor = _acquire(self._path, key)
        try:
            with storage_errors("recover", key):
                _settle(key)
            if self._descriptor is not None:
                _sign(self._descriptor, key)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None or os.getpid() != self._pid:
            return
        try:
            with suppress(OSError):
                if atomic.is_file_at(descriptor, self._path):
                    os.unlink(self._path)
        finally:  # also after a KeyboardInterrupt
            atomic.close_lock(descriptor)

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


def _acquire(path: str, key: str) -> int | None:
    """Takes a lock; returns its descriptor, or None on a filesystem without locks."""
    deadline = time.monotonic() + _BRIEF_SECONDS
    while True:
        with storage_errors("create", key):
            descriptor = atomic.open_for_lock(path, os.O_RDWR | os.O_CREAT)
            is_ours = False
            try:
                if not atomic.lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    _LOGGER.warning("the filesystem of `%s` has no locks, so other writers are not excluded", key)
                    atomic.remove_leftover(path)
                    return None
                if is_ours := atomic.is_file_at(descriptor, path):  # else the last holder has removed the file
                    return descriptor
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    message = f"`{key}` is being written by {_owner(descriptor)}"
                    raise OutputBusyError(message, hint="wait for that process, or choose another output") from error
            finally:
                if not is_ours:
                    atomic.close_lock(descriptor)
        time.sleep(_LOOK_SECONDS)


def _owner(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode("utf-8", "replace") or "another process"


def _sign(descriptor: int, key: str) -> None:
    """Writes process and host into a lock file; removes hidden files of the last holder if it died on this host."""
    host = socket.gethostname()
    with suppress(OSError):  # the disk may be full, and leftovers only take space
        found = re.fullmatch(rf"process ([0-9]+) on {re.escape(host)}", _owner(descriptor))
        if found is not None and not is_running(int(found[1])):
            atomic.remove_pending([os.path.splitext(key)[0] + "."], process=found[1])
        os.ftruncate(descriptor, 0)
        atomic.write_at(descriptor, memoryview(f"process {os.getpid()} on {host}".encode()), 0)


def _settle(key: str) -> None:
    if (journal := _read_journal(key)) is None:
        return
    if journal.keys:
        _finish(journal)
        _LOGGER.info("finished or withdrew the replacement of `%s`, whose process died", key)
    elif os.path.lexists(journal_path(journal.first)):
        OutputLock(journal.first).release()  # finishes this group if the first journal lists its files
    remove_file(journal_path(key))


def make_folder_of(path: str) -> None:
    """Creates the folder of an output if it is missing; does nothing in object storage."""
    if not is_remote(path):
        with storage_errors("make the folder of", path):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)


def write_report(path: str, data: bytes, *, overwrite: bool) -> bool:
    """Writes a file atomically; returns False if `data` is there already. Replaces other contents if `overwrite`."""
    if os.path.lexists(path):
        with storage_errors("open", path), open(open_regular(path), "rb") as stream:
            if stream.read(len(data) + 1) == data:
                return False
        if not overwrite:
            raise exists_error(path)
    make_folder_of(path)
    publish_bytes(path, data, durable=True)
    return True


def exists_error(path: str) -> OutputExistsError:
    """Returns the error for an existing output that must not be replaced."""
    hint = "choose another output, or replace it with `overwrite=True`"
    return OutputExistsError(f"`{path}` exists already", hint=hint)
