"""How a file names files that it is about: from its own folder on where they lie below it, so that all may move."""

from __future__ import annotations

import os

from tokenloom.errors import ConfigError
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.secrets import admit


def relative_name(path: str, *, owner: str) -> str:
    """Returns how a file names a path: from its own folder on if it lies below it, else as a whole.

    Args:
        path: the path or prefix.
        owner: path of the file that names it.

    Raises:
        ConfigError: a file in object storage would name a local one.
    """
    if is_remote(owner):
        folder = owner.rpartition("/")[0] + "/"
        if not is_remote(path):
            message = f"`{owner}` in object storage would name the local pair `{path}`, which others cannot read"
            raise ConfigError(message, hint="write it beside the pairs, or store the pairs first")
        return path.removeprefix(folder)
    if is_remote(path):
        return path
    relative = os.path.relpath(path, os.path.dirname(owner) or ".")
    return os.path.abspath(path) if relative.split(os.sep, 1)[0] == os.pardir else relative


def path_of_name(name: str, *, owner: str) -> str:
    """Returns the path that a file names.

    Args:
        name: what stands in the file.
        owner: path of the file.

    Raises:
        ValueError: a file in object storage names a local one.
        ConfigError: an address names a user.
    """
    if is_remote(name):
        return admit(name)
    if is_remote(owner):
        if name.startswith("/") or os.pardir in name.split("/"):
            message = f"the local pair {name!r} in object storage"
            raise ValueError(message)
        return f"{owner.rpartition('/')[0]}/{name}"
    return os.path.join(os.path.dirname(owner), name)
