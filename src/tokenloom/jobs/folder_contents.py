"""What lies in the folder of a job: which files are its own, and the description that its processes must share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from tokenloom.errors import ConfigError, StorageError
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.json_files import read_json

JOB = "job.json"
"""The name of the description."""

NUM_SHARDS = "num_shards"
"""A member of the description for those who look on; it follows from the inputs."""

_MOST_JOB_BYTES = 1 << 29
"""Room for some millions of input files."""

_OWN_NAME = re.compile(r"\.?(job\.json|job\.lock|assembly\.lock|[0-9a-f]{24})([._].*)?")
"""Name of a file of a job; the digits are the key of a shard, and those with a dot before them are being written."""


def is_own_name(name: str) -> bool:
    """Whether a file of this name is one of a job."""
    return _OWN_NAME.fullmatch(name) is not None


def foreign_names(folder: str) -> Iterator[str]:
    """Yields the names of what lies in a folder and is no file of a job."""
    with storage_errors("list", folder), suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in list(entries):
            if not is_own_name(entry.name) or entry.is_dir(follow_symlinks=False):
                yield entry.name


def require_own_folder(folder: str) -> None:
    """Checks that nothing lies in a folder but files of a job.

    Raises:
        ConfigError: something does.
    """
    if (foreign := next(foreign_names(folder), None)) is not None:
        message = f"`{folder}` is to be the folder of a job, but holds `{foreign}`, which is no part of one"
        raise ConfigError(message, hint="move it away, or choose another output prefix or `work_folder`")


def done_keys(folder: str) -> Iterator[str]:
    """Yields the keys of the shards that have a report."""
    with storage_errors("list", folder), suppress(FileNotFoundError), os.scandir(folder) as entries:
        for name in [entry.name for entry in entries]:
            if name.endswith(".json") and not name.startswith(".") and "_" not in name and name != JOB:
                yield name.removesuffix(".json")


def remove_own(folder: str) -> None:
    """Removes the files of a job from a folder, and the folder if nothing else is in it."""
    with suppress(OSError), os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
        own = [name for name in names if is_own_name(name)]
        for name in sorted(own, key=lambda name: name != JOB):  # what is left without it is nobody's job
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))
        if len(own) == len(names):
            os.rmdir(folder)


def read_description(path: str) -> Any:
    """Returns the description in a file; None if there is no such file.

    Raises:
        StorageError: it cannot be read, or is none.
    """
    try:
        found = read_json(path, most_bytes=_MOST_JOB_BYTES)
        if not isinstance(found, dict) or not {"settings", "inputs"} <= set(found):
            raise ValueError("it does not describe a job")  # noqa: TRY301, EM101 - worded below
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        message = f"cannot read `{path}`: {error}"
        raise StorageError(message, hint="remove the folder; the job then begins anew") from error
    return found


def is_same_job(found: Any, expected: dict[str, Any]) -> bool:
    """Whether a description is that of a job; older versions did not say how many shards it has."""
    return isinstance(found, dict) and {NUM_SHARDS: expected[NUM_SHARDS], **found} == expected


def differences_of(found: Any, expected: dict[str, Any]) -> str:
    """Returns the settings in which two jobs differ, in words."""
    flat_found, flat_expected = dict(_flat(found)), dict(_flat(expected))
    names = sorted(name for name in {*flat_found, *flat_expected} if flat_found.get(name) != flat_expected.get(name))
    return "; ".join(f"{name} was {flat_found.get(name)!r}, and is {flat_expected.get(name)!r}" for name in names)


def _flat(values: Any) -> Iterator[tuple[str, Any]]:
    for name, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, dict) and name in ("shards", "job"):
            yield from _flat(value)
        else:
            yield name, value
