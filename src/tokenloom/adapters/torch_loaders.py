"""torch: batches as an `IterableDataset`, and torchdata's `StatefulDataLoader`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.loading.loader import loader_arguments
from tokenloom.loading.read_ahead import Batch, announce_ahead
from tokenloom.loading.thread_loader import BatchBuffers
from tokenloom.numbers import checked_integer
from tokenloom.optional import require

_VERSION = 1


def iterable_dataset(dataset: Any, sampler: Iterable[Batch]) -> Any:
    """Returns a `torch.utils.data.IterableDataset` that yields a sampler's batches as dicts of torch tensors.

    Pass the result to torch's `DataLoader` with `batch_size=None`. Worker w of W yields batches w, w + W, w + 2W, …;
    `DataLoader` restores the sampler's order. torchdata's `StatefulDataLoader` can resume if the number of workers
    does not change. Prefer `ThreadLoader` or `build_dataloader` if the framework accepts them.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader
        >>> batches = iterable_dataset([{"tokens": torch.tensor([k])} for k in range(6)], [[0, 1], [2, 3], [4, 5]])
        >>> [batch["tokens"].flatten().tolist() for batch in DataLoader(batches, batch_size=None)]
        [[0, 1], [2, 3], [4, 5]]
    """
    base = require("torch.utils.data", extra="torch").IterableDataset
    joined = type("IterableBatches", (BatchStream, base), {"__reduce__": _reduce, "__doc__": BatchStream.__doc__})
    return joined(dataset, sampler)


class BatchStream:
    """An `IterableDataset` of a sampler's batches; in a worker process, it has only the batches of this worker."""

    def __init__(self, dataset: Any, sampler: Iterable[Batch]) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self._num_yielded = self._num_to_skip = 0

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """Yields this worker's batches, from the start or from a loaded state."""
        worker = require("torch.utils.data", extra="torch").get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        self._num_yielded, self._num_to_skip = self._num_to_skip, 0
        buffers = BatchBuffers(self.dataset)
        batches = itertools.islice(self.sampler, first + self._num_yielded * step, None, step)
        for positions in announce_ahead(self.dataset, batches):
            batch, _ = buffers.fill(self._num_yielded, positions)
            self._num_yielded += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return {"version": _VERSION, "num_yielded": self._num_yielded}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration skip the batches that were yielded before `state` was saved."""
        if state.get("version") != _VERSION:
            raise ConfigError(f"`state`: must be a state of version {_VERSION}, got {dict(state)!r}")
        self._num_to_skip = self._num_yielded = checked_integer("num_yielded", state["num_yielded"], at_least=0)


def _reduce(stream: BatchStream) -> Any:
    """Pickles a stream as a call to `iterable_dataset`, because the stream's class is created at run time."""
    return iterable_dataset, (stream.dataset, stream.sampler), vars(stream)


def stateful_dataloader(
    dataset: Any, sampler: Iterable[Batch], *, num_workers: int = 0, pin_memory: bool | None = None, **settings: Any
) -> Any:
    """Returns a `torchdata.stateful_dataloader.StatefulDataLoader` that yields one dict of tensors per micro-batch.

    Unlike a loader of `build_dataloader`, this loader can resume: after `load_state_dict`, iteration continues with the
    next batch, if the number of workers is the same. `ThreadLoader` can resume, too, without torchdata or workers.
    `settings` are further arguments of `StatefulDataLoader`, such as `snapshot_every_n_steps` and `prefetch_factor`.
    """
    loader_class = require("torchdata.stateful_dataloader", extra="torchdata").StatefulDataLoader
    arguments = loader_arguments(dataset, sampler, num_workers=num_workers, pin_memory=pin_memory)
    return loader_class(**{**arguments, **settings})
