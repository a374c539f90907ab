"""Ray: documents and samples as datasets, and the loader of a training worker."""

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
    """Returns a `ray.data.Dataset` of the samples of a dataset, blend or run, with the columns of `sample_batches`.

    A task gets the dataset's settings and a range of positions; it opens the files, which its node must see.

    Args:
        dataset: anything with `batch`, or samples of one shape; picklable, as ours are.
        num_samples: the first so many; None for all.
        num_blocks: number of tasks; None lets Ray choose.
    """
    count = len(dataset) if num_samples is None else min(num_samples, len(dataset))

    def read(batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {"sample": batch["id"], **named_samples(dataset, batch["id"])}

    return _mapped(count, num_blocks, read, "samples")


def ray_documents(prefix: str | os.PathLike[str], *, tokenizer: Any = None, num_blocks: int | None = None) -> Any:
    """Returns a `ray.data.Dataset` of the documents of a pair, with the columns of `document_batches`.

    Each node must see the pair; a tokenizer is an argument of `load_tokenizer`, or picklable. See `ray_samples`.
    """
    count = len(DocumentRows(prefix, tokenizer=tokenizer))
    path = os.fspath(prefix)

    def read(batch: Mapping[str, NDArray[Any]]) -> Any:
        numbers = batch["id"]
        return DocumentRows(path, tokenizer=tokenizer).table(int(numbers[0]), int(numbers[-1]) + 1)

    return _mapped(count, num_blocks, read, "documents")


def _mapped(count: int, num_blocks: int | None, read: Callable[[Any], Any], what: str) -> Any:
    if count < 1:
        raise ConfigError(f"no {what} to read")
    ray_data = require("ray.data", extra="ray")
    blocks = ray_data.range(count, override_num_blocks=num_blocks)
    return blocks.map_batches(read, batch_format="numpy", batch_size=None, zero_copy_batch=True)


def ray_train_loader(dataset: Any, *, batch_size: int, **settings: Any) -> ThreadLoader:
    """Returns the loader of a worker of Ray Train, to be called in the function that it runs.

    Together the workers read every sample of the dataset once. To resume from a checkpoint, keep `loader.state_dict()`
    in it, the same on every worker, and give it to `load_state_dict`. `ray.train.torch.prepare_data_loader` is not
    needed. `settings` are further arguments of `ThreadLoader`.
    """
    context = require("ray.train", extra="ray").get_context()
    ranks = {"data_parallel_rank": context.get_world_rank(), "data_parallel_size": context.get_world_size()}
    return ThreadLoader(dataset, batch_size=batch_size, **ranks, **settings)
