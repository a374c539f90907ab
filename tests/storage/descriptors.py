"""Open files of this process."""

from __future__ import annotations

import os
from contextlib import suppress


def num_open(folder: str | os.PathLike[str]) -> int:
    """Returns how many descriptors are of files below a folder: others may come and go with threads of other tests."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists them
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{os.fspath(folder)}/")
    return count
