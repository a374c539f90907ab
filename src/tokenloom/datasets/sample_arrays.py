"""Describes and allocates the arrays of samples, and validates arrays that a caller passes."""

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
"""A function that allocates an array of a shape and dtype: `numpy.empty`, or one for page-locked memory."""

INTEGERS = (np.dtype(np.int64), np.dtype(np.int32))
"""Possible dtypes of tokens, labels and position ids; the default comes first."""

TOKEN_DIGESTS = "token_digests"
"""Key of the array, uint64[num_samples, 2], that receives a digest of each row of tokens."""

LARGE_BYTES = 128 << 10
"""Minimum size of arrays whose memory `recycled_empty` reuses; malloc returns larger freed blocks to the system."""

_masks: WeakValueDictionary[int, NDArray[np.bool_]] = WeakValueDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Describes one array of a sample; `shape` has no batch axis.

    A dtype of None stands for the caller's choice of int64 or int32. `constant` is a read-only array that all samples
    share; None if the array is filled for each sample.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    constant: NDArray[Any] | None = None


def sample_outputs(length: int, *, boundaries: bool, mask: Output | None = None) -> list[Output]:
    """Describes tokens, labels, loss_mask, position_ids and `mask`; if `boundaries`, also cu_seqlens and max_seqlen."""

    def output(name: str, dtype: Any = None, shape: tuple[int, ...] = (length,)) -> Output:
        return Output(name=name, shape=shape, dtype=dtype and np.dtype(dtype))

    outputs = [output("tokens"), output("labels"), *([] if mask is None else [mask])]
    outputs += [output("loss_mask", np.float32), output("position_ids")]
    if boundaries:
        outputs += [output("cu_seqlens", np.int32, (length + 1,)), output("max_seqlen", np.int32, ())]
    return outputs


_Plan = list[tuple[str, tuple[int, ...], np.dtype[Any], MakeArray]]
"""Name, shape, dtype and allocating function of each array."""


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Describes the arrays of a sample in order, and allocates them for samples and for batches."""

    outputs: tuple[Output, ...]
    _plans: dict[tuple[tuple[int, ...], np.dtype[Any], MakeArray], _Plan] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def allocate(self, leading: tuple[int, ...], *, integers: np.dtype[Any], empty: MakeArray = np.empty) -> Sample:
        """Returns uninitialised arrays with the `leading` axes, and shared constant arrays; 0.2 us per small array."""
        sample: Sample = {}
        arrays = self._plans.get((leading, integers, empty)) or self._plan(leading, integers, empty)
        for name, shape, dtype, make in arrays:  # faster than a dict comprehension
            sample[name] = make(shape, dtype)
        return sample

    def _plan(self, leading: tuple[int, ...], integers: np.dtype[Any], empty: MakeArray) -> _Plan:
        plan: _Plan = []
        for each in self.outputs:
            shape, dtype = leading + each.shape, integers if each.dtype is None else each.dtype
            make = empty
            if each.constant is not None:
                make = partial(lambda array, *_: array, np.broadcast_to(each.constant, shape))
            elif empty is recycled_empty and math.prod(shape) * dtype.itemsize < LARGE_BYTES:
                make = np.empty
            plan.append((each.name, shape, dtype, make))
        if len(self._plans) > 16:  # batches of many sizes must not fill the memory
            self._plans.clear()
        self._plans[leading, integers, empty] = plan
        return plan

    def check(self, out: Mapping[str, Any], count: int, *, name: str) -> None:
        """Raises if the arrays of a caller do not fit a batch of `count` samples."""
        hint = f"make the arrays with `allocate_batch({count})`"
        if len(out) != len(self.outputs) or any(output.name not in out for output in self.outputs):
            expected = ", ".join(sorted(output.name for output in self.outputs))
            found = ", ".join(sorted(out))
            raise ConfigError(f"`out` for {name}: expected the arrays {expected}, found {found}", hint=hint)
        integers = getattr(out["tokens"], "dtype", None)
        if integers not in INTEGERS:
            integers = INTEGERS[0]
        for output in self.outputs:
            dtype = integers if output.dtype is None else output.dtype
            array, shape = out[output.name], (count, *output.shape)
            if not _fits(array, dtype, shape, output.constant):
                kind = "a writable, contiguous array" if output.constant is None else "the constant array"
                message = f"`{output.name}` in `out`: samples of {name} need {kind}, {dtype}{list(shape)}"
                raise ConfigError(f"{message}, got {_described(array)}", hint=hint)


def _fits(array: Any, dtype: np.dtype[Any], shape: tuple[int, ...], constant: NDArray[Any] | None) -> bool:
    """Returns whether an array can be filled; takes about 1 µs."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        return False
    if constant is not None:
        return not array.size or np.may_share_memory(array, constant)
    flags = array.flags
    return flags.c_contiguous and flags.writeable


def _described(array: Any) -> str:
    if not isinstance(array, np.ndarray):
        return type(array).__name__
    kinds = "" if array.flags.writeable else "read-only ", "" if array.flags.c_contiguous else "non-contiguous "
    return f"{''.join(kinds)}{array.dtype}{list(array.shape)}"


def recycled_empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Returns an uninitialised array; a large one reuses the memory of freed arrays (up to 64 MiB per process)."""
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if num_bytes < LARGE_BYTES:
        return np.empty(shape, dtype)
    array: NDArray[Any] = recycled_bytes(num_bytes).view(dtype).reshape(shape)
    return array


def integers_of(dtype: DTypeLike) -> np.dtype[Any]:
    """Validates `integer_dtype` and returns it as a NumPy dtype."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found not in INTEGERS:
        raise ConfigError(f"`integer_dtype`: must be int64 or int32, got {dtype!r}")
    return found


def causal_mask(length: int) -> NDArray[np.bool_]:
    """Returns the causal mask bool[1, length, length], True above the diagonal; read-only, shared by all callers."""
    if (mask := _masks.get(length)) is None:
        mask = np.triu(np.ones((1, length, length), dtype=np.bool_), k=1)
        _masks[length] = mask
    return np.broadcast_to(mask, mask.shape)
