"""Where batches are put: into new memory each, or into a ring of buffers that are used again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tokenloom.datasets.outputs import MakeArray, integers_of
from tokenloom.datasets.protocols import FillsBatches
from tokenloom.datasets.shortcuts import batch_of, digests_tokens, fills_batches, hook_of, must_be_asked
from tokenloom.datasets.tensors import Sample, to_tensors
from tokenloom.errors import ConfigError
from tokenloom.loading.digest import digests_of_batch
from tokenloom.loading.loader import collate
from tokenloom.optional import is_installed, require

Tensors = Literal["torch", "numpy"]
"""What batches are made of."""


class BatchBuffers:
    """Fills batches for a loader. Safe from several threads, each with another batch.

    Args:
        dataset: gives batches by positions; it must fill given arrays (`fills_batches`) for all but the defaults.
        tensors: what batches are made of.
        pin_memory: whether batches lie in page-locked memory, which torch makes.
        integer_dtype: dtype of tokens, labels and positions.

    Raises:
        ConfigError: the dataset cannot fill given arrays, or integer_dtype is neither int64 nor int32.
    """

    def __init__(self, dataset: Any, *, tensors: Tensors, pin_memory: bool, integer_dtype: DTypeLike) -> None:
        self._dataset = dataset
        self._as_tensors: Callable[[Sample], Sample] = to_tensors if tensors == "torch" else dict
        self._collate = self._collated if tensors == "torch" else self._stacked
        self._pin_memory = pin_memory
        self._integers = integers_of(integer_dtype)
        self._must_be_asked = must_be_asked(dataset)
        self._fills = fills_batches(dataset)
        if self._integers != np.int64:
            check_fills(dataset, "integer_dtype")
        self._digests = digests_tokens(dataset)
        self._empty: MakeArray = _pinned_array if pin_memory else np.empty

    def fill_and_digest(
        self, number: int, positions: Sequence[int | None]
    ) -> tuple[dict[str, Any], NDArray[np.uint64] | None]:
        """Returns a batch as `fill` does, and digests of the tokens of each sample; None if these have no tokens."""
        count = len(positions)
        if self._digests:
            digests = np.zeros((count, 2), dtype=np.uint64)
            batch = self.fill(number, positions, digests)
            if count and digests.item(0):
                return batch, digests
        else:
            batch = self.fill(number, positions)
        return batch, digests_of_batch(batch, count)  # which were not made while tokens were filled

    def fill(
        self, number: int, positions: Sequence[int | None], digests: NDArray[np.uint64] | None = None
    ) -> dict[str, Any]:
        """Returns the tensors or arrays of a batch, in memory of their own.

        Args:
            number: number of the batch in this iteration, from 0; what follows each other.
            positions: positions of its samples.
            digests: zeros, uint64[len(positions), 2], where a dataset that can puts digests of its tokens.
        """
        more = {} if digests is None else {"digests": digests}
        if self._must_be_asked:
            return self._collate(positions)
        if self._fills and (self._pin_memory or self._integers != np.int64):
            arrays = self._dataset.batch(positions, out=self._allocate(len(positions)), **more)
            return _pinned_tensors(arrays) if self._pin_memory else self._as_tensors(arrays)
        tensors = self._as_tensors(self._dataset.batch(positions, **more))
        return {name: tensor.pin_memory() for name, tensor in tensors.items()} if self._pin_memory else tensors

    def _collated(self, positions: Sequence[int | None]) -> dict[str, Any]:
        """Returns a batch of what `dataset[k]` gives, as a DataLoader would make it."""
        batch: dict[str, Any] = collate([self._dataset[position] for position in positions])
        if self._pin_memory:
            batch = require("torch.utils.data._utils.pin_memory", extra="torch").pin_memory(batch)
        return batch

    def _stacked(self, positions: Sequence[int | None]) -> dict[str, Any]:
        """Returns the same as NumPy arrays."""
        return batch_of(self._dataset, positions)

    def _allocate(self, count: int) -> Sample:
        batch: Sample = self._dataset.allocate_batch(count, integer_dtype=self._integers, empty=self._empty)
        return batch


class RingBuffers(BatchBuffers):
    """Fills batches into a ring: batch n + num_slots overwrites batch n. Nothing is allocated once each slot was used.

    New memory costs a page fault, and the zeroing of a page, for every 4096 bytes; a dense mask consists of nothing
    else.

    Args:
        dataset: must fill given arrays.
        num_slots: batches in the ring.
        tensors, pin_memory, integer_dtype: the same as for `BatchBuffers`.
    """

    def __init__(
        self, dataset: Any, *, num_slots: int, tensors: Tensors, pin_memory: bool, integer_dtype: DTypeLike
    ) -> None:
        super().__init__(dataset, tensors=tensors, pin_memory=pin_memory, integer_dtype=integer_dtype)
        check_fills(dataset, "reuse_after")
        self._slots: list[tuple[int, Sample]] = [(0, {})] * num_slots

    def fill(
        self, number: int, positions: Sequence[int | None], digests: NDArray[np.uint64] | None = None
    ) -> dict[str, Any]:
        """Returns the tensors or arrays of a batch, which are valid until batch `number + num_slots` is filled."""
        slot, count = number % len(self._slots), len(positions)
        if self._slots[slot][0] < count:
            self._slots[slot] = count, self._allocate(count)
        rows = {name: array[:count] for name, array in self._slots[slot][1].items()}
        self._dataset.batch(positions, out=rows, **({} if digests is None else {"digests": digests}))
        return self._as_tensors(rows)  # new ones each time: `share_memory_` and queues move a tensor elsewhere


def tensors_to_make(tensors: Tensors | None) -> Tensors:
    """Returns what batches are made of: as asked, else torch's tensors where torch is installed, else NumPy's arrays.

    Raises:
        ConfigError: it is neither.
        MissingExtraError: torch was asked for, and is not installed.
    """
    if tensors is None:
        return "torch" if is_installed("torch") else "numpy"
    if tensors not in get_args(Tensors):
        choices = " or ".join(map(repr, get_args(Tensors)))
        message = f"expected `tensors` to be {choices}, found {tensors!r}"
        raise ConfigError(message, hint='JAX and others take the arrays of `tensors="numpy"`')
    if tensors == "torch":
        require("torch", extra="torch")
    return tensors


def pins_memory(tensors: Tensors, *, pin_memory: bool | None) -> bool:
    """Returns whether batches lie in page-locked memory: as asked, else where CUDA is available to torch.

    Raises:
        ConfigError: it is asked for with NumPy's arrays.
    """
    if pin_memory is not None and type(pin_memory) is not bool:
        message = f"expected `pin_memory` to be True, False or None, found {pin_memory!r}"
        raise ConfigError(message)
    if tensors == "torch":
        return bool(require("torch", extra="torch").cuda.is_available()) if pin_memory is None else pin_memory
    if pin_memory:
        message = '`pin_memory` needs the tensors of torch, found `tensors="numpy"`'
        raise ConfigError(message, hint="leave `pin_memory` out")
    return False


def check_fills(dataset: Any, setting: str) -> None:
    """Checks that a dataset fills given arrays, as a setting needs it.

    Raises:
        ConfigError: it does not.
    """
    if not fills_batches(dataset):
        message = f"expected a dataset that fills given arrays, for `{setting}`, found {type(dataset).__name__}"
        if isinstance(dataset, FillsBatches) and (hook := hook_of(dataset, "fills_batches")) is not None:
            message += f", whose samples are those of `{hook}`"
        raise ConfigError(message, hint=f"leave `{setting}` away; GPT datasets and blends of them know it")


def _pinned_array(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    torch = require("torch", extra="torch")
    kind = torch.from_numpy(np.empty(0, dtype=dtype)).dtype
    array: NDArray[Any] = torch.empty(shape, dtype=kind, pin_memory=True).numpy()
    return array


def _pinned_tensors(arrays: Sample) -> dict[str, Any]:
    """Returns the tensors that arrays of `_pinned_array` are views of, and of other arrays what `to_tensors` does.

    torch keeps the memory of its own tensors until a copy to a device that does not block has ended, also one of a
    slice; of a slice of what it gets from NumPy it does not know whose memory that is.
    """
    torch = require("torch", extra="torch")
    pinned = {name: array.base for name, array in arrays.items() if isinstance(array.base, torch.Tensor)}
    return {**to_tensors(arrays), **pinned}
