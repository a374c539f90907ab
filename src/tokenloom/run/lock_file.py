"""`run.lock` as a file: JSON with a line for each pair, segment and denial, so that a diff shows what changed.

Its first line has a checksum of all that follows, which tells what was edited by hand or lost on the way. Local pairs
below its folder are named from there on, so that a run may be moved with its data.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenloom.errors import ConfigError, StorageError
from tokenloom.run.lock import VERSION, LockedDenial, LockedSegment, LockedSource, LockedTokenizer, RunLock
from tokenloom.run.lock_rows import RowReader, check_parts, pair_members, rows_of
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.storage.publishing import recover
from tokenloom.storage.resolve import is_missing, map_whole, open_pending
from tokenloom.storage.secrets import admit
from tokenloom.storage.typed_json import MAY_BE_MISSING, from_members, members_of

FORMAT = "tokenloom run lock"

_FIRST_LINE = re.compile(rb'\{"format": "tokenloom run lock", "version": (\d{1,9}), "sha256": "([0-9a-f]{64})",\r?\n')

_MOST_BYTES = 1 << 29
"""More is refused: room for more than a million pairs."""

_LOCK_AGAIN = (
    "restore the lock that was there, or remove it and run `tokenloom run lock` again, which knows nothing of what was "
    "trained on"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """Members of a lock that are of simple types, see `RunLock`."""

    settings_sha256: str
    content_sha256: str
    order: int
    seed: int
    documents: str
    windows: str
    mixing_block: int
    dataset: str
    samples: Mapping[str, Any]
    tokenizer: LockedTokenizer | None
    consumed: int
    amended: int = field(default=0, metadata=MAY_BE_MISSING)
    cut_short: str | None = field(default=None, metadata=MAY_BE_MISSING)


def lock_path(run_path: str) -> str:
    """Returns the path of the lock of a run, from that of its `run.toml`."""
    folder, name = os.path.split(run_path)
    return os.path.join(folder, f"{os.path.splitext(name)[0]}.lock")


def write_lock(path: str, lock: RunLock) -> None:
    """Writes a lock, which appears whole in place of the one that was there.

    Args:
        path: path or address of the file.
        lock: the lock.

    Raises:
        ConfigError: a lock in object storage would name local pairs.
        StorageError: it cannot be written.
    """
    data = lock_bytes(lock, path=path)
    with open_pending(path) as file:
        file.write(data)


def read_lock(path: str) -> RunLock:
    """Returns the lock that a file holds.

    Args:
        path: path or address of the file.

    Raises:
        ConfigError: there is none; or it was edited, truncated, is foreign, or was written by something newer.
        StorageError: it cannot be read.
    """
    if (lock := read_lock_if_there(path)) is None:
        message = f"no file `{path}`, which says what the run reads"
        raise ConfigError(message, hint="run `tokenloom run lock`")
    return lock


def read_lock_if_there(path: str) -> RunLock | None:
    """Returns the same, None if there is no file.

    Raises:
        ConfigError, StorageError: as `read_lock`.
    """
    recover(path)
    try:
        data = map_whole(path).data
    except StorageError as error:
        if is_missing(error):
            return None
        raise
    if len(data) > _MOST_BYTES:
        message = f"`{path}`: expected a lock of at most {_MOST_BYTES} bytes, found {len(data)}"
        raise ConfigError(message, hint="make catalogues of so many pairs, and name these")
    return parse_lock(data, path=path)


def lock_bytes(lock: RunLock, *, path: str) -> bytes:
    """Returns the file of a lock.

    Args:
        lock: the lock.
        path: where the file will be, from which pairs are named.

    Raises:
        ConfigError: a lock in object storage would name local pairs.
    """
    content = "\n".join(_lines(lock, path)).encode()
    digest = hashlib.sha256(content).hexdigest()
    first = json.dumps({"format": FORMAT, "version": lock.version, "sha256": digest})
    return f"{first[:-1]},\n".encode() + content


def parse_lock(data: bytes | memoryview, *, path: str) -> RunLock:
    """Returns the lock that some bytes hold.

    Args:
        data: the whole file.
        path: where it is, for the names of pairs, and for messages.

    Raises:
        ConfigError: see `read_lock`.
    """
    _check_whole(data, path)
    try:
        members = parse_json(_text_of(data), most_bytes=_MOST_BYTES, object_hook=RowReader(path).read)
        return _lock_of(members)
    except UnusableJsonError as error:
        message = f"`{path}`{error}"
        raise ConfigError(message, hint=_LOCK_AGAIN) from error


def _lock_of(members: Any) -> RunLock:
    """Returns the lock that an object of JSON holds, after a `RowReader` has read the rows in it.

    Raises:
        UnusableJsonError: a member is missing, of another type, or does not fit the others.
    """
    head = from_members(_Head, members)
    lock = RunLock(
        **{name: getattr(head, name) for name in _Head.__slots__},
        sources=rows_of(LockedSource, members, "sources"),
        segments=rows_of(LockedSegment, members, "segments"),
        denials=rows_of(LockedDenial, members, "denials"),
    )
    check_parts(lock)
    return lock


def _check_whole(data: bytes | memoryview, path: str) -> None:
    """Checks that bytes are those of a lock as it was written."""
    if (first := _FIRST_LINE.match(data)) is None:
        raise _foreign(bytes(data), path)
    if int(first[1]) != VERSION:
        raise _newer(int(first[1]), path)
    found, expected = hashlib.sha256(data[first.end() :]).hexdigest(), first[2].decode()
    if found == expected:
        return
    data = bytes(data)
    if b"\n<<<<<<< " in data and b"\n>>>>>>> " in data:
        message = f"`{path}` holds two versions of a lock, as a merge has left them"
        raise ConfigError(message, hint="take one of them, and run `tokenloom run lock` again")
    if not data.rstrip().endswith(b"]}"):
        message = f"`{path}` is truncated: expected `]}}` at its end, found {data[-20:]!r}"
        raise ConfigError(message, hint=_LOCK_AGAIN)
    how = "with other ends of lines" if b"\r\n" in data else "by hand"
    message = (
        f"`{path}` was edited {how}: expected content with sha256 {expected[:12]}…, as its first line says, found "
        f"{found[:12]}…"
    )
    raise ConfigError(message, hint=f"what people change is `run.toml`; {_LOCK_AGAIN}")


def _text_of(data: bytes | memoryview) -> str:
    """Returns the text of a file without a copy of its bytes, which would leave a hole in the memory of a run."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        message = f": expected UTF-8, found something else ({error})"
        raise UnusableJsonError(message) from error


