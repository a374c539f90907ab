"""The journal of a group of files on its way from old to new, see `tokenloom.storage.publishing`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from tokenloom.errors import StorageError
from tokenloom.storage.atomic import publish_bytes, sync_folder
from tokenloom.storage.filesystem import identity_at
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.storage.typed_json import from_members, members_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What is being done to a group.

    Attributes:
        key: path of its key file.
        old: where each file that was there is put aside, by its path.
        new: device and inode of each new file, by its path.
        first: device and inode of the key file of the first of the groups that appear together, by its path.
        others: key files of the other groups, in the journal of the first.
    """

    key: str
    old: Mapping[str, str]
    new: Mapping[str, tuple[int, ...]]
    first: Mapping[str, tuple[int, ...]]
    others: tuple[str, ...]

    @property
    def is_first(self) -> bool:
        """Whether it is that of the first group."""
        return list(self.first) == [self.key]

    def renamed(self, rename: Callable[[str], str]) -> Journal:
        """Returns the same with other paths."""
        return Journal(
            key=rename(self.key),
            old={rename(name): rename(kept) for name, kept in self.old.items()},
            new={rename(name): identity for name, identity in self.new.items()},
            first={rename(name): identity for name, identity in self.first.items()},
            others=tuple(map(rename, self.others)),
        )


def journal_path(key: str) -> str:
    """Returns where the journal of a group is while it is being replaced."""
    return hidden_path(key, "replacing")


def withdraw(journal: Journal) -> None:
    """Takes its name from the new key file, if it has it."""
    if identity_at(journal.key) == journal.new.get(journal.key, ()):
        remove_file(journal.key)


def finish(path: str) -> None:
    """Removes the old files; can be repeated wherever it ended."""
    journal = read_journal(path)
    if journal is not None:
        if others := other_folders(journal.key, journal.old.values()):
            sync_folder(os.path.dirname(journal.key) or ".")  # the new key, before what it replaced goes for ever
        for hidden in journal.old.values():
            remove_file(hidden)
        for folder in others:
            sync_folder(folder)
    remove_file(path)


def undo(path: str) -> None:
    """Removes what is new and puts back what is old, the key last; can be repeated wherever it ended.

    A folder that cannot be synced, as on a full disk, keeps no name from being put back: the journal then stays.

    Raises:
        StorageError: a name could not be put back, or a folder not be synced.
    """
    journal = read_journal(path)
    if journal is None:
        return
    failures: list[OSError] = []

    def sync(folder: str) -> None:
        try:
            sync_folder(folder)
        except OSError as failure:
            failures.append(failure)

    key, old = journal.key, journal.old
    home, others = os.path.dirname(key) or ".", other_folders(key, [*journal.new, *old])
    for name, identity in sorted(journal.new.items(), key=lambda item: item[0] != key):
        if identity_at(name) == identity:
            remove_file(name)
        if name == key and others:
            sync(home)
    for name in sorted(old, key=lambda name: name == key):
        if name == key:
            for folder in others:
                sync(folder)
        if os.path.lexists(old[name]):
            os.rename(old[name], name)
    for folder in (*others, home):
        sync(folder)
    if failures:
        raise failures[0]
    remove_file(path)


def other_folders(key: str, paths: Iterable[str]) -> list[str]:
    """Returns the folders of files that are not beside the key.

    After a loss of power filesystems keep the order in which names changed in one folder, and not that between two:
    what must come first in another folder must be synced first.
    """
    home = os.path.dirname(key) or "."
    return [folder for folder in dict.fromkeys(os.path.dirname(path) or "." for path in paths) if folder != home]


def write_journal(path: str, journal: Journal, *, durable: bool) -> None:
    """Writes a journal, with paths as they lead on from its folder: others see it under another path."""
    folder = os.path.dirname(path) or "."
    relative = journal.renamed(lambda name: _relative(name, folder))
    publish_bytes(path, json.dumps(members_of(relative)).encode(), durable=durable)


def _relative(path: str, folder: str) -> str:
    """Returns a path as it leads on from a folder, whichever links lead to both."""
    beside, name = os.path.split(path)
    return name if (beside or ".") == folder else os.path.relpath(canonical_name(path), os.path.realpath(folder))


def canonical_name(path: str) -> str:
    """Returns the one path of a name in a folder, without links on the way; the name itself may be a link."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


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


def hidden_path(path: str, suffix: str) -> str:
    """Returns a hidden path beside another."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{suffix}")


def remove_file(path: str) -> None:
    """Removes a file, if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(path)
