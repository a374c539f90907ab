"""Prefetch of later batches from object storage, in the process that will read these batches.

A loader assigns batches to its workers in turn. Each batch also has the positions of later batches of the same worker,
which the worker announces to `dataset.will_need`. A wrong announcement costs time, but never changes a batch.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tokenloom.datasets.protocols import Announces, is_remote_dataset
from tokenloom.optional import require
from tokenloom.storage.objects import share_budgets
from tokenloom.storage.statistics import SourceStatistics, storage_statistics

Batch = Sequence[int | None]

_SAMPLES_AHEAD = 1024
_BATCHES_AHEAD = 16


class AnnouncedBatch(list[Any]):
    """The positions of a batch; `upcoming` has the positions of later batches, which the worker must announce."""

    def __init__(self, positions: Iterable[int | None], upcoming: Sequence[Batch]) -> None:
        super().__init__(positions)
        self.upcoming = upcoming


class AnnouncingSampler:
    """A sampler that adds to each batch the later batches that the batch's worker must announce.

    Each worker announces `num_ahead` batches; if None, all workers together announce 1024 samples, at least 16 batches.
    """

    def __init__(self, sampler: Iterable[Batch], *, num_workers: int, num_ahead: int | None = None) -> None:
        self.sampler = sampler
        self.num_workers: int = max(1, num_workers)
        self.num_ahead = num_ahead

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[AnnouncedBatch]:
        batches = iter(self.sampler)
        window: deque[Batch] = deque(itertools.islice(batches, 1))
        num_samples = len(window[0]) if window else 1
        num_batches = max(_BATCHES_AHEAD, -(-_SAMPLES_AHEAD // max(1, num_samples)))
        num_ahead = -(-num_batches // self.num_workers) if self.num_ahead is None else max(1, self.num_ahead)
        depth = self.num_workers * num_ahead
        window.extend(itertools.islice(batches, depth))
        number = 0
        while window:
            first = 0 if number < self.num_workers else depth
            upcoming = list(itertools.islice(window, first, None, self.num_workers))
            positions = window.popleft()
            window.extend(itertools.islice(batches, 1))
            yield AnnouncedBatch(positions, upcoming)
            number += 1


class ReadAheadDataset:
    """A dataset that announces later batches when it reads a batch, and counts a worker's reads from object storage."""

    def __init__(self, dataset: Announces, *, num_workers: int) -> None:
        self.dataset: Any = dataset
        self.num_workers = num_workers
        self.remote_paths: list[str] = list(dict.fromkeys(dataset.remote_paths))
        self._reported: dict[str, Any] = {}
        torch = require("torch", extra="torch")
        shape = (num_workers, len(self.remote_paths), len(SourceStatistics().numbers()))
        self.counters: Any = torch.zeros(shape, dtype=torch.float64).share_memory_()

    def __getstate__(self) -> dict[str, Any]:
        return {"_environment": _Environment()} | self.__dict__  # first, since unpickling the dataset needs credentials

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, position: int | None) -> Any:
        return self.dataset[position]

    def __getitems__(self, batch: Batch) -> Any:
        share_budgets(max(1, self.num_workers))
        if isinstance(batch, AnnouncedBatch):
            for upcoming in batch.upcoming:
                self.dataset.will_need(upcoming)
        samples = self.dataset.__getitems__(list(batch))
        worker = require("torch.utils.data", extra="torch").get_worker_info()
        own = storage_statistics() if worker is not None else {}
        for number, path in enumerate(self.remote_paths):
            if path in own:  # adds the reads since the last batch to the shared counters
                numbers = self.counters.new_tensor(own[path].numbers())
                self.counters[worker.id, number] += numbers - self._reported.get(path, 0)
                self._reported[path] = numbers
        return samples


class _Environment:
    """Copies environment variables of this process to a worker, because the fork server may lack recent credentials."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _set_environment, (dict(os.environ),)


def _set_environment(environment: dict[str, str]) -> None:
    os.environ.update(environment)


def worker_context(dataset: Any, *, num_workers: int) -> str | None:
    """Returns how workers start: "forkserver" for object storage, which forked workers cannot read, else None."""
    if not num_workers or not is_remote_dataset(dataset):
        return None
    return "forkserver" if multiprocessing.get_start_method(allow_none=True) in (None, "fork") else None


def announce_ahead(dataset: Any, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yields the batches unchanged; for data in object storage, first announces later batches to `dataset`."""
    if not is_remote_dataset(dataset):
        yield from batches
        return
    for batch in AnnouncingSampler(batches, num_workers=1):
        for upcoming in batch.upcoming:
            dataset.will_need(upcoming)
        yield list(batch)


def loader_statistics(loader: Any) -> dict[str, SourceStatistics]:
    """Returns {address: statistics} of reads from object storage by a loader and its workers; empty for local data.

    Args:
        loader: a `ThreadLoader`, or the result of `build_dataloader`.
    """
    dataset, own = loader.dataset, storage_statistics()
    found = {path: own.get(path, SourceStatistics()) for path in dataset.remote_paths}
    if isinstance(dataset, ReadAheadDataset):
        for path, numbers in zip(dataset.remote_paths, dataset.counters.sum(dim=0).tolist(), strict=True):
            found[path] += SourceStatistics.from_numbers(numbers)
    return found