def _foreign(data: bytes, path: str) -> ConfigError:
    """Returns the error for what does not begin as locks do."""
    try:
        content = parse_json(data, most_bytes=_MOST_BYTES)
    except UnusableJsonError as error:
        message = f"`{path}`: expected the JSON of a lock, found {len(data)} bytes that are none: {error}"
        return ConfigError(message, hint=_LOCK_AGAIN)
    if type(content) is not dict or content.get("format") != FORMAT:
        message = f"`{path}`: expected an object whose `format` is {FORMAT!r}, found something else"
        return ConfigError(message, hint="this is not the lock of a run; name another file")
    if type(version := content.get("version")) is int and version != VERSION:
        return _newer(version, path)
    message = f"`{path}` was edited or formatted: expected its checksum in the first line, found none"
    return ConfigError(message, hint=_LOCK_AGAIN)


def _newer(version: int, path: str) -> ConfigError:
    message = f"`{path}`: expected version {VERSION} of a lock, found {version}"
    return ConfigError(message, hint="it was written by a newer tokenloom; use that")


def _lines(lock: RunLock, path: str) -> Iterator[str]:
    tokenizer = None if lock.tokenizer is None else members_of(lock.tokenizer)
    if tokenizer is not None:
        tokenizer["name"] = admit(tokenizer["name"])
    for name in _Head.__slots__:
        value = tokenizer if name == "tokenizer" else getattr(lock, name)
        if name in ("amended", "cut_short") and not value:
            continue
        yield f"{_json(name)}: {_json(dict(value) if isinstance(value, Mapping) else value)},"
    yield '"sources": ['
    for number, source in enumerate(lock.sources):
        yield f'{{"name": {_json(source.name)}, "max_passes": {_json(source.max_passes)}, "pairs": ['
        yield from _separated([_json(pair_members(pair, path=path)) for pair in source.pairs])
        yield "]}" if number == len(lock.sources) - 1 else "]},"
    yield '],\n"segments": ['
    yield from _separated([_json(members_of(segment)) for segment in lock.segments])
    yield '],\n"denials": ['
    yield from _separated([_json({"start": denial.start, "documents": denial.documents}) for denial in lock.denials])
    yield "]}\n"


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False)


def _separated(rows: list[str]) -> list[str]:
    return [*(f"{row}," for row in rows[:-1]), *rows[-1:]]
