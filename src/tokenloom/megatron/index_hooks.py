"""Index arrays of GPT samples, built as the reference does: by functions that somebody replaced, through its files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.splits import Split
from tokenloom.errors import IndexCacheError
from tokenloom.megatron.given_order import NAMES
from tokenloom.order.arrays import refuse_to_build_now
from tokenloom.order.cache import DESCRIPTION, IndexCache, IndexCacheWriter

if TYPE_CHECKING:
    from tokenloom.datasets.gpt import GPTDataset

Array = NDArray[Any]
_MAPPED_BYTES = 1 << 16  # what is smaller is read; a mapping costs a page at least


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFunctions:
    """What builds the arrays: the functions of the reference's modules under these names, or somebody's own.

    Attributes:
        documents: `_build_document_index(documents, num_epochs, numpy_random_state, separate_final_epoch)`.
        windows: `helpers.build_sample_idx`.
        shuffle: `_build_shuffle_index(num_samples, total_size, numpy_random_state)`.
    """

    documents: Callable[..., Array]
    windows: Callable[..., Array]
    shuffle: Callable[..., Array]


def hooked_arrays(dataset: GPTDataset, functions: IndexFunctions, folder: str | None) -> tuple[Array, Array, Array]:
    """Returns document, sample and shuffle index: from the cache if they are there, else built, and then cached.

    The key of the cache knows nothing of the functions, as that of the reference does not.

    Args:
        dataset: whose samples they are.
        functions: what builds them.
        folder: where they are kept; None for nowhere.

    Raises:
        IndexCacheError: the folder cannot be written, `fast_cache_load` finds no file, or one is damaged.
    """
    cache = None
    if folder is not None:
        cache = IndexCache(folder, index_base(dataset), compares_all=dataset.config.verify == "full")
        files = [cache.path(affix) for affix in (DESCRIPTION, *(f"{name}.npy" for name in NAMES))]
        if dataset.config.fast_cache_load or all(map(os.path.isfile, files)):
            found = document_index, sample_index, shuffle_index = tuple(map(_load, files[1:]))
            cache.compare(dict(zip(NAMES, found, strict=True)))
            return document_index, sample_index, shuffle_index
        refuse_to_build_now(index_base(dataset))
    arrays = _build(dataset, functions)
    if cache is not None:
        with IndexCacheWriter(cache, dataset.unique_description) as writer:
            for name, array in zip(NAMES, arrays, strict=True):
                writer.add(name, array)
    return arrays


def index_base(dataset: GPTDataset) -> str:
    """Returns what the names of the files of a dataset begin with."""
    return f"{dataset.unique_description_hash}-{type(dataset).__name__}-{dataset.index_split.name}"


def _build(dataset: GPTDataset, functions: IndexFunctions) -> tuple[Array, Array, Array]:
    config, plan = dataset.config, dataset.epoch_plan
    random = np.random.RandomState(config.random_seed)
    document_index = functions.documents(dataset.indices, plan.num_epochs, random, plan.separate_final_epoch)
    sample_index = functions.windows(
        dataset.dataset.sequence_lengths,
        document_index,
        config.sequence_length,
        plan.num_epochs,
        plan.tokens_per_epoch,
        not (dataset.index_split == Split.valid and not config.drop_last_partial_validation_sequence),
        config.add_extra_token_to_sequence,
    )
    num_samples = sample_index.shape[0] - 1
    first = plan.num_samples_sans_final_epoch if plan.separate_final_epoch else num_samples
    return document_index, sample_index, functions.shuffle(first, num_samples, random)


def _load(path: str) -> Array:
    try:
        array: Array = np.load(path, mmap_mode="r" if os.path.getsize(path) > _MAPPED_BYTES else None)
    except (OSError, ValueError) as error:
        message = f"`{path}` cannot be read: {error}"
        raise IndexCacheError(message, hint="remove it, and the index is built again") from error
    return array
