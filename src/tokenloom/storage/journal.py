"""The journal of a group of files on its way from old to new, see `tokenloom.storage.publishing`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from tokenloom.errors import StorageError
from tokenloom.storage.atomic import publish_bytes, sync_folder
from tokenloom.storage.unnamed_files import identity_at


def journal_path(key: str) -> str:
    """Returns where the journal of a group is while it is being replaced."""
    return hidden_path(key, "replacing")


def withdraw(content: dict[str, Any]) -> None:
    """Takes its name from the new key file, if it has it."""
    if identity_at(key := content["key"]) == tuple(content["new"].get(key, ())):
        remove_file(key)


def finish(journal: str) -> None:
    """Removes the old files; can be repeated wherever it ended."""
    content = read_journal(journal)
    if content is not None:
        if others := other_folders(content["key"], content["old"].values()):
            sync_folder(os.path.dirname(content["key"]) or ".")  # the new key, before what it replaced goes for ever
        for hidden in content["old"].values():
            remove_file(hidden)
        for folder in others:
            sync_folder(folder)
    remove_file(journal)


def undo(journal: str) -> None:
    """Removes what is new and puts back what is old, the key last; can be repeated wherever it ended.

    A folder that cannot be synced, as on a full disk, keeps no name from being put back: the journal then stays.

    Raises:
        StorageError: a name could not be put back, or a folder not be synced.
    """
    content = read_journal(journal)
    if content is None:
        return
    failures: list[OSError] = []

    def sync(folder: str) -> None:
        try:
            sync_folder(folder)
        except OSError as failure:
            failures.append(failure)

    key, old = content["key"], content["old"]
    home, others = os.path.dirname(key) or ".", other_folders(key, [*content["new"], *old])
    for path, identity in sorted(content["new"].items(), key=lambda item: item[0] != key):
        if identity_at(path) == tuple(identity):
            remove_file(path)
        if path == key and others:
            sync(home)
    for path in sorted(old, key=lambda path: path == key):
        if path == key:
            for folder in others:
                sync(folder)
        if os.path.lexists(old[path]):
            os.rename(old[path], path)
    for folder in (*others, home):
        sync(folder)
    if failures:
        raise failures[0]
    remove_file(journal)


def other_folders(key: str, paths: Iterable[str]) -> list[str]:
    """Returns the folders of files that are not beside the key.

    After a loss of power filesystems keep the order in which names changed in one folder, and not that between two:
    what must come first in another folder must be synced first.
    """
    home = os.path.dirname(key) or "."
    return [folder for folder in dict.fromkeys(os.path.dirname(path) or "." for path in paths) if folder != home]


def write_journal(path: str, content: dict[str, Any], *, durable: bool) -> None:
    """Writes a journal, with paths as they lead on from its folder: others see it under another path."""
    folder = os.path.dirname(path) or "."
    relative = {
        "key": os.path.basename(content["key"]),
        "old": {_relative(name, folder): _relative(kept, folder) for name, kept in content["old"].items()},
        "new": {_relative(name, folder): identity for name, identity in content["new"].items()},
        "first": {_relative(name, folder): identity for name, identity in content["first"].items()},
        "others": [_relative(name, folder) for name in content["others"]],
    }
    publish_bytes(path, json.dumps(relative).encode(), durable=durable)


def _relative(path: str, folder: str) -> str:
    """Returns a path as it leads on from a folder, whichever links lead to both."""
    beside, name = os.path.split(path)
    return name if (beside or ".") == folder else os.path.relpath(canonical_name(path), os.path.realpath(folder))


def canonical_name(path: str) -> str:
    """Returns the one path of a name in a folder, without links on the way; the name itself may be a link."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def read_journal(path: str) -> dict[str, Any] | None:
    """Returns what a journal says, with whole paths; None if there is none.

    Raises:
        StorageError: it is damaged.
    """
    folder = os.path.dirname(path)

    def whole(name: str) -> str:
        return os.path.join(folder, name)

    try:
        with open(path, "rb") as stream:
            found = json.load(stream)
        return {
            "key": whole(found["key"]),
            "old": {whole(name): whole(kept) for name, kept in found["old"].items()},
            "new": {whole(name): identity for name, identity in found["new"].items()},
            "first": {whole(name): identity for name, identity in found["first"].items()},
            "others": [whole(name) for name in found["others"]],
            "is_first": list(found["first"]) == [found["key"]],
        }
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        message = f"`{path}` is damaged: {error}"
        raise StorageError(message, hint="it names files that were being replaced; look beside it") from error


def hidden_path(path: str, suffix: str) -> str:
    """Returns a hidden path beside another."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{suffix}")


def remove_file(path: str) -> None:
    """Removes a file, if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(path)
