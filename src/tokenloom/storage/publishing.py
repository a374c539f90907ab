"""Groups of files that appear together, or not at all.

Several renames are not one step, so a journal beside the group says what is being done:

1. all new files are complete, and durable if they are meant to be, under hidden names;
2. the journal `.NAME.replacing` appears, which lists them: from this moment the new group counts;
3. the old key file goes (the index of a pair, without which nothing opens the others);
4. the other new files get their names, and old ones without a successor go;
5. the new key file gets its name, and the journal goes.

Several groups share the journal of the first one. It appears without files at first; then, beside each of the others,
a journal that names the first; then the first one again, with all files. All groups take a step before any takes the
next, and the journal of the first goes last.

A failure or death before 2 leaves the old group. After it, the next process to write or open the group goes on
(`recover`). So a reader, of whatever kind, finds the old group, no group, or the new one, and never files of both. NAME
is that of the key file.

Writers of one group exclude each other by a lock, `.NAME.lock`, which dies with its holder (`OutputLock`).
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
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import (
    PendingFile,
    close_lock,
    hidden_path,
    is_file_at,
    lock,
    open_for_lock,
    publish_bytes,
    remove_leftover,
    remove_pending,
    storage_errors,
    sync_folder,
    write_at,
)
from tokenloom.storage.json_files import UnusableJsonError, from_members, members_of, parse_json
from tokenloom.storage.versions import open_regular

_LOGGER = logging.getLogger(__name__)

_PATIENCE_SECONDS = 30.0
"""How long a reader waits for a group that is being replaced, which takes some renames."""
_LOOK_SECONDS = 0.02
_BRIEF_SECONDS = 1.0
"""How long a writer waits for a lock, which readers hold for some renames to recover a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup:
    """Files that belong together, of which the key is the one without which the others are not opened.

    The files are new ones, written and not published, that of the key last. What is there under one of the names, those
    of all files that the group may have, goes with the old group.
    """

    key: str
    files: Sequence[PendingFile]
    names: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What is being done to one or more groups.

    Attributes:
        first: the key whose journal counts; in the journals of the other groups there is nothing else.
        keys: all keys, the first one first.
        new: the hidden name of each new file, by its path; none before all groups have their journals.
        gone: the old files that no new one replaces.
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
    """Makes the files of all groups appear, and what they replace disappear: all of it or, when that fails, nothing.

    A death leaves all groups old, or all new. A file that appears under one of the names while this runs, by a program
    that takes no lock, is replaced too.

    Args:
        groups: local ones.
        replace: whether files of these names may be replaced.
        locked: keys of the groups whose locks the caller holds, that of the first among them. Others are locked until
            their journals, which exclude other writers too, are there.

    Raises:
        OutputExistsError, OutputBusyError: something is there, and is not to be replaced; another process writes it.
        StorageError: writing failed: the old files are there, or, as a note says, the new ones when next opened.
    """
    if not groups:
        return
    files, old_keys = [file for group in groups for file in group.files], list[str]()
    durable = any(file.is_durable for file in files)
    first, gone = groups[0].key, list[str]()
    keys = tuple(group.files[-1].path for group in groups)  # spelled as the files that get their names
    try:
        for file in files:
            file.seal()
        if durable:
            for folder in other_folders(first, [file.path for file in files]):
                sync_folder(folder)
        for group in groups:
            with nullcontext() if group.key in locked else OutputLock(group.key):
                gone += _replaced(group, replace=replace)
                if len(groups) > 1:  # that the first one lists no files withdraws the others
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
            error.add_note(f"the new files at `{first}` are complete, and get their names when it is next opened")
        if end != "new" or not isinstance(error, OSError):
            raise
    finally:
        for file in files:
            file.release()


def _check_complete(journal: Journal, *, has_begun: bool = False) -> None:
    for path, hidden in journal.new.items():
        if not os.path.lexists(hidden) and not (has_begun and os.path.lexists(path)):
            message = f"`{hidden}`, which is to become `{path}`, is missing"
            raise StorageError(message, hint=f"write it again, without `{journal_path(journal.first)}` if it is there")


