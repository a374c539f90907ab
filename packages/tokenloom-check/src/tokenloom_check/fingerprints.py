"""Fingerprints of samples: a hash of the content, and a short text for reports."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import date, time, timedelta
from enum import Enum
from itertools import islice
from numbers import Number
from pathlib import PurePath
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np

from tokenloom.errors import ConfigError

CutSamples: TypeAlias = "str | Callable[[Any], Iterable[Any]]"

_BYTES = 16
_MOST_LETTERS = 64
_MOST_NUMBERS = 6
_KNOWN_BY_REPR = (Number, str, bytes, bytearray, Enum, date, time, timedelta, PurePath, UUID)


class Sample(NamedTuple):
    """One sample of a batch."""

    fingerprint: str  # 32 hexadecimal digits, equal for samples with equal content
    words: str  # the start of the content, in one line of at most 64 characters


class SampleCutter:
    """Splits batches into samples.

    Args:
        how: a function that takes a batch and returns its samples. "auto": sample i is row i of each column, where
            columns are the arrays, tensors and lists in a mapping, or in a list or tuple of columns of equal length, as
            torch collates them. The items of any other list or tuple are its samples; anything else is one sample.

    Attributes:
        left_out: columns without a row per sample, which the fingerprints do not cover.
    """

    def __init__(self, how: CutSamples = "auto") -> None:
        if isinstance(how, str) and how != "auto":
            raise ConfigError(f"`samples` must be 'auto' or a function, got {how!r}")
        self._how = how
        self.left_out: set[str] = set()

    def samples(self, batch: Any) -> list[Sample]:
        """Returns the samples of a batch, in order; raises ConfigError if a value cannot be hashed."""
        if not isinstance(self._how, str):
            return [_sample(each, f"samples[{number}]") for number, each in enumerate(self._how(batch))]
        if isinstance(batch, (list, tuple)):
            counts = {_num_rows(item) for item in batch}
            if not any(map(_is_array, batch)) or len(counts) > 1 or None in counts:
                return [_sample(each, f"batch[{number}]") for number, each in enumerate(batch)]
        count = _num_rows(batch)
        if count is None:
            return [_sample(batch, "batch")]
        return [_sample(self._row(batch, number, count, ""), "batch") for number in range(count)]

    def _row(self, value: Any, number: int, count: int, name: str) -> Any:
        if isinstance(value, Mapping):
            columns = {key: (column, f"{name}[{key!r}]") for key, column in value.items()}
            kept = {key: pair for key, pair in columns.items() if _has_rows(pair[0], count)}
            self.left_out |= {where for key, (_, where) in columns.items() if key not in kept}
            return {key: self._row(column, number, count, where) for key, (column, where) in kept.items()}
        if isinstance(value, (list, tuple)) and _is_transposed(value, count):
            return [self._row(column, number, count, f"{name}[{place}]") for place, column in enumerate(value)]
        return value[number]


def fingerprint(value: Any, where: str = "value") -> str:
    """Returns a hash of the content of a value, in 32 hexadecimal digits; `where` is its name in errors.

    Arrays and tensors are hashed by dtype, shape and values, on any device; mappings regardless of key order; lists
    like tuples; dataclasses by their fields. Other values may be sets, strings, bytes, numbers, dates or None;
    ConfigError for other types.
    """
    content = repr(_content(value, where)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=_BYTES).hexdigest()


def _sample(value: Any, where: str) -> Sample:
    words = _words(value)
    return Sample(fingerprint(value, where), words if len(words) <= _MOST_LETTERS else f"{words[: _MOST_LETTERS - 1]}…")


def _words(value: Any) -> str:
    """Returns a value as one line."""
    if _is_array(value):
        array, dtype = _array_of(value)
        first = " ".join(map(str, array.reshape(-1)[:_MOST_NUMBERS].tolist()))
        rest = " …" if array.size > _MOST_NUMBERS else ""
        return f"{dtype}[{', '.join(map(str, array.shape))}] {first}{rest}" if array.shape else first
    if isinstance(value, Mapping):
        items = islice(value.items(), _MOST_NUMBERS)
        return f"{{{', '.join(f'{key!r}: {_words(item)}' for key, item in items)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_words, value[:_MOST_NUMBERS]))}]"
    return repr(value[:_MOST_LETTERS] if isinstance(value, (str, bytes)) else value).replace("\n", " ")


def _num_rows(value: Any) -> int | None:
    """Returns the number of rows of a column, or the most common number in a mapping or list of columns, else None."""
    if _is_array(value):
        return int(value.shape[0]) if len(value.shape) else None
    if isinstance(value, Mapping):
        counts = Counter(count for column in value.values() if (count := _num_rows(column)) is not None)
        return counts.most_common(1)[0][0] if counts else None
    if isinstance(value, (list, tuple)):
        inner = {_num_rows(item) for item in value if _is_array(item)}
        is_columns = len(inner) == 1 and None not in inner and all(_num_rows(item) in inner for item in value)
        return inner.pop() if is_columns else len(value)
    return None


def _has_rows(value: Any, count: int) -> bool:
    if isinstance(value, Mapping):
        return any(_has_rows(column, count) for column in value.values())
    if isinstance(value, (list, tuple)):
        return len(value) == count or _is_transposed(value, count)
    return _is_array(value) and len(value.shape) > 0 and value.shape[0] == count


def _is_transposed(value: list[Any] | tuple[Any, ...], count: int) -> bool:
    """Returns whether a list contains columns, as torch collates lists and tuples, instead of a value per row."""
    arrays = any(_is_array(item) and len(item.shape) > 0 for item in value)
    return arrays and all(_has_rows(item, count) for item in value)


def _content(value: Any, where: str) -> Any:
    """Returns the content of a value as lists, tuples, strings and numbers, whose `repr` is unambiguous."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, _KNOWN_BY_REPR) or value is None:
        return type(value).__name__, repr(value)
    if _is_array(value):
        array, dtype = _array_of(value)
        if array.dtype.hasobject:
            return "objects", array.shape, _content(array.reshape(-1).tolist(), where)
        return "array", dtype, array.shape, hashlib.blake2b(array.tobytes(), digest_size=_BYTES).digest()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        keys = sorted(value, key=lambda key: (type(key).__name__, str(key)))
        return "mapping", [(_content(key, where), _content(value[key], f"{where}[{key!r}]")) for key in keys]
    if isinstance(value, (list, tuple)):
        return [_content(item, f"{where}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return "set", sorted(repr(_content(item, where)) for item in value)
    found = f"{type(value).__module__}.{type(value).__qualname__}"
    message = f"`{where}` must contain tensors, arrays, mappings, lists, strings or numbers, got {found}"
    raise ConfigError(message, hint="pass `samples`, a function that returns what to compare of a batch")


def _is_array(value: Any) -> bool:
    torch = sys.modules.get("torch")  # tensors exist only if torch is imported
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def _array_of(value: Any) -> tuple[np.ndarray[Any, Any], str]:
    """Returns the values of an array or tensor in native byte order, and the name of its dtype."""
    if isinstance(value, np.ndarray):
        native = value.dtype.newbyteorder("=")
        return value.astype(native, copy=False), str(native)
    torch: Any = sys.modules["torch"]
    tensor = value.detach().to_dense() if value.layout != torch.strided else value.detach()
    if tensor.dtype == torch.bfloat16 or (tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point):
        tensor = tensor.float()  # exact; NumPy lacks these dtypes
    return tensor.numpy(force=True), str(value.dtype).removeprefix("torch.")
