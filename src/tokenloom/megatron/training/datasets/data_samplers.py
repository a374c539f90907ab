"""`megatron.training.datasets.data_samplers`: the samplers and the data loader of Megatron's training loop."""

from __future__ import annotations

import random
from collections.abc import Iterator
from enum import Enum
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.datasets.tensors import batch_tensors
from tokenloom.errors import ConfigError
from tokenloom.loading import samplers
from tokenloom.loading.loader import loader_arguments
from tokenloom.loading.samplers import BalancedSampler
from tokenloom.megatron.core.datasets.utils import Split  # noqa: F401
from tokenloom.megatron.installation import reference_version

_NO_LOADER_WITHOUT_SAMPLES = (0, 20)
"""Since this Megatron version, the loader of an empty dataset is None; older versions raise an error."""


def __getattr__(name: str) -> Any:
    """Imports and returns Megatron's `parallel_state` for the name `mpu`, because programs patch functions of `mpu`."""
    if name == "mpu":
        return _parallel_state()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def get_args() -> Any:
    """Returns the arguments of Megatron's trainer."""
    return import_module("megatron.training").get_args()


def _parallel_state() -> Any:
    return import_module("megatron.core.parallel_state")


def build_pretraining_data_loader(
    dataset: Any,
    consumed_samples: int,
    *,
    args: Any = None,
    data_parallel_rank: int | None = None,
    data_parallel_size: int | None = None,
) -> Any:
    """Returns a torch `DataLoader` configured by the arguments of Megatron's trainer; None if `dataset` is None.

    Since Megatron 0.20, also returns None for an empty dataset.

    Args:
        dataset: a map-style dataset. If its attribute `split` or `index_split` is `Split.valid` or `Split.test`,
            batches have the evaluation batch size. With `--dataloader-type external`, a loader, returned unchanged.
        consumed_samples: number of samples that all ranks together have already consumed.
        args, data_parallel_rank, data_parallel_size: None for the values of Megatron's trainer in this process.

    Raises:
        ConfigError: `--dataloader-type` is unknown, or no samples are left.
    """
    if dataset is None or (reference_version() >= _NO_LOADER_WITHOUT_SAMPLES and _is_empty(dataset)):
        return None
    settings = get_args() if args is None else args
    if settings.dataloader_type == "external":
        return dataset
    rank = _parallel_state().get_data_parallel_rank() if data_parallel_rank is None else data_parallel_rank
    size = _parallel_state().get_data_parallel_world_size() if data_parallel_size is None else data_parallel_size
    sampler = _sampler(dataset, consumed_samples, settings, rank, size)
    num_workers = settings.num_workers
    arguments = loader_arguments(dataset, sampler, num_workers=num_workers, pin_memory=True)
    arguments["collate_fn"] = _identity if getattr(settings, "hybrid_context_parallel", False) else batch_tensors
    has_signal = num_workers > 0 and getattr(settings, "exit_signal_handler", False)
    return torch.utils.data.DataLoader(
        **arguments,
        persistent_workers=num_workers > 0,
        worker_init_fn=partial(_begin_worker, exit_signal=settings.exit_signal) if has_signal else None,
    )


def _is_empty(dataset: Any) -> bool:
    try:
        return len(dataset) == 0
    except TypeError:  # it has no length
        return False


def _sampler(dataset: Any, consumed_samples: int, settings: Any, rank: int, size: int) -> Any:
    kind, total, place = settings.dataloader_type, len(dataset), (rank, size)
    member = getattr(dataset, "split", getattr(dataset, "index_split", None))
    split = member.name if isinstance(member, Enum) else None  # Megatron's enumeration or tokenloom's

    def batch_size(name: str) -> int:
        train: int = getattr(settings, name)
        return getattr(settings, f"eval_{name}", train) if split in ("valid", "test") else train

    if split == "valid" and getattr(settings, "full_validation", False):
        return MegatronFullValidationSampler(total, *place)
    micro = batch_size("micro_batch_size")
    if kind == "single" and getattr(settings, "hybrid_context_parallel", False):
        return HybridCPMegatronPretrainingSampler(
            total, consumed_samples, micro, batch_size("global_batch_size"), *place
        )
    if kind == "single":
        return MegatronPretrainingSampler(total, consumed_samples, micro, *place)
    if kind == "balanced":
        return BalancedSampler(dataset, total, consumed_samples, micro, settings.global_batch_size, *place)
    if kind == "cyclic":
        return MegatronPretrainingRandomSampler(
            dataset, total, consumed_samples, micro, *place, data_sharding=settings.data_sharding
        )
    raise ConfigError(f"{kind} dataloader type is not supported", hint="choose `single`, `cyclic` or `external`")


