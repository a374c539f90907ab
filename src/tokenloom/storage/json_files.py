"""JSON that anybody may have written, parsed within bounds: whatever is wrong with it is one kind of error.

The only parser of JSON files. A deep value would end in a `RecursionError` somewhere behind it, a huge one take all
memory.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from typing import Any

from tokenloom.storage.versions import read_at_most

MOST_BYTES = 64 << 20
"""Largest file whose size does not follow from what it describes."""

MOST_DEPTH = 64
"""Arrays and objects in each other; what we write has 5 at most. Python gives up at about 1,000."""


class UnusableJsonError(ValueError):
    """Some bytes are no JSON, or more of it than anybody needs. Callers word it, with the file."""


def parse_json(
    data: bytes | str, *, most_bytes: int = MOST_BYTES, object_hook: Callable[[dict[str, Any]], Any] | None = None
) -> Any:
    """Returns the value that some JSON holds.

    Args:
        data: UTF-8, or text.
        most_bytes: more is refused.
        object_hook: takes each object as soon as it is whole, inner ones first, and returns what stands for it.

    Raises:
        UnusableJsonError: it is no JSON, larger than that, deeper than `MOST_DEPTH`, or has a number of thousands of
            digits; nothing else.
    """
    if len(data) > most_bytes:
        message = f"expected at most {most_bytes} bytes, found {len(data)}"
        raise UnusableJsonError(message)
    try:
        value = json.loads(data, object_hook=object_hook)
    except RecursionError:
        raise UnusableJsonError(_TOO_DEEP) from None
    except MemoryError:
        message = f"its {len(data)} bytes need more memory than there is"
        raise UnusableJsonError(message) from None
    except ValueError as error:  # also of UTF-8, and of numbers with too many digits
        raise UnusableJsonError(str(error)) from error
    openings = (data.count(b"["), data.count(b"{")) if isinstance(data, bytes) else (data.count("["), data.count("{"))
    if sum(openings) > MOST_DEPTH and is_deeper(value, MOST_DEPTH):
        raise UnusableJsonError(_TOO_DEEP)
    return value


def read_json(path: str | os.PathLike[str], *, most_bytes: int = MOST_BYTES) -> Any:
    """Returns the value that a local file holds.

    Args:
        path: path of the file.
        most_bytes: more are not read.

    Raises:
        OSError: it cannot be read.
        UnusableJsonError: see `parse_json`; or it is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would wait for somebody who writes
    with open(handle, "rb", buffering=0):
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            message = "it is no regular file"
            raise UnusableJsonError(message)
        data = read_at_most(handle, most_bytes + 1)
    if len(data) > most_bytes:
        message = f"expected at most {most_bytes} bytes, found more"
        raise UnusableJsonError(message)
    return parse_json(data, most_bytes=most_bytes)


_TOO_DEEP = f"expected at most {MOST_DEPTH} arrays and objects in each other, found more"


def is_deeper(value: Any, most: int) -> bool:
    """Whether containers lie in each other more often; level by level, so that depth costs no stack."""
    level = [value]
    for _ in range(most):
        inner: list[Any] = []
        for each in level:
            values = each.values() if type(each) is dict else each if type(each) is list else ()
            inner += [item for item in values if type(item) in (dict, list)]
        if not inner:
            return False
        level = inner
    return True