def _end_failed(first: str, keys: Sequence[str], old_keys: Sequence[str]) -> Literal["old", "new", "begun"]:
    """Goes on once more after a failure, or gives up what has moved nothing yet; returns what is there now."""
    try:
        if (journal := _read_journal(first)) is not None:
            with suppress(OSError):
                _finish(journal)
                return "new" if journal.new else "old"
            if not all(map(os.path.lexists, (*journal.new.values(), *old_keys))):
                return "begun"
            remove_file(journal_path(first))
            if other_folders(first, journal.new):
                sync_folder(os.path.dirname(first) or ".")  # before the files that it names go
    except OSError:
        return "begun"
    with suppress(OSError):  # without the first journal, the others mean nothing
        _remove_journals(keys[1:], first)
    return "old"


def _replaced(group: FileGroup, *, replace: bool) -> list[str]:
    """Returns the old files of a group that go and get no successor."""
    names = (*group.names, *(file.path for file in group.files), group.key)
    old = {canonical_name(path): path for path in names if os.path.lexists(path)}  # one may be spelled in several ways
    for path in old.values():
        if os.path.isdir(path):
            message = f"cannot replace `{path}`: it is a folder"
            raise StorageError(message, hint="move it away, or choose another output")
    if old and not replace:
        raise exists_error(old.get(canonical_name(group.key)) or next(iter(old.values())))
    placed = {canonical_name(file.path) for file in group.files}
    return [path for name, path in old.items() if name not in placed]


def _finish(journal: Journal, *, durable: bool = True) -> None:
    """Gives all new files their names; can be repeated wherever it ended. The caller holds the first group's lock."""
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
        sync(between)  # the journal
        for key in left_keys:
            remove_file(key)
        sync(between)  # no old key is left before anything changes in another folder
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
    """Removes the journals of groups that name that of the first."""
    for key in keys:
        journal = _read_journal(key)
        if journal is not None and canonical_name(journal.first) == canonical_name(first):
            remove_file(journal_path(key))


def other_folders(key: str, paths: Iterable[str]) -> list[str]:
    """Returns the folders of files that are not beside the key."""
    # After a loss of power filesystems keep the order in which names changed in one folder, and not that between two.
    home = os.path.dirname(key) or "."
    return [folder for folder in dict.fromkeys(os.path.dirname(path) or "." for path in paths) if folder != home]


def journal_path(key: str) -> str:
    return hidden_path(key, "replacing")


def _write_journal(journal: Journal, key: str, *, durable: bool) -> None:
    """Writes the journal of a group, with paths as they lead on from its folder: others see it under another path."""
    folder = os.path.realpath(os.path.dirname(key) or ".")  # whichever links lead to it
    relative = journal.renamed(lambda name: os.path.relpath(canonical_name(name), folder))
    publish_bytes(journal_path(key), json.dumps(members_of(relative)).encode(), durable=durable)


def _read_journal(key: str) -> Journal | None:
    """Returns what the journal of a group says, with whole paths; None if there is none."""
    path = journal_path(key)
    try:
        with open(path, "rb") as stream:
            found = from_members(Journal, parse_json(stream.read()))
    except FileNotFoundError:
        return None
    except UnusableJsonError as error:
        message = f"`{path}` is damaged: {str(error).removeprefix(': ')}"
        raise StorageError(message, hint="it names files that were being replaced; look beside it") from error
    return found.renamed(lambda name: os.path.join(os.path.dirname(key), name))


