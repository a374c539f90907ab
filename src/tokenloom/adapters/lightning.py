"""Lightning: a `DataModule` whose loaders follow the trainer's ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokenloom.datasets.protocols import Samples
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.optional import require


def lightning_data_module(
    datasets: Any | Sequence[Any] | Callable[[], Any], *, batch_size: int, **settings: Any
) -> Any:
    """Returns a `lightning.pytorch.LightningDataModule` of datasets for train, valid and test.

    Its loaders are `ThreadLoader`s over the samples in order, dealt to the ranks of the trainer's strategy. Their
    states are in Lightning's checkpoints: `trainer.fit(…, ckpt_path=…)` continues with the next batch, on as many
    ranks; over a run, on any number of them.

    Args:
        datasets: train, valid and test, as `tokenloom.load(…, split=…)` returns them, None for those without data; or
            one dataset for training; or a function that returns either, called on every rank once the trainer has its
            ranks, so that one of them builds the indices for all.
        batch_size: samples per batch and rank.
        settings: further arguments of `ThreadLoader`, such as `num_threads`.
    """
    base = require("lightning.pytorch", extra="lightning").LightningDataModule
    module = type("DataModule", (Loaders, base), {"__doc__": Loaders.__doc__, "trainer": None})
    return module(datasets, batch_size, settings)


class Loaders:
    """The methods of a `DataModule`: one loader for each of train, valid and test."""

    trainer: Any = None  # which Lightning sets

    def __init__(self, datasets: Any, batch_size: int, settings: dict[str, Any]) -> None:
        super().__init__()
        self.batch_size = batch_size
        self._settings = settings
        self._given = datasets
        is_function = callable(datasets) and not isinstance(datasets, Samples)
        self._datasets: Sequence[Any] | None = None if is_function else _three(datasets)

    def setup(self, stage: str) -> None:
        """Calls the function that makes the datasets, if one was given."""
        if self._datasets is None:
            self._datasets = _three(self._given())

    def train_dataloader(self) -> Any:
        """Returns this rank's loader for training."""
        return self._loader(Split.train)

    def val_dataloader(self) -> Any:
        """Returns this rank's loader for validation; an empty list without data."""
        return self._loader(Split.valid)

    def test_dataloader(self) -> Any:
        """Returns this rank's loader for testing; an empty list without data."""
        return self._loader(Split.test)

    def _loader(self, split: Split) -> Any:
        assert self._datasets is not None, "Lightning calls `setup` first"
        if (dataset := self._datasets[split.value]) is None:
            return []
        ranks = None if self.trainer is None else self.trainer.distributed_sampler_kwargs
        place = {"data_parallel_rank": ranks["rank"], "data_parallel_size": ranks["num_replicas"]} if ranks else {}
        return ThreadLoader(dataset, batch_size=self.batch_size, **place, **self._settings)


def _three(datasets: Any) -> Sequence[Any]:
    if not isinstance(datasets, (list, tuple)):
        return [datasets, None, None]
    if len(datasets) != len(Split) or datasets[0] is None:
        message = f"`datasets`: must be one for training, or train, valid and test, got {datasets!r}"
        raise ConfigError(message, hint="None stands for a split without data; train needs some")
    return datasets
