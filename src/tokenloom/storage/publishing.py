"""Groups of files that appear together, or not at all.

Several renames are not one step, so a journal beside the group says what is being done:

1. all new files are complete, and durable if they are meant to be, under hidden names;
2. the journal `.NAME.replacing` appears, which lists them: from this moment the new group counts;
3. the old key file goes (the index of a pair, without which nothing opens the others);
4. the other new files get their names, and old ones without a successor go;
5. the new key file gets its name, and the journal goes.

Several groups share the journal of the first one. Beside each of the others, a journal that names the first appears
before it. All groups take a step before any takes the next.

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
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Self

from tokenloom.errors import OutputBusyError, OutputExistsError, StorageError
from tokenloom.machine import is_running
from tokenloom.progress import waiting_for
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import (
    PendingFile,
    publish_bytes,
    remove_leftover,
    remove_pending,
    storage_errors,
    sync_folder,
)
from tokenloom.storage.json_files import UnusableJsonError, from_members, members_of, parse_json
from tokenloom.storage.locks import close_lock, is_file_at, lock, open_for_lock, write_at
from tokenloom.storage.versions import open_regular

_LOGGER = logging.getLogger(__name__)

_PATIENCE_SECONDS = 30.0
"""How long a reader waits for a group that is being replaced, which takes some renames."""
_LOOK_SECONDS = 0.02
_BRIEF_SECONDS = 1.0
"""How long a writer waits for a lock, which readers hold for some renames to recover a group."""
_OWNER_BYTES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup:
    """Files that belong together.

    Attributes:
        key: path of the file without which the others are not opened.
        files: the new ones, written and not published; that of the key is the last one.
        names: paths of all files that the group may have: what is there under one of them goes with the old group.
    """

    key: str
    files: Sequence[PendingFile]
    names: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What is being done to one or more groups.

    Attributes:
        first: path of the key file whose journal says so; in the journals of the other groups, nothing else does.
        keys: paths of all key files, the first one first.
        new: the hidden name of each new file, by its path.
        gone: paths of the old files that no new one replaces.
    """

    first: str
    keys: tuple[str, ...] = ()
    new: Mapping[str, str] = field(default_factory=dict)
    gone: tuple[str, ...] = ()

    def renamed(self, rename: Callable[[str], str]) -> Journal:
        """Returns the same with other paths."""
        return Journal(
            first=rename(self.first),
            keys=tuple(map(rename, self.keys)),
            new={rename(path): rename(hidden) for path, hidden in self.new.items()},
            gone=tuple(map(rename, self.gone)),
        )


