"""Bytes into text: what marks of byte order stand for, and why bytes are no text."""

from __future__ import annotations

from tokenloom.inputs.records import UnusableLineError

MARK = "\ufeff"
"""Marks of byte order, as text."""

_UTF8_MARK = MARK.encode()
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

MARK_BYTES = len(_UTF8_MARK)
"""Most bytes of a byte order mark."""

NOT_UTF16 = "expected UTF-8, found the byte order mark of UTF-16"


def begins_as_utf16(head: bytes) -> bool:
    """Whether a file that begins so is text in UTF-16, which is not read."""
    return head.startswith(_UTF16_MARKS)


def without_mark(head: bytes) -> bytes:
    """Returns the beginning of a file of UTF-8 without the byte order mark."""
    return head.removeprefix(_UTF8_MARK)


def decoded(data: bytes) -> str:
    """Returns text in UTF-8.

    Raises:
        UnusableLineError: it is something else.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableLineError(not_utf8(error)) from error


def not_utf8(error: UnicodeDecodeError) -> str:
    """Returns the reason why bytes are no text."""
    return f"not UTF-8: byte 0x{error.object[error.start]:02x} at column {error.start + 1}"