def _identity(samples: Any) -> Any:
    return samples


def _begin_worker(_worker: int, *, exit_signal: Any) -> None:
    """Installs Megatron's exit signal handler in a worker process."""
    import_module("megatron.training.dist_signal_handler").DistributedSignalHandler(exit_signal).__enter__()


# --- samplers ---------------------------------------------------------------------------------------------------------


class _TotalLength(samplers.DataParallelSampler):
    """A mixin whose `len` counts all samples of the dataset, as in Megatron, instead of the remaining batches."""

    def __len__(self) -> int:
        return self.total_samples


class MegatronPretrainingSampler(_TotalLength, samplers.MegatronPretrainingSampler):
    """`tokenloom.MegatronPretrainingSampler`, but `len` is `total_samples`; `get_start_end_idx` may be overridden."""


class HybridCPMegatronPretrainingSampler(_TotalLength, samplers.HybridCPMegatronPretrainingSampler):
    """`tokenloom.HybridCPMegatronPretrainingSampler`, but `len` is `total_samples`.

    `global_batch_size` is rounded down to a multiple of `micro_batch_size * data_parallel_size`. A subclass may
    override `get_start_end_idx`, which is called once per micro-batch.
    """

    def __init__(
        self,
        total_samples: int,
        consumed_samples: int,
        micro_batch_size: int,
        global_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
        drop_last: bool = True,
    ) -> None:
        chunk = max(micro_batch_size * data_parallel_size, 1)
        size = global_batch_size // chunk * chunk or global_batch_size  # the base class rejects less than a chunk
        ranks = data_parallel_rank, data_parallel_size
        super().__init__(total_samples, consumed_samples, micro_batch_size, size, *ranks, drop_last)


class MegatronFullValidationSampler(samplers.MegatronFullValidationSampler):
    """`tokenloom.MegatronFullValidationSampler` without padding by default; the last ranks may yield fewer samples."""

    def __init__(
        self, total_samples: int, data_parallel_rank: int, data_parallel_size: int, *, pad: bool = False
    ) -> None:
        super().__init__(total_samples, data_parallel_rank, data_parallel_size, pad=pad)


class RandomSeedDataset(torch.utils.data.Dataset[Any]):  # type: ignore[misc]  # torch has no types
    """A dataset that seeds torch, NumPy and `random` with `seed + epoch + k` before it reads sample k of `dataset`.

    If `seed` is None, `--seed` of Megatron's trainer is used.
    """

    def __init__(self, dataset: Any, seed: int | None = None) -> None:
        self.base_seed: int = get_args().seed if seed is None else seed
        self.curr_seed: int = self.base_seed
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, which is added to the seed."""
        self.curr_seed = self.base_seed + epoch

    def __getitem__(self, idx: int) -> Any:
        """Seeds the global random number generators, then returns a sample."""
        seed = idx + self.curr_seed
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - datasets may draw from the global generator
        return self.dataset[idx]


class MegatronPretrainingRandomSampler(_TotalLength, samplers.MegatronPretrainingRandomSampler):
    """`tokenloom.MegatronPretrainingRandomSampler`, but `len` is `total_samples`.

    Each yielded batch increases `consumed_samples`, even if a loader only prefetches the batch. Without
    `data_sharding`, some ranks may yield one batch more than others. Iteration sets the epoch of a `RandomSeedDataset`.
    """

    epoch: int = 0
    """The epoch of the most recent iteration over the sampler."""

    @property
    def last_batch_size(self) -> int:
        """Number of samples left over after dividing the dataset into micro-batches of all ranks."""
        return self.total_samples % self.micro_batch_times_data_parallel_size

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the positions of each micro-batch until the end of the epoch."""
        self.epoch, offset = divmod(self.consumed_samples, self.samples_per_epoch)
        if isinstance(self.dataset, RandomSeedDataset):
            self.dataset.set_epoch(self.epoch)
        positions: list[int] = self._positions(self.epoch, offset).tolist()
        for start in range(0, len(positions) - self.micro_batch_size + 1, self.micro_batch_size):
            self.consumed_samples += self.micro_batch_times_data_parallel_size
            yield positions[start : start + self.micro_batch_size]

    def _positions(self, epoch: int, offset: int) -> NDArray[np.int64]:
        if self.data_sharding or self.global_batch_size is not None:
            return super()._positions(epoch, offset)
        order = self._permutation(self.total_samples - self.total_samples % self.micro_batch_size, epoch)
        return order[offset + self.data_parallel_rank :: self.data_parallel_size]
