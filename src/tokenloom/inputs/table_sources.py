"""What `pyarrow` reads tables from, and what these say about themselves."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from tokenloom.errors import InputError
from tokenloom.inputs import STDIN, InputFile
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.streams import object_version
from tokenloom.optional import require
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import RemoteRandomAccess


def open_table_source(file: InputFile) -> Any:
    """Returns a file as `pyarrow` reads it: a `pyarrow.NativeFile`.

    Raises:
        StorageError: it cannot be opened.
        MissingExtraError: `pyarrow` is not installed.
    """
    arrow = require("pyarrow", extra="parquet")
    if is_remote(file.path):
        remote = RemoteFile(file.path, version=object_version(file))
        return arrow.PythonFile(RemoteRandomAccess(remote), mode="r")
    with storage_errors("open", file.path):
        if file.path == STDIN:
            return arrow.PythonFile(io.BufferedReader(io.FileIO(0, closefd=False)), mode="r")
        if file.is_stream:
            return arrow.PythonFile(io.BufferedReader(io.FileIO(file.path)), mode="r")
        return arrow.OSFile(file.path)


def not_a_table(file: InputFile, error: Exception) -> InputError:
    """Returns the error for a file that is not what its name, or the user, says."""
    title = FORMATS[file.format].title
    article = "an" if title.startswith(("A", "E", "I", "O", "U")) else "a"
    message = f"`{file.path}` is not {article} {title} file: {error}"
    return InputError(message, hint="or it is truncated, or still being written")


def columns_of(schema: Any, keys: Sequence[str], path: str) -> list[str]:
    """Returns the columns that hold the values under some keys, as `pyarrow` names columns inside structs.

    Raises:
        InputError: a key has no column.
    """
    for key in keys:
        if not _has(schema, key):
            found = ", ".join(repr(name) for name in schema.names[:8]) or "none"
            message = f"`{path}`: no column {key!r}; found {found}"
            raise InputError(message, hint="name one of the columns as the key")
    return list(dict.fromkeys(keys))


def _has(schema: Any, key: str) -> bool:
    """Whether there is a column under a key, or a field of structs, by the rule of `value_at`."""
    names = set(schema.names)
    while key not in names:
        head, dot, key = key.partition(".")
        if not dot or head not in names:
            return False
        kind = schema.field(head)
        kind = getattr(kind, "type", kind)
        if not str(kind).startswith("struct<"):
            return False
        schema = kind
        names = {kind.field(number).name for number in range(kind.num_fields)}
    return True
