"""The batches of a loader that was given no sampler: positions in order, dealt to ranks as Megatron's sampler does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence, Sized
from typing import Any, Protocol, runtime_checkable

from tokenloom.datasets.protocols import Batches
from tokenloom.distributed.ranks import current_ranks
from tokenloom.errors import ConfigError
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.numbers import checked_integer

Sampler = Iterable[Sequence[int | None]]


@runtime_checkable
class _Items(Protocol):
    """What a sampler's positions are asked of, numbers or not."""

    def __getitem__(self, position: Any, /) -> Any:
        """Returns a sample."""


def batches_of(
    dataset: Any,
    sampler: Sampler | None,
    *,
    batch_size: int | None,
    data_parallel_rank: int | None,
    data_parallel_size: int | None,
) -> Sampler:
    """Returns the sampler of a loader: the one that is given, else the dataset's positions in order.

    Args:
        dataset: what is read.
        sampler: yields the positions of one batch after the other; None where there is a batch size.
        batch_size: samples per batch and rank; None where there is a sampler.
        data_parallel_rank, data_parallel_size: which rank this is, of how many; None for one alone.

    Raises:
        ConfigError: there is neither a sampler nor a batch size, or both; the dataset has not even one batch for each
            rank; or `torch.distributed` has several ranks, and nothing says how they share the samples.
    """
    check_dataset(dataset)
    dealt = {"data_parallel_rank": data_parallel_rank, "data_parallel_size": data_parallel_size}
    if sampler is not None:
        for name, value in {"batch_size": batch_size, **dealt}.items():
            if value is not None:
                message = f"a sampler and `{name}` exclude each other, found both"
                raise ConfigError(message, hint="the sampler decides how many samples a batch has, and whose they are")
        _check_sampler(sampler)
        return sampler
    if batch_size is None:
        message = "expected `batch_size` or a sampler, found neither"
        raise ConfigError(message, hint="such as `batch_size=8`")
    if not isinstance(dataset, Sized):
        message = f"expected a dataset that has `__len__` where there is no sampler, found {type(dataset).__name__}"
        raise ConfigError(message, hint="give a sampler, which yields what the dataset is asked for")
    rank, size = _place_of(dealt)
    batch_size = checked_integer("batch_size", batch_size, at_least=1)
    found = MegatronPretrainingSampler(max(len(dataset), 1), 0, batch_size, rank, size)
    if len(dataset) < batch_size * size:
        ranks = "" if size == 1 else f" for each of {size} ranks"
        message = f"expected at least one batch of {batch_size} samples{ranks}, found {len(dataset)} samples"
        raise ConfigError(message, hint="use smaller batches, or a dataset of more samples: shorter ones, more epochs")
    return found


def _place_of(dealt: dict[str, int | None]) -> tuple[int, int]:
    """Returns rank and number of ranks."""
    if all(value is None for value in dealt.values()):
        ranks = current_ranks()
        if ranks is None or ranks.world_size == 1:
            return 0, 1
        message = "expected `data_parallel_rank` and `data_parallel_size` beside `batch_size`, found neither, and "
        message += f"{ranks.world_size} ranks of `torch.distributed`, all of which would read the same samples"
        hint = "where each rank reads its own samples, these are `torch.distributed`'s `get_rank()` and "
        raise ConfigError(message, hint=hint + "`get_world_size()`")
    for name, value in dealt.items():
        if value is None:
            message = f"expected `data_parallel_rank` and `data_parallel_size`, found no `{name}`"
            raise ConfigError(message)
    rank, size = dealt.values()
    assert rank is not None
    assert size is not None
    return rank, size


def check_dataset(dataset: Any) -> None:
    """Checks that something may be a dataset.

    Raises:
        ConfigError: it is certainly none.
    """
    if isinstance(dataset, (str, os.PathLike)):
        message = f"expected a dataset, found the text {os.fspath(dataset)!r}"
        raise ConfigError(message, hint="open it with `tokenloom.load`")
    if dataset is None:
        message = "expected a dataset, found None"
        raise ConfigError(message, hint="what is built is None for a split without data, and on ranks without it")
    if not isinstance(dataset, (_Items, Batches)):
        message = f"expected a dataset, which has `__getitem__`, found {type(dataset).__name__}"
        raise ConfigError(message, hint="make one with `tokenloom.load`")


def _check_sampler(sampler: Any) -> None:
    if isinstance(sampler, int):
        message = f"expected a sampler, which yields the positions of one batch after the other, found {sampler!r}"
        raise ConfigError(message, hint=f"write `batch_size={sampler!r}`")
    if isinstance(sampler, (str, bytes)) or not hasattr(sampler, "__iter__"):
        message = "expected a sampler, which yields the positions of one batch after the other, found "
        raise ConfigError(message + repr(sampler), hint="write `batch_size=8` to read samples in order")


def check_positions(positions: Any) -> None:
    """Checks that a sampler yields batches.

    Raises:
        ConfigError: it yields positions one by one, or something else.
    """
    if not hasattr(positions, "__len__") or isinstance(positions, (str, bytes)):
        message = f"expected a list of positions from the sampler, found {positions!r}"
        hint = "a sampler of single positions becomes one of batches in `torch.utils.data.BatchSampler`"
        raise ConfigError(message, hint=hint)
