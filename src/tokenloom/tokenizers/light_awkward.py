"""What `gigatoken` asks of `awkward`, in place of that library, whose import takes 0.2 s and 40 MB.

`gigatoken` finds the module by its name, with each call. It takes texts out of an `Array` by `flatten` and `num`, and
gives ids back by `unflatten`. While processes of a job work, `standing_in` puts this module where it looks, unless the
library was imported before. Whoever else imports it then, such as a tokenizer of one's own, finds the library behind
this module, but for `unflatten`.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.inputs.utf8_texts import Utf8Texts
from tokenloom.tokenizers.text_tokenizer import Encoded

_NAME = "awkward"
_lock = threading.Lock()
_num_users = 0


class Array:
    """Texts, for `gigatoken`; of anything else, an array of the library."""

    __slots__ = ("texts",)

    def __new__(cls, texts: Any, *options: Any, **named: Any) -> Any:
        return super().__new__(cls) if isinstance(texts, Utf8Texts) else _library().Array(texts, *options, **named)

    def __init__(self, texts: Utf8Texts) -> None:
        self.texts = texts


def without_parameters(array: Any, **options: Any) -> Any:
    """Returns what is the same here."""
    return array if isinstance(array, Array) else _library().without_parameters(array, **options)


def flatten(array: Any, *options: Any, **named: Any) -> Any:
    """Returns the bytes of all texts: uint8."""
    if not isinstance(array, Array):
        return _library().flatten(array, *options, **named)
    offsets = array.texts.offsets
    return array.texts.content[offsets[0] : offsets[-1]]


def num(array: Any, *options: Any, **named: Any) -> Any:
    """Returns the bytes of each text: int64[num_texts]."""
    return np.diff(array.texts.offsets) if isinstance(array, Array) else _library().num(array, *options, **named)


def to_numpy(array: Any, **options: Any) -> Any:
    """Returns what is the same here."""
    return array if isinstance(array, np.ndarray) else _library().to_numpy(array, **options)


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


def __getattr__(name: str) -> Any:
    """Returns what somebody else asks of the library, which is imported for that and is used from then on."""
    if name.startswith("__") and name not in ("__path__", "__version__", "__all__"):
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(_library(), name)


def _library() -> Any:
    with _lock:
        give_way()
    return importlib.import_module(_NAME)
