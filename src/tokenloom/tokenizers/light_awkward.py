"""What `gigatoken` asks of `awkward`, in place of that library, whose import takes 0.2 s and 40 MB.

`gigatoken` finds the module by its name, with each call. It takes texts out of an `Array` by `flatten` and `num`, and
gives ids back by `unflatten`. While processes of a job work, `standing_in` puts this module where it looks, unless the
library was imported before.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.inputs.utf8_texts import Utf8Texts
from tokenloom.tokenizers.text_tokenizer import Encoded

_NAME = "awkward"
_lock = threading.Lock()
_num_users = 0


@dataclass(frozen=True, slots=True)
class Array:
    """Texts, for `gigatoken`."""

    texts: Utf8Texts


def without_parameters(array: Array) -> Array:
    """Returns what is the same here."""
    return array


def flatten(array: Array) -> NDArray[np.uint8]:
    """Returns the bytes of all texts."""
    offsets = array.texts.offsets
    return array.texts.content[offsets[0] : offsets[-1]]


def num(array: Array) -> NDArray[np.int64]:
    """Returns the bytes of each text."""
    return np.diff(array.texts.offsets)


def to_numpy(array: NDArray[Any]) -> NDArray[Any]:
    """Returns what is the same here."""
    return array


def unflatten(tokens: NDArray[Any], lengths: NDArray[np.int64]) -> Encoded:
    """Returns the ids of some texts."""
    return Encoded(tokens, lengths)


def stands_in() -> bool:
    """Whether `gigatoken` finds this module."""
    return sys.modules.get(_NAME) is sys.modules[__name__]


@contextmanager
def standing_in() -> Iterator[None]:
    """Puts this module where `gigatoken` looks, unless the library is there."""
    global _num_users
    with _lock:
        is_ours = sys.modules.setdefault(_NAME, sys.modules[__name__]) is sys.modules[__name__]
        _num_users += is_ours
    try:
        yield
    finally:
        with _lock:
            _num_users -= is_ours
            if is_ours and not _num_users:
                give_way()


def give_way() -> None:
    """Lets `gigatoken` import the library itself."""
    if stands_in():
        del sys.modules[_NAME]
