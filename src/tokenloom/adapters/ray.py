"""Ray Data: documents and samples as datasets whose blocks are Arrow, read by tasks where they are wanted."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from tokenloom.adapters.arrow import DocumentRows, named_samples
from tokenloom.errors import ConfigError
from tokenloom.optional import require


def ray_samples(dataset: Any, *, num_samples: int | None = None, num_blocks: int | None = None) -> Any:
    """Returns a `ray.data.Dataset` of the samples of a dataset, blend or run.

    Columns: `sample`, the position; `input_ids` and what else `dataset.batch` gives, as tensors of Arrow with ids as
    int32; labels are those of the next token. What travels to a task is the dataset's settings and a range of
    positions; each task opens the files, which its node must see, and fills arrays as `dataset.batch` does.

    Args:
        dataset: anything with `batch`, or samples of one shape; picklable, as ours are.
        num_samples: how many from the first one on; None for all.
        num_blocks: blocks, which are tasks, to cut the positions into; None lets Ray choose.

    Raises:
        ConfigError: there are no samples.
        MissingExtraError: Ray Data is not installed.
    """
    count = len(dataset) if num_samples is None else min(num_samples, len(dataset))

    def read(batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {"sample": batch["id"], **named_samples(dataset, batch["id"])}

    return _mapped(count, num_blocks, read, "samples")


def ray_documents(prefix: str | os.PathLike[str], *, tokenizer: Any = None, num_blocks: int | None = None) -> Any:
    """Returns a `ray.data.Dataset` of the documents of a pair, with the columns of `document_batches`.

    Args:
        prefix: path of the pair without suffix, or its address; each node must see it.
        tokenizer: adds the texts: what `load_tokenizer` takes, or a tokenizer that can be pickled.
        num_blocks: blocks, which are tasks, to cut the documents into; None lets Ray choose.

    Raises:
        ConfigError: there are no documents.
        DatasetNotFoundError, DatasetFormatError, StorageError: as `IndexedDataset`.
        MissingExtraError: Ray Data is not installed.
    """
    count = len(DocumentRows(prefix, tokenizer=tokenizer))
    path = os.fspath(prefix)

    def read(batch: Mapping[str, NDArray[Any]]) -> Any:
        numbers = batch["id"]
        return DocumentRows(path, tokenizer=tokenizer).table(int(numbers[0]), int(numbers[-1]) + 1)

    return _mapped(count, num_blocks, read, "documents")


def _mapped(count: int, num_blocks: int | None, read: Callable[[Any], Any], what: str) -> Any:
    if count < 1:
        message = f"expected {what} to read, found none"
        raise ConfigError(message)
    ray_data = require("ray.data", extra="ray")
    blocks = ray_data.range(count, override_num_blocks=num_blocks)
    return blocks.map_batches(read, batch_format="numpy", batch_size=None, zero_copy_batch=True)