def publish_together(
    groups: Sequence[FileGroup], *, replace: bool, durable: bool = True, locked: Collection[str] = ()
) -> None:
    """Makes the files of all groups appear, and what they replace disappear: all of it or, when that fails, nothing.

    A death leaves all groups old, or all new. A file that appears under one of the names while this runs, by a program
    that takes no lock, is replaced too.

    Args:
        groups: local ones.
        replace: whether files of these names may be replaced.
        durable: whether the names survive a loss of power.
        locked: keys of the groups whose locks the caller holds; that of the first is among them. Others are locked
            until their journals, which exclude other writers too, are there.

    Raises:
        OutputExistsError: something is there, and is not to be replaced.
        OutputBusyError: another process writes one of them.
        StorageError: writing failed: the old files are there, or, as a note says, the new ones when next opened.
    """
    if not groups:
        return
    files = [file for group in groups for file in group.files]
    first, gone, written = groups[0].key, list[str](), list[str]()
    try:
        for file in files:
            file.seal()
        new = {file.path: file.readable_path for file in files}
        if durable:
            for folder in other_folders(first, new):
                sync_folder(folder)
        for group in groups:
            with nullcontext() if group.key in locked else OutputLock(group.key, held=locked):
                gone += _replaced(group, replace=replace)
                if group.key != first:
                    written.append(journal_path(group.key))
                    write_journal(written[-1], Journal(first=first), durable=durable)
        # The keys are spelled as the files that get their names.
        journal = Journal(first=first, keys=tuple(group.files[-1].path for group in groups), new=new, gone=tuple(gone))
        write_journal(journal_path(first), journal, durable=durable)
        _finish(journal, durable=durable)
    except BaseException as error:
        if not os.path.lexists(journal_path(first)):
            for file in files:
                file.discard()
            for path in written:
                with suppress(OSError):  # without that of the first it says nothing
                    remove_file(path)
            raise
        for file in files:
            file.release()
        error.add_note(f"the files at `{first}` are complete: they have their names, or get them when next opened")
        with suppress(OSError):
            _finish(journal)
            if isinstance(error, OSError):
                return
        raise
    for file in files:
        file.release()


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
    home = os.path.dirname(journal.first) or "."
    others = other_folders(journal.first, [*journal.new, *journal.gone])
    left = {path: hidden for path, hidden in journal.new.items() if os.path.lexists(hidden)}

    def sync(*folders: str) -> None:
        for folder in folders if durable else ():
            sync_folder(folder)

    with storage_errors("replace", journal.first):
        if left:
            for path in journal.new:
                if path not in left and not os.path.lexists(path):
                    message = f"`{journal.new[path]}`, which is to become `{path}`, is missing"
                    raise StorageError(message, hint=f"write it again, or remove `{journal_path(journal.first)}`")
            if others:
                sync(home)  # the journal
            for key in journal.keys:
                if key in left:
                    remove_file(key)
            if others:
                sync(home, *others)  # no old key is left before anything changes in another folder
            for path in left:
                if path not in journal.keys:
                    os.replace(left[path], path)
            for path in journal.gone:
                remove_file(path)
            sync(*others)
            for key in journal.keys:
                if key in left:
                    os.replace(left[key], key)
            sync(home, *others)
        for key in reversed(journal.keys):
            remove_file(journal_path(key))


def other_folders(key: str, paths: Iterable[str]) -> list[str]:
    """Returns the folders of files that are not beside the key.

    After a loss of power filesystems keep the order in which names changed in one folder, and not that between two:
    what must come first in another folder must be synced first.
    """
    home = os.path.dirname(key) or "."
    return [folder for folder in dict.fromkeys(os.path.dirname(path) or "." for path in paths) if folder != home]


def journal_path(key: str) -> str:
    """Returns where the journal of a group is while it is being replaced."""
    return hidden_path(key, "replacing")


def write_journal(path: str, journal: Journal, *, durable: bool) -> None:
    """Writes a journal, with paths as they lead on from its folder: others see it under another path."""
    folder = os.path.dirname(path) or "."
    relative = journal.renamed(lambda name: _relative(name, folder))
    publish_bytes(path, json.dumps(members_of(relative)).encode(), durable=durable)


def read_journal(path: str) -> Journal | None:
    """Returns what a journal says, with whole paths; None if there is none.

    Raises:
        StorageError: it is damaged.
    """
    folder = os.path.dirname(path)
    try:
        with open(path, "rb") as stream:
            found = from_members(Journal, parse_json(stream.read()))
    except FileNotFoundError:
        return None
    except UnusableJsonError as error:
        message = f"`{path}` is damaged: {str(error).removeprefix(': ')}"
        raise StorageError(message, hint="it names files that were being replaced; look beside it") from error
    return found.renamed(lambda name: os.path.join(folder, name))


def _relative(path: str, folder: str) -> str:
    """Returns a path as it leads on from a folder, whichever links lead to both."""
    beside, name = os.path.split(path)
    return name if (beside or ".") == folder else os.path.relpath(canonical_name(path), os.path.realpath(folder))


def canonical_name(path: str) -> str:
    """Returns the one path of a name in a folder, without links on the way; the name itself may be a link."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def hidden_path(path: str, suffix: str) -> str:
    """Returns a hidden path beside another."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{suffix}")


