"""Folders that belong to one user of the machine, in places that may belong to all."""

from __future__ import annotations

import os
import stat

from tokenloom.errors import StorageError
from tokenloom.storage.atomic import storage_errors


def own_folder(path: str, *, hint: str) -> str:
    """Makes a folder for this user alone, if need be, and returns its path.

    Args:
        path: path of the folder.
        hint: what to do if it is not.

    Raises:
        StorageError: it cannot be made; or it is a link, somebody else's, or others may write into it, so that what is
            in it cannot be trusted.
    """
    with storage_errors("create", path):
        os.makedirs(path, mode=0o700, exist_ok=True)
        status = os.lstat(path)
    found = None
    if not stat.S_ISDIR(status.st_mode):
        found = "a link"
    elif status.st_uid != os.geteuid():
        found = f"a folder of user {status.st_uid}"
    elif status.st_mode & 0o022:
        found = f"one that others may write into (mode {stat.S_IMODE(status.st_mode):04o})"
        hint = f"look who has written there, remove it, or allow nobody else to: `chmod 700 {path}`"
    if found is not None:
        message = f"`{path}`: expected a folder of user {os.geteuid()}, found {found}"
        raise StorageError(message, hint=hint)
    return path
