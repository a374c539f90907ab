"""What a file is: its format and compression, by its name and its first bytes."""

from __future__ import annotations

import os
import stat
from functools import cache

from tokenloom.errors import ConfigError, StorageError
from tokenloom.inputs import STDIN, InputFile
from tokenloom.inputs.codecs import compression_by_suffix, compression_of, magic_bytes
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.streams import version_of
from tokenloom.storage.addresses import ObjectVersion, is_remote
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import did_you_mean


def check_format(input_format: str | None) -> None:
    """Refuses what is no format.

    Raises:
        ConfigError: it is none.
    """
    if input_format is not None and input_format not in FORMATS:
        message = f"expected an input format out of {', '.join(FORMATS)}, got {input_format!r}"
        raise ConfigError(message)


def split_suffix(path: str) -> tuple[str, str]:
    """Returns a name without the suffix of its compression, and the compression.

    Example:
        >>> split_suffix("a/part-0.jsonl.gz")
        ('a/part-0.jsonl', 'gzip')
    """
    stem, suffix = os.path.splitext(path)
    compression = compression_by_suffix(suffix)
    return (path if compression == "none" else stem), compression


def formats_by_name(path: str) -> tuple[str, ...]:
    """Returns the formats that a name may stand for, none where it tells nothing."""
    suffix = os.path.splitext(split_suffix(path)[0])[1].lower()
    return _formats_by_suffix(tuple(FORMATS)).get(suffix, ())


@cache
def _formats_by_suffix(names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    suffixes = {suffix for name in names for suffix in FORMATS[name].suffixes}
    return {suffix: tuple(name for name in names if suffix in FORMATS[name].suffixes) for suffix in suffixes}


def inspect_input(
    path: str,
    *,
    input_format: str | None = None,
    default_format: str | None = None,
    version: ObjectVersion | None = None,
) -> InputFile:
    """Returns what a file is, as it is now.

    The name tells format and compression; the first bytes tell what it does not, and which format a name for several
    (`.txt`) is, the caller. Standard input, and a pipe, are JSON lines unless the caller says otherwise.

    Args:
        path: path of a file (not a folder), an address in object storage, or `-`.
        input_format: format of the file; None to tell.
        default_format: where nothing tells; None to refuse.
        version: version of the object, where it is known.

    Raises:
        ConfigError: its format cannot be told, or is not what `input_format` says, or is compressed twice.
        StorageError: it cannot be opened.
    """
    check_format(input_format)
    if not is_remote(path) and (stream := _stream(path, input_format)) is not None:
        return stream
    compression = split_suffix(path)[1]
    names = formats_by_name(path)
    chosen = input_format or (names[0] if len(names) == 1 else None)
    is_told = compression != "none" or (chosen is not None and FORMATS[chosen].compresses_inside)
    num_bytes, change, head = _look(path, version, with_head=not is_told)
    by_head = next((name for name, found in FORMATS.items() if head.startswith(found.magics)), None)
    if chosen is None:
        chosen = by_head or default_format
    if chosen is None:
        raise _unknown(path, names)
    title = FORMATS[chosen].title
    if by_head not in (None, chosen) and not FORMATS[chosen].may_begin_with_anything:
        message = f"expected {title} in `{path}`, found {FORMATS[by_head].title} by its first bytes"
        raise ConfigError(message, hint=f"name the format {by_head}")
    if not FORMATS[chosen].compresses_inside:
        compression = compression_of(head) if compression == "none" else compression
    elif compression != "none":
        message = f"expected {title} that compresses inside, found a whole file in {compression}: `{path}`"
        raise ConfigError(message, hint="decompress the file")
    return InputFile(path=path, format=chosen, compression=compression, num_bytes=num_bytes, version=change)


def _unknown(path: str, names: tuple[str, ...]) -> ConfigError:
    if names:
        message = f"`{path}` is text: expected to be told whether a document is a line or a file"
        return ConfigError(message, hint=f"name the format: {' or '.join(names)}")
    message = f"neither the name nor the first bytes of `{path}` tell its format"
    return ConfigError(message, hint=f"name the format: {', '.join(FORMATS)}")


def _stream(path: str, input_format: str | None) -> InputFile | None:
    """Returns what can be read once only; None for other files."""
    if path != STDIN:
        try:
            with storage_errors("open", path):
                mode = os.stat(path).st_mode
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise StorageError(error.message, hint=did_you_mean(path)) from error.__cause__
            raise
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            return None
    found = input_format or "jsonl"
    if FORMATS[found].begins_at_the_end:
        message = f"`{path}` can be read once only, and {FORMATS[found].title} is read from its end"
        raise ConfigError(message, hint="save it as a file first")
    return InputFile(path=path, format=found, compression="none", num_bytes=0, version="", is_stream=True)


def _look(path: str, version: ObjectVersion | None, *, with_head: bool) -> tuple[int, str, bytes]:
    """Returns the size of a file, what tells its version, and its first bytes if they are asked for."""
    if is_remote(path):
        remote = RemoteFile(path, version=version)
        head = remote.read(0, min(_head_bytes(tuple(FORMATS)), remote.num_bytes)).tobytes() if with_head else b""
        return *version_of(remote.version), head
    with storage_errors("open", path), open(path, "rb", buffering=0) as file:  # those that cannot be read fail here
        status = os.fstat(file.fileno())
        return status.st_size, str(status.st_mtime_ns), file.read(_head_bytes(tuple(FORMATS)))


@cache
def _head_bytes(names: tuple[str, ...]) -> int:
    """Returns how many first bytes of a file tell its compression, and which of these formats it has."""
    return max(magic_bytes(), *(len(magic) for name in names for magic in FORMATS[name].magics))
