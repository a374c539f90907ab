"""The arrays that samples are filled into: which a sample has, making them, and checking those that a caller brings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tokenloom._native import recycled_bytes
from tokenloom.datasets.tensors import Sample
from tokenloom.errors import ConfigError

MakeArray = Callable[[tuple[int, ...], Any], NDArray[Any]]
"""Gives an array of a shape and dtype, such as `numpy.empty`, or one in page-locked memory."""

INTEGERS = (np.dtype(np.int64), np.dtype(np.int32))
"""What tokens, labels and positions can be wanted as; the first one unless something else is said."""

TOKEN_DIGESTS = "token_digests"
"""What kernels find, among the arrays they fill, to put a digest of each row of tokens into: uint64[num_samples, 2]."""

LARGE_BYTES = 128 << 10
"""From here on malloc returns the memory of arrays to the system, and `recycled_empty` keeps it."""

_masks: WeakValueDictionary[int, NDArray[np.bool_]] = WeakValueDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One array of a sample.

    Attributes:
        name: name under which a sample has it.
        shape: shape of one sample, without a batch axis.
        dtype: None for integers of the width that the caller wants.
        constant: what all samples share, read-only; None for what is filled for each.
        is_zero: whether new arrays are zeros, as no kernel fills them; else they hold whatever lay in memory.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    constant: NDArray[Any] | None = None
    is_zero: bool = False


_Plan = list[tuple[str, tuple[int, ...], np.dtype[Any], MakeArray]]
"""Name, shape and dtype of each array, and what makes it."""


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """The arrays of a sample, in the order in which a sample has them; a batch has the same with an axis in front."""

    outputs: tuple[Output, ...]
    _plans: dict[tuple[tuple[int, ...], np.dtype[Any], MakeArray], _Plan] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def allocate(self, leading: tuple[int, ...], *, integers: np.dtype[Any], empty: MakeArray = np.empty) -> Sample:
        """Returns new arrays, of which only the constant ones hold something; 0.2 us for each that is small."""
        sample: Sample = {}
        arrays = self._plans.get((leading, integers, empty)) or self._plan(leading, integers, empty)
        for name, shape, dtype, make in arrays:  # faster than a comprehension
            sample[name] = make(shape, dtype)
        return sample

    def _plan(self, leading: tuple[int, ...], integers: np.dtype[Any], empty: MakeArray) -> _Plan:
        plan: _Plan = []
        for each in self.outputs:
            shape, dtype = leading + each.shape, integers if each.dtype is None else each.dtype
            make = empty
            if each.constant is not None:
                make = partial(lambda array, *_: array, np.broadcast_to(each.constant, shape))
            elif each.is_zero:
                make = partial(_zeros, empty)
            elif empty is recycled_empty and math.prod(shape) * dtype.itemsize < LARGE_BYTES:
                make = np.empty
            plan.append((each.name, shape, dtype, make))
        if len(self._plans) > 16:  # batches of many sizes
            self._plans.clear()
        self._plans[leading, integers, empty] = plan
        return plan

    def check(self, out: Mapping[str, Any], count: int, *, name: str) -> None:
        """Checks that a caller's arrays can take a batch of `count` samples."""
        if len(out) != len(self.outputs) or any(output.name not in out for output in self.outputs):
            expected = ", ".join(sorted(output.name for output in self.outputs))
            message = f"expected arrays for {expected} to fill with samples of {name}, found {', '.join(sorted(out))}"
            raise ConfigError(message, hint=f"make the arrays with `allocate_batch({count})`")
        integers = getattr(out["tokens"], "dtype", None)
        if integers not in INTEGERS:
            integers = INTEGERS[0]
        for output in self.outputs:
            dtype = integers if output.dtype is None else output.dtype
            array, shape = out[output.name], (count, *output.shape)
            if not _fits(array, dtype, shape, output.constant):
                kind = "a writable and contiguous array" if output.constant is None else "the constant array"
                message = (
                    f"expected {kind} of {dtype}{list(shape)} as `{output.name}` of a batch to fill with samples of "
                    f"{name}, found {_described(array)}"
                )
                raise ConfigError(message, hint=f"make the arrays with `allocate_batch({count})`")


def _zeros(empty: MakeArray, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    array = empty(shape, dtype)
    array.fill(0)
    return array


def _fits(array: Any, dtype: np.dtype[Any], shape: tuple[int, ...], constant: NDArray[Any] | None) -> bool:
    """Whether an array can be filled; about 1 µs, as this is asked for each array of each batch."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        return False
    if constant is not None:
        return not array.size or np.may_share_memory(array, constant)
    flags = array.flags
    return flags.c_contiguous and flags.writeable


def _described(array: Any) -> str:
    if not isinstance(array, np.ndarray):
        return type(array).__name__
    kinds = [
        *([] if array.flags.writeable else ["read-only"]),
        *([] if array.flags.c_contiguous else ["non-contiguous"]),
    ]
    return " ".join([*kinds, f"{array.dtype}{list(array.shape)}"])


def recycled_empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Returns a new array, not filled, in the memory of a large one that was dropped, where there is one.

    The array is the caller's alone: only when nothing refers to it, no view and no tensor, is its memory used again.
    Some 64 MiB of dropped arrays are kept in each process.
    """
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if num_bytes < LARGE_BYTES:
        return np.empty(shape, dtype)
    array: NDArray[Any] = recycled_bytes(num_bytes).view(dtype).reshape(shape)
    return array


def integers_of(dtype: DTypeLike) -> np.dtype[Any]:
    """Returns the dtype of tokens, labels and positions that a caller asks for."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found not in INTEGERS:
        message = f"expected int64 or int32 as integer_dtype, found {dtype!r}"
        raise ConfigError(message)
    assert found is not None
    return found


def causal_mask(length: int) -> NDArray[np.bool_]:
    """Returns bool[1, length, length], read-only: True above the diagonal. All datasets of a process share it."""
    if (mask := _masks.get(length)) is None:
        mask = np.triu(np.ones((1, length, length), dtype=np.bool_), k=1)
        _masks[length] = mask
    return np.broadcast_to(mask, mask.shape)
