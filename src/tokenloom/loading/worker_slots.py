"""How batches come back from worker processes: in memory that both sides map, so that only a few words are sent.

torch sends each tensor of a batch as a file of its own, which both sides open and map, and page by page the system
fetches zeros to be written over. Here every worker has some slots of one file in memory, for the life of the loader. It
copies a batch into one that is free, and sends where. A slot is free again once nothing refers to its tensors.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom.optional import require

SLOT_BYTES = 256 << 20
"""Addresses of a slot: memory is taken for what is written only. A larger batch is sent as torch does."""

_ALIGNMENT = 64
_PAGE = 4096

Key = tuple[int, int]

_HERE: weakref.WeakValueDictionary[Key, WorkerSlots] = weakref.WeakValueDictionary()
"""The slots that this process made, by the names that its workers know them by."""


class _Tensor(NamedTuple):
    """A tensor in a slot.

    Attributes:
        name: its name in the batch.
        dtype: its dtype, of torch.
        offset: its first byte in the slot.
        stored: the shape of what is stored.
        shape: its own shape, to which what is stored is expanded.
    """

    name: str
    dtype: Any
    offset: int
    stored: tuple[int, ...]
    shape: tuple[int, ...]


class WorkerSlots:
    """Slots for batches, some for each worker; made before the workers start, and held while they are wanted.

    A byte for each slot says whether it is taken: its worker sets it, and the process that made the slots clears it, so
    neither waits for the other. A worker that finds all of its slots taken, because batches are kept, sends a batch as
    torch does.

    Args:
        num_workers: worker processes.
        per_worker: slots of each: batches that are under way or in use.
        slot_bytes: the largest batch.

    Raises:
        OSError: the system gives no such memory.
    """

    def __init__(self, num_workers: int, per_worker: int, *, slot_bytes: int = SLOT_BYTES) -> None:
        handle = os.memfd_create("tokenloom-batches")
        self._open(handle, num_workers * per_worker, per_worker, slot_bytes)
        self.key: Key = os.getpid(), handle
        _HERE[self.key] = self

    def __reduce__(self) -> tuple[Any, ...]:
        """For a worker that does not inherit the memory: it maps it, too."""
        return _mapped, (self.key, reduction.DupFd(self._handle), self._count, self._per_worker, self._slot_bytes)

    def _open(self, handle: int, count: int, per_worker: int, slot_bytes: int) -> None:
        self._handle, self._count, self._per_worker, self._slot_bytes = handle, count, per_worker, slot_bytes
        weakref.finalize(self, os.close, handle).atexit = False
        self._start = -(-count // _PAGE) * _PAGE
        size = self._start + count * slot_bytes
        os.ftruncate(handle, size)
        self._memory: NDArray[np.uint8] = np.frombuffer(mmap.mmap(handle, size), dtype=np.uint8)

    def put(self, worker: int, batch: Any) -> Any:
        """Returns what a worker sends instead of a batch; the batch itself where it fits no slot.

        Args:
            worker: number of the worker.
            batch: what it made; anything but a dict of tensors on the CPU is sent as it is.
        """
        tensors = _layout_of(batch, self._slot_bytes)
        if tensors is None:
            return batch
        first = worker * self._per_worker
        taken = self._memory[first : first + self._per_worker]
        place = int(taken.argmin())
        if taken[place]:
            return batch
        taken[place] = 1
        slot = self._slot(first + place)
        for tensor in tensors:
            stored = batch[tensor.name]
            if tensor.stored != tensor.shape:
                stored = stored[tuple(slice(size) for size in tensor.stored)]
            _view(slot, tensor).copy_(stored)
        return _Sent(self.key, first + place, tensors)

    def take(self, number: int, tensors: Sequence[_Tensor]) -> dict[str, Any]:
        """Returns the batch of a slot, which is taken until nothing refers to the tensors."""
        slot = self._slot(number)
        weakref.finalize(slot, _set_free, self._memory, number, os.getpid()).atexit = False
        return {tensor.name: _view(slot, tensor).expand(tensor.shape) for tensor in tensors}

    def _slot(self, number: int) -> NDArray[np.uint8]:
        start = self._start + number * self._slot_bytes
        return self._memory[start : start + self._slot_bytes]


class SlotCollate:
    """Makes a batch of samples in a worker, and puts it into a slot.

    Args:
        collate: makes the batch.
        slots: where it is put.
    """

    def __init__(self, collate: Callable[[Any], Any], slots: WorkerSlots) -> None:
        self._collate = collate
        self._slots = slots

    def __call__(self, samples: Any) -> Any:
        """Returns what the worker sends."""
        worker = require("torch.utils.data", extra="torch").get_worker_info()
        return self._slots.put(worker.id, self._collate(samples))


class _Sent:
    """A batch in a slot, as it is sent: what comes out at the other end is the batch."""

    def __init__(self, *where: Any) -> None:
        self._where = where

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, self._where


def _received(key: Key, number: int, tensors: Sequence[_Tensor]) -> dict[str, Any]:
    return _HERE[key].take(number, tensors)


def _mapped(key: Key, handle: Any, count: int, per_worker: int, slot_bytes: int) -> WorkerSlots:
    slots = WorkerSlots.__new__(WorkerSlots)
    slots._open(handle.detach(), count, per_worker, slot_bytes)
    slots.key = key
    return slots


def _set_free(memory: NDArray[np.uint8], number: int, owner: int) -> None:
    """Makes a slot free, which no process that was forked while the batch was there may do."""
    if os.getpid() == owner:
        memory[number] = 0


def _layout_of(batch: Any, most_bytes: int) -> list[_Tensor] | None:
    """Returns where the tensors of a batch go; None for what is no dict of plain tensors, or too large."""
    torch = require("torch", extra="torch")
    if type(batch) is not dict:
        return None
    offset, layout = 0, []
    for name, tensor in batch.items():
        if type(tensor) is not torch.Tensor or tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return None
        if tensor.requires_grad or tensor.is_quantized:
            return None
        shape = tuple(tensor.shape)
        strides = zip(shape, tensor.stride(), strict=True)
        stored = tuple(min(size, 1) if stride == 0 else size for size, stride in strides)  # what all samples share
        layout.append(_Tensor(name, tensor.dtype, offset, stored, shape))
        offset += -(-tensor.element_size() * int(np.prod(stored, dtype=np.int64)) // _ALIGNMENT) * _ALIGNMENT
    return layout if offset <= most_bytes else None


def _view(slot: NDArray[np.uint8], tensor: _Tensor) -> Any:
    """Returns what is stored of a tensor, which keeps the slot."""
    torch = require("torch", extra="torch")
    count = int(np.prod(tensor.stored, dtype=np.int64))
    if not count:
        return torch.empty(tensor.stored, dtype=tensor.dtype)
    return torch.frombuffer(slot, dtype=tensor.dtype, count=count, offset=tensor.offset).view(tensor.stored)
