"""Symbolic links: other names for files that stay where they are."""

from __future__ import annotations

import os

from tokenloom.errors import OutputExistsError
from tokenloom.storage.atomic import storage_errors, sync_folder


def link_to(source: str, path: str) -> None:
    """Makes a path a symbolic link to a file, by its absolute path; one that leads there already is left as it is.

    Any number of processes may do so at once.

    Args:
        source: path of the file.
        path: path of the link, in a folder that is there.

    Raises:
        OutputExistsError: something else is there; it stays.
        StorageError: there can be no link.
    """
    with storage_errors("link", path):
        try:
            os.symlink(os.path.abspath(source), path)
        except FileExistsError:
            check_leads_to(source, path)
        else:
            sync_folder(os.path.dirname(path) or ".")


def check_leads_to(source: str, path: str) -> None:
    """Checks that a path is free, or leads to a file.

    Raises:
        OutputExistsError: something else is there.
    """
    if os.path.lexists(path) and os.path.realpath(path) != os.path.realpath(source):
        message = f"expected nothing at `{path}`, or a link to `{source}`, found something else"
        raise OutputExistsError(message, hint="remove or rename one of the two")
