"""Files that have no name yet, or a hidden one, and how they get theirs without a moment between."""

from __future__ import annotations

import errno
import os
import secrets

from tokenloom.machine import descriptor_path, has_descriptor_paths

NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)
"""What filesystems answer that have no hard links, or none between these two places."""

_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.ENOSYS)
"""What filesystems and kernels answer that have no files without a name."""


def hidden_name(folder: str, name: str) -> str:
    """Returns the path of a hidden name beside the final one that no other writer uses."""
    return os.path.join(folder, f".{name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def identity_at(path: str) -> tuple[int, int] | None:
    """Returns device and inode of what has a name, links not followed; None if nothing has it."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def open_unnamed(folder: str) -> int | None:
    """Returns the descriptor of a new file without a name; None where there can be none, or none could be named."""
    if not has_descriptor_paths():
        return None
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in _NO_UNNAMED_FILES:
            return None
        raise


def link_unnamed(descriptor: int, path: str) -> None:
    """Names a file that has no name; `FileExistsError` if something has that name."""
    # Python follows the link to the file, which is the point, only where a folder's descriptor is given, here unused.
    os.link(descriptor_path(descriptor), path, src_dir_fd=descriptor, follow_symlinks=True)


def link_if_free(descriptor: int, path: str) -> bool:
    """Names a file that has no name, if nothing has that name, and returns whether it did: only a rename replaces."""
    try:
        link_unnamed(descriptor, path)
    except FileExistsError:
        return False
    return True


def rename_to_new(source: str, path: str) -> None:
    """Renames a file to a name that nothing has; `FileExistsError` otherwise."""
    try:
        os.link(source, path, follow_symlinks=False)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from error
        os.rename(source, path)
        return
    os.unlink(source)
