"""torch's DataLoader, whose workers put batches where this process maps them. Imported where torch is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from tokenloom.loading.worker_slots import SlotCollate, WorkerSlots

_BATCHES_IN_USE = 3
"""Batches of one worker that a loop may hold before they are sent as torch does."""


class SlotLoader(DataLoader):  # type: ignore[misc]
    """A DataLoader as any other; see `worker_slots` for how its workers send batches."""

    def __iter__(self) -> Iterator[Any]:
        """Returns an iterator of torch."""
        is_going_on = self.persistent_workers and self._iterator is not None
        if not self.num_workers or is_going_on:
            going_on: Iterator[Any] = super().__iter__()
            return going_on
        slots = WorkerSlots(self.num_workers, self.prefetch_factor + _BATCHES_IN_USE)
        collate: Any = self.collate_fn
        self.collate_fn: Any = SlotCollate(collate, slots)
        try:
            iterator: Iterator[Any] = super().__iter__()
        finally:
            self.collate_fn = collate
        iterator.slots = slots  # type: ignore[attr-defined] # which live as long as it does
        return iterator
