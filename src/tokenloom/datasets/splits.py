"""Parses split weights and computes the elements of train, valid and test."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.numbers import Item, finite_or_none, items_of, parse_number, quoted

SplitMatrix = list[tuple[float, float] | None]


class Split(Enum):
    """One of the three parts of a dataset; equal to the member with the same name in the reference's `Split`."""

    train = 0
    valid = 1
    test = 2

    def __eq__(self, other: object) -> bool:
        if type(other) is Split or not isinstance(other, Enum) or type(other).__name__ != "Split":
            return True if self is other else NotImplemented
        return self.name == other.name

    __hash__ = Enum.__hash__  # the hash of the name


def split_text(split: str | Sequence[float]) -> str:
    """Returns split weights as comma-separated text, the form in settings and cache keys.

    Example:
        >>> split_text((98, 1, 0.5))
        '98,1,0.5'
    """
    if isinstance(split, str):
        return split
    weights = None
    if isinstance(split, (Sequence, np.ndarray)) and not isinstance(split, bytes):
        weights = [finite_or_none(weight) for weight in split]
    if weights is None or None in weights:
        raise ConfigError(f"`split`: must be weights, got {split!r}", hint='pass weights such as "98,1,1"')
    return ",".join(np.format_float_positional(weight or 0.0, trim="-") for weight in weights)


def parse_and_normalize_split(split: str | Sequence[float]) -> list[float]:
    """Returns the fractions of train, valid and test, with a sum of 1.

    In a text, a weight is digits with at most one dot. Commas, slashes or spaces separate weights; a trailing comma is
    ignored. The reference interprets every group of digits and dots as a weight.

    Example:
        >>> parse_and_normalize_split("3, 1")
        [0.75, 0.25, 0.0]
    """
    split = split_text(split)
    if "-" in split:
        raise ConfigError(f"`split`: weights must be 0 or more, got {split!r}")
    items = items_of(split, separators=",/", blanks_separate=True)
    if not items[-1].text:
        del items[-1]
    if not 1 <= len(items) <= len(Split):
        raise ConfigError(f"`split`: must have 1 to {len(Split)} weights, got {len(items)} in {quoted(split)}")
    weights = [_weight(item, split) for item in items] + [0.0] * (len(Split) - len(items))
    # NumPy's sum and division, as in the reference: another order of additions could change the last bit.
    array = np.array(weights, dtype=np.float64)
    with np.errstate(over="ignore"):
        total = np.sum(array)
    if not 0 < total < np.inf:
        raise ConfigError(f"`split`: the sum of weights must be above 0 and finite, got {quoted(split)}")
    shares: list[float] = (array / total).tolist()
    return shares


def _weight(item: Item, split: str) -> float:
    where = f"split {quoted(split)}: {item.place}"
    if re.search("[eE+]", item.text):  # the reference would read two weights, or ignore the sign
        parse_number(item.text, where)
        raise ConfigError(f"{where}: must be a plain number", hint="write it without sign and exponent")
    return parse_number(item.text, where)


def split_matrix(shares: Sequence[float], within: Sequence[float] | None = None) -> SplitMatrix:
    """Returns each split's interval in [0, 1] by `shares`, intersected with the interval by `within`; None if empty.

    Example:
        >>> split_matrix([0.75, 0.25, 0.0])
        [(0, 0.75), (0.75, 1.0), None]
        >>> split_matrix([0.75, 0.25, 0.0], within=[0.5, 0.5, 0.0])
        [(0, 0.5), (0.75, 1.0), None]
    """
    first, second = ([*itertools.pairwise(itertools.accumulate([0, *each]))] for each in (shares, within or shares))
    both = [(max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(first, second, strict=True)]
    return [None if stop <= start else (start, stop) for start, stop in both]


def split_range(bounds: tuple[float, float], num_elements: int) -> range:
    """Returns the range of elements that an interval of the split matrix selects."""
    start, stop = (round(bound * float(num_elements)) for bound in bounds)
    return range(start, stop)


def split_indices(bounds: tuple[float, float], num_elements: int) -> NDArray[Any]:
    """Returns the elements that an interval of the split matrix selects: int32, or int64 if `num_elements` >= 2**31."""
    chosen = split_range(bounds, num_elements)
    dtype = np.int32 if num_elements <= np.iinfo(np.int32).max else np.int64
    return np.arange(chosen.start, chosen.stop, dtype=dtype)
