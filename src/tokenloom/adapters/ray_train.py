"""Ray Train: the loader of each of its workers."""

from __future__ import annotations

from typing import Any

from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.optional import require


def ray_train_loader(dataset: Any, *, batch_size: int, **settings: Any) -> ThreadLoader:
    """Returns the loader of a worker of Ray Train, to be called in the function that it runs.

    Ray's context says which worker this is, of how many: together they read every sample of the dataset once. To go on
    from a checkpoint, keep `loader.state_dict()` in it, the same on every worker, and give it to `load_state_dict`.
    `ray.train.torch.prepare_data_loader` is not needed.

    Args:
        dataset: what is read. Open it in the function too, as each worker is another process.
        batch_size: samples per batch and worker.
        settings: what else `ThreadLoader` takes, such as `num_threads`.

    Raises:
        ConfigError: the dataset has not even one batch for each worker, or a setting is wrong.
        MissingExtraError: Ray is not installed.
    """
    context = require("ray.train", extra="ray").get_context()
    return ThreadLoader(
        dataset,
        batch_size=batch_size,
        data_parallel_rank=context.get_world_rank(),
        data_parallel_size=context.get_world_size(),
        **settings,
    )