def remove_file(path: str) -> None:
    """Removes a file, if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def recover(key: str) -> bool:
    """Finishes the replacement of a group that a process left between old and new; returns whether there was one.

    Costs one look where nothing is to be done. While a living process replaces the group, waits for it.

    Args:
        key: path of the file that is last to appear; of local files.

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
    """Does what `recover` does, and removes what else a dead writer left; for writers, before they look what is there.

    Nothing happens while a living process writes the group.
    """
    if not is_remote(key) and (os.path.lexists(journal_path(key)) or os.path.lexists(hidden_path(key, "lock"))):
        with suppress(OutputBusyError):
            OutputLock(key).release()


class OutputLock:
    """Excludes other writers of a group until it is released; first recovers what a dead one left.

    Where a filesystem has no locks this is logged, and nothing is excluded; nor is it in object storage. Released by
    garbage collection too, and never by a fork.

    Args:
        key: path of the file that is last to appear.
        held: keys whose locks the caller holds.

    Attributes:
        key: path of the file that is last to appear.

    Raises:
        OutputBusyError: another process, or another writer of this one, is at it.
        StorageError: the folder cannot be written.
    """

    def __init__(self, key: str, *, held: Collection[str] = ()) -> None:
        self.key = key
        self._owner = os.getpid()
        self._path = hidden_path(key, "lock")
        self._descriptor: int | None = None
        if is_remote(key):
            return
        self._descriptor = _acquire(self._path, key)
        try:
            with storage_errors("recover", key):
                _settle(key, held)
                self._take()
        except BaseException:
            self.release()
            raise

    def _take(self) -> None:
        """Removes what the last holder left if it died, and writes who holds the lock, for messages only."""
        if self._descriptor is None:
            return
        found = re.fullmatch(rf"process ([0-9]+) on {re.escape(socket.gethostname())}", _owner(self._descriptor))
        with suppress(OSError):  # what is left costs space only; the disk may be full
            if found is not None and not is_running(int(found[1])):
                remove_pending([os.path.splitext(self.key)[0] + "."], process=found[1])
            os.ftruncate(self._descriptor, 0)
            owner = f"process {os.getpid()} on {socket.gethostname()}"
            write_at(self._descriptor, memoryview(owner.encode()), 0)

    def release(self) -> None:
        """Lets others write; harmless when repeated."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None or os.getpid() != self._owner:
            return
        try:
            with suppress(OSError):
                if is_file_at(descriptor, self._path):
                    os.unlink(self._path)
        finally:  # also after an interruption
            close_lock(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.release()


def _acquire(path: str, key: str) -> int | None:
    """Returns the descriptor of a lock that is held from now on; None where the filesystem has none."""
    deadline = time.monotonic() + _BRIEF_SECONDS
    while True:
        with storage_errors("create", key):
            descriptor = open_for_lock(path, os.O_RDWR | os.O_CREAT)
        with storage_errors("lock", key):
            is_ours = False
            try:
                if not lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    _LOGGER.warning("the filesystem of `%s` has no locks: nothing keeps other writers away", key)
                    remove_leftover(path)
                    return None
                is_ours = is_file_at(descriptor, path)
                if is_ours:
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
    with suppress(OSError):
        return os.pread(descriptor, _OWNER_BYTES, 0).decode("utf-8", "replace") or "another process"
    return "another process"


def _settle(key: str, held: Collection[str]) -> None:
    """Finishes what a dead process left; the caller holds the lock of the group."""
    journal = read_journal(journal_path(key))
    if journal is None:
        return
    if journal.keys:
        _finish(journal)
        _LOGGER.info("`%s` was being replaced as a process ended, and is replaced now", key)
    elif canonical_name(journal.first) not in map(canonical_name, held):
        with OutputLock(journal.first):  # which finishes this one, if its journal names it
            pass
    remove_file(journal_path(key))


def make_folder_of(path: str) -> None:
    """Makes the folder that an output is to lie in, where there is none; a store has no folders.

    Raises:
        StorageError: it cannot be made.
    """
    if not is_remote(path):
        with storage_errors("make the folder of", path):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)


def write_report(path: str, data: bytes, *, overwrite: bool) -> bool:
    """Writes a file that a person asked for, whole; False if it holds these bytes already.

    Raises:
        OutputExistsError: it holds others, and is not to be replaced.
        StorageError: it cannot be written.
    """
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
