"""Compressed bytes into text, a piece at a time, whatever the compression."""

from __future__ import annotations

from functools import cache
from io import BufferedReader

from tokenloom.inputs.codecs import CODECS
from tokenloom.inputs.codecs.codec import Read, read_from

MAX_WINDOW_BYTES = 128 << 20
"""What a decompressor may look back on, unless the caller sets another limit; the command `zstd` has the same one. It
allocates as much when a file says so."""


def compression_by_suffix(suffix: str) -> str:
    """Returns the compression that the suffix of a name tells, "none" if it tells none."""
    return _by_suffix(tuple(CODECS)).get(suffix.lower(), "none")


@cache
def _by_suffix(names: tuple[str, ...]) -> dict[str, str]:
    return {suffix: name for name in names for suffix in CODECS[name].suffixes}


def compression_of(head: bytes) -> str:
    """Returns the compression that the first bytes of a file tell, `magic_bytes` of them; "none" if they tell none."""
    return next((name for name, codec in CODECS.items() if head.startswith(codec.magic)), "none")


def magic_bytes() -> int:
    """Returns how many first bytes of a file tell its compression."""
    return max(len(codec.magic) for codec in CODECS.values())


def decompressed(
    file: BufferedReader, path: str, compression: str, *, max_window_bytes: int = MAX_WINDOW_BYTES
) -> Read:
    """Returns what reads the text of a file from beginning to end.

    What it raises is an `InputError` where the compressed data is damaged or truncated, a `StorageError` where reading
    fails.

    Args:
        file: a binary stream.
        path: path of the file, for messages.
        compression: how the file is compressed: one of `CODECS`, or "none".
        max_window_bytes: most memory for what Zstandard and xz look back on; more is an `InputError`.
    """
    if compression == "none":
        return lambda count: read_from(file, path, count)
    return CODECS[compression].open(file, path, window_bytes=max_window_bytes)