def canonical_name(path: str) -> str:
    """Returns the one path of a name in a folder, without links on the way; the name itself may be a link."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def remove_file(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def recover(key: str) -> bool:
    """Finishes the replacement of a group that a process left between old and new; returns whether there was one.

    Costs one look where nothing is to be done. While a living process replaces the group, waits for it.

    Raises:
        StorageError: the folder cannot be written, or the group stays between the two for long.
    """
    if is_remote(key) or not os.path.lexists(journal_path(key)):
        return False
    deadline = time.monotonic() + _PATIENCE_SECONDS
    with waiting_for(f"`{key}`, which another process replaces"):
        while os.path.lexists(journal_path(key)):
            try:
                OutputLock(key).release()  # which recovers
            except OutputBusyError:
                if time.monotonic() > deadline:
                    raise
            except StorageError as error:
                message = f"a process ended while it replaced `{key}`, and what it left cannot be put in order: {error}"
                raise StorageError(message, hint="open it once where its folder can be written") from error
    return True


def tidy(key: str) -> None:
    """Does what `recover` does, and removes what else a dead writer left; leaves a living one alone."""
    if not is_remote(key) and any(map(os.path.lexists, (journal_path(key), hidden_path(key, "lock")))):
        with suppress(OutputBusyError):
            OutputLock(key).release()


class OutputLock(AbstractContextManager["OutputLock"]):
    """Excludes other writers of the group of a key until it is released; first recovers what a dead one left.

    Where a filesystem has no locks this is logged, and nothing is excluded; nor is it in object storage. Released by
    garbage collection too, and never by a fork.

    Raises:
        OutputBusyError: another process, or another writer of this one, is at it.
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
        """Lets others write; harmless when repeated."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None or os.getpid() != self._pid:
            return
        try:
            with suppress(OSError):
                if is_file_at(descriptor, self._path):
                    os.unlink(self._path)
        finally:  # also after an interruption
            close_lock(descriptor)

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


def _acquire(path: str, key: str) -> int | None:
    """Returns the descriptor of a lock that is held from now on; None where the filesystem has none."""
    deadline = time.monotonic() + _BRIEF_SECONDS
    while True:
        with storage_errors("create", key):
            descriptor = open_for_lock(path, os.O_RDWR | os.O_CREAT)
            is_ours = False
            try:
                if not lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    _LOGGER.warning("the filesystem of `%s` has no locks: nothing keeps other writers away", key)
                    remove_leftover(path)
                    return None
                if is_ours := is_file_at(descriptor, path):  # else its holder has removed it
                    return descriptor
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    message = f"`{key}` is being written by {_owner(descriptor)}"
                    raise OutputBusyError(message, hint="wait for its end, or choose another output") from error
            finally:
                if not is_ours:
                    close_lock(descriptor)
        time.sleep(_LOOK_SECONDS)


def _owner(descriptor: int) -> str:
    """Returns who holds a lock, in words."""
    return os.pread(descriptor, 200, 0).decode("utf-8", "replace") or "another process"


def _sign(descriptor: int, key: str) -> None:
    """Writes who holds a lock, for messages; removes what its last holder left if that died on this machine."""
    host = socket.gethostname()
    with suppress(OSError):  # what is left costs space only; the disk may be full
        found = re.fullmatch(rf"process ([0-9]+) on {re.escape(host)}", _owner(descriptor))
        if found is not None and not is_running(int(found[1])):
            remove_pending([os.path.splitext(key)[0] + "."], process=found[1])
        os.ftruncate(descriptor, 0)
        write_at(descriptor, memoryview(f"process {os.getpid()} on {host}".encode()), 0)


def _settle(key: str) -> None:
    """Finishes what a dead process left; the caller holds the lock of the group."""
    if (journal := _read_journal(key)) is None:
        return
    if journal.keys:
        _finish(journal)
        _LOGGER.info("what a process began at `%s` before it died is finished or withdrawn", key)
    elif os.path.lexists(journal_path(journal.first)):
        OutputLock(journal.first).release()  # which finishes this one, if its journal names it
    remove_file(journal_path(key))


def make_folder_of(path: str) -> None:
    """Makes the folder that an output is to lie in, where there is none; a store has no folders."""
    if not is_remote(path):
        with storage_errors("make the folder of", path):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)


def write_report(path: str, data: bytes, *, overwrite: bool) -> bool:
    """Writes a file that a person asked for, whole; False if it holds these bytes already."""
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
    """Returns the error for an output that is there and is not to be replaced."""
    message = f"`{path}` exists, and was not made by this very job"
    return OutputExistsError(message, hint="choose another output, or replace it with `overwrite=True`")
