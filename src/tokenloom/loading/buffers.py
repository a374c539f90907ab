"""Where batches are put: into new memory each, or into a ring of buffers that are used again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tokenloom.datasets.outputs import MakeArray, integers_of
from tokenloom.datasets.protocols import FillsBatches
from tokenloom.datasets.shortcuts import FILLS, ask_each, digests_tokens, fills_batches, hook_of, must_be_asked
from tokenloom.datasets.tensors import Sample, to_tensors
from tokenloom.errors import ConfigError
from tokenloom.loading.batch_digest import digests_of_batch
from tokenloom.loading.loader import collate
from tokenloom.optional import require


class BatchBuffers:
    """Fills batches for a loader. Safe from several threads, each with another batch.

    Args:
        dataset: gives batches by positions; it must fill given arrays (`fills_batches`) for all but the defaults.
        pin_memory: whether batches lie in page-locked memory.
        integer_dtype: dtype of tokens, labels and positions.

    Raises:
        ConfigError: the dataset cannot fill given arrays, or integer_dtype is neither int64 nor int32.
    """

    def __init__(self, dataset: Any, *, pin_memory: bool, integer_dtype: DTypeLike) -> None:
        self._dataset = dataset
        self._pin_memory = pin_memory
        self._integers = integers_of(integer_dtype)
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
        """Returns the tensors of a batch, in memory of their own.

        Args:
            number: number of the batch in this iteration, from 0; what follows each other.
            positions: positions of its samples.
            digests: zeros, uint64[len(positions), 2], where a dataset that can puts digests of its tokens.
        """
        more = {} if digests is None else {"digests": digests}
        if must_be_asked(self._dataset):
            return self._collated(positions)
        if self._fills and (self._pin_memory or self._integers != np.int64):
            return to_tensors(self._dataset.batch(positions, out=self._allocate(len(positions)), **more))
        tensors = to_tensors(self._dataset.batch(positions, **more))
        return {name: tensor.pin_memory() for name, tensor in tensors.items()} if self._pin_memory else tensors

    def _collated(self, positions: Sequence[int | None]) -> dict[str, Any]:
        """Returns a batch of what `dataset[k]` gives, as a DataLoader would make it."""
        if self._integers != np.int64:
            check_fills(self._dataset, "integer_dtype")
        batch: dict[str, Any] = collate(ask_each(self._dataset, positions))
        if self._pin_memory:
            batch = require("torch.utils.data._utils.pin_memory", extra="torch").pin_memory(batch)
        return batch

    def _allocate(self, count: int) -> Sample:
        batch: Sample = self._dataset.allocate_batch(count, integer_dtype=self._integers, empty=self._empty)
        return batch


@dataclass(slots=True)
class _Slot:
    """Arrays of a batch, and the tensors over as many of their rows as the last batch had."""

    arrays: Sample = field(default_factory=dict)
    num_rows: int = 0
    rows: Sample = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)
    num_used: int = -1


class RingBuffers(BatchBuffers):
    """Fills batches into a ring: batch n + num_slots overwrites batch n. Nothing is allocated once each slot was used.

    New memory costs a page fault, and the zeroing of a page, for every 4096 bytes; a dense mask consists of nothing
    else.

    Args:
        dataset: must fill given arrays.
        num_slots: batches in the ring.
        pin_memory, integer_dtype: the same as for `BatchBuffers`.
    """

    def __init__(self, dataset: Any, *, num_slots: int, pin_memory: bool, integer_dtype: DTypeLike) -> None:
        super().__init__(dataset, pin_memory=pin_memory, integer_dtype=integer_dtype)
        check_fills(dataset, "reuse_after")
        self._slots = [_Slot() for _ in range(num_slots)]

    def fill(
        self, number: int, positions: Sequence[int | None], digests: NDArray[np.uint64] | None = None
    ) -> dict[str, Any]:
        """Returns the tensors of a batch, which are valid until batch `number + num_slots` is filled."""
        slot = self._slots[number % len(self._slots)]
        count = len(positions)
        if slot.num_rows < count:
            slot.arrays, slot.num_rows, slot.num_used = self._allocate(count), count, -1
        if slot.num_used != count:
            slot.rows = {name: array[:count] for name, array in slot.arrays.items()}
            slot.tensors, slot.num_used = to_tensors(slot.rows), count
        if digests is None:
            self._dataset.batch(positions, out=slot.rows)
        else:
            self._dataset.batch(positions, out=slot.rows, digests=digests)
        return dict(slot.tensors)


def check_fills(dataset: Any, setting: str) -> None:
    """Checks that a dataset fills given arrays, as a setting needs it.

    Raises:
        ConfigError: it does not.
    """
    if not fills_batches(dataset):
        message = f"expected a dataset that fills given arrays, for `{setting}`, found {type(dataset).__name__}"
        if isinstance(dataset, FillsBatches) and (hook := hook_of(dataset, FILLS)) is not None:
            message += f", whose samples are those of `{hook}`"
        raise ConfigError(message, hint=f"leave `{setting}` away; GPT datasets and blends of them know it")


def _pinned_array(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    torch = require("torch", extra="torch")
    kind = torch.from_numpy(np.empty(0, dtype=dtype)).dtype
    array: NDArray[Any] = torch.empty(shape, dtype=kind, pin_memory=True).numpy()
    return array
