"""Ray: documents and samples as Ray datasets, and the loader of a Ray Train worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from tokenloom.adapters.arrow import DocumentRows, named_samples
from tokenloom.errors import ConfigError
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.optional import require


def ray_samples(dataset: Any, *, num_samples: int | None = None, num_blocks: int | None = None) -> Any:
    """Returns the samples of a dataset, blend or run as a `ray.data.Dataset` with the columns of `sample_batches`.

    Each task unpickles the dataset and opens its files, so all nodes need access to the files.

    Args:
        dataset, num_samples: see `sample_batches`; the dataset must be picklable.
        num_blocks: number of tasks; None lets Ray choose.
    """
    count = len(dataset) if num_samples is None else min(num_samples, len(dataset))

    return _map_blocks(count, num_blocks, lambda batch: named_samples(dataset, batch["id"]), "samples")


def ray_documents(prefix: str | os.PathLike[str], *, tokenizer: Any = None, num_blocks: int | None = None) -> Any:
    """Returns the documents of a pair as a `ray.data.Dataset` with the columns of `document_batches`.

    All nodes need access to the pair. `tokenizer` must be picklable, or a path or name for `load_tokenizer`.
    """
    count = len(DocumentRows(prefix, tokenizer=tokenizer))
    path = os.fspath(prefix)

    def read(batch: Mapping[str, NDArray[Any]]) -> Any:
        numbers = batch["id"]
        return DocumentRows(path, tokenizer=tokenizer).table(int(numbers[0]), int(numbers[-1]) + 1)

    return _map_blocks(count, num_blocks, read, "documents")


def _map_blocks(count: int, num_blocks: int | None, read: Callable[[Any], Any], unit: str) -> Any:
    if count < 1:
        raise ConfigError(f"no {unit} to read")
    ray_data = require("ray.data", extra="ray")
    blocks = ray_data.range(count, override_num_blocks=num_blocks)
    return blocks.map_batches(read, batch_format="numpy", batch_size=None, zero_copy_batch=True)


def ray_train_loader(dataset: Any, *, batch_size: int, **settings: Any) -> ThreadLoader:
    """Returns the `ThreadLoader` of a Ray Train worker; call `ray_train_loader` in the training function.

    Exactly one worker reads each sample. To resume, save `loader.state_dict()`, which is equal on all workers, in a
    checkpoint, and pass this state to `load_state_dict`. Do not call `ray.train.torch.prepare_data_loader`.
    `settings` are further arguments of `ThreadLoader`.
    """
    context = require("ray.train", extra="ray").get_context()
    ranks = {"data_parallel_rank": context.get_world_rank(), "data_parallel_size": context.get_world_size()}
    return ThreadLoader(dataset, batch_size=batch_size, **ranks, **settings)
