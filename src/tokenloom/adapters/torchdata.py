"""torchdata's `StatefulDataLoader` over our datasets and samplers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tokenloom.loading.loader import loader_arguments
from tokenloom.optional import require


def stateful_dataloader(
    dataset: Any,
    sampler: Iterable[Sequence[int | None]],
    *,
    num_workers: int = 0,
    pin_memory: bool | None = None,
    **settings: Any,
) -> Any:
    """Returns a `torchdata.stateful_dataloader.StatefulDataLoader` that yields one dict of tensors per micro-batch.

    It is `build_dataloader` with a loader that knows where it stands: `state_dict` after any batch, in any epoch, and
    `load_state_dict` of a loader made alike, with as many workers, goes on with the next batch. `ThreadLoader` does
    that too, without torchdata and without processes.

    Args:
        dataset: gives samples by number, such as `GPTDataset`.
        sampler: yields the positions of one micro-batch after the other, such as `MegatronPretrainingSampler`.
        num_workers: processes that read ahead; 0 reads in this process.
        pin_memory: whether batches lie in page-locked memory; by default, where CUDA is available.
        settings: what else the class takes, such as `snapshot_every_n_steps`, `prefetch_factor`.

    Raises:
        MissingExtraError: torchdata is not installed.
    """
    loader_class = require("torchdata.stateful_dataloader", extra="torchdata").StatefulDataLoader
    given = loader_arguments(dataset, sampler, num_workers=num_workers, pin_memory=pin_memory)
    return loader_class(**{**given, **settings})
