"""Lightning: a `LightningDataModule` whose loaders use the trainer's ranks."""

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
    """Returns a `lightning.pytorch.LightningDataModule` with loaders for train, valid and test.

    Each loader is a `ThreadLoader` that reads samples in the order of the dataset; the trainer's strategy gives the
    ranks. Lightning's checkpoints contain the loaders' states: `trainer.fit(…, ckpt_path=…)` resumes with the next
    batch. The number of ranks must not change, unless the dataset is a run.

    Args:
        datasets: a list of the train, valid and test dataset, as from `tokenloom.load(…, split=…)`, with None for a
            split without data; or only the train dataset; or a function that returns such a list or dataset. Every rank
            calls the function in `setup`; one rank then builds the index cache for all ranks.
        batch_size: samples per batch of one rank.
        settings: further arguments of `ThreadLoader`, such as `num_threads`.
    """
    base = require("lightning.pytorch", extra="lightning").LightningDataModule
    module = type("DataModule", (Loaders, base), {"__doc__": Loaders.__doc__, "trainer": None})
    return module(datasets, batch_size, settings)


class Loaders:
    """A `LightningDataModule` with this rank's loader for each split; a split without data has [] as its loader."""

    trainer: Any = None  # set by Lightning

    def __init__(self, datasets: Any, batch_size: int, settings: dict[str, Any]) -> None:
        super().__init__()
        self.batch_size = batch_size
        self._settings = settings
        self._given = datasets
        is_function = callable(datasets) and not isinstance(datasets, Samples)
        self._datasets: Sequence[Any] | None = None if is_function else _three(datasets)

    def setup(self, stage: str) -> None:
        """Creates the datasets if the argument `datasets` is a function."""
        if self._datasets is None:
            self._datasets = _three(self._given())

    def train_dataloader(self) -> Any:
        return self._loader(Split.train)

    def val_dataloader(self) -> Any:
        return self._loader(Split.valid)

    def test_dataloader(self) -> Any:
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
        message = f"`datasets`: must be a train dataset, or a list of train, valid and test datasets, got {datasets!r}"
        raise ConfigError(message, hint="pass None for a valid or test split without data")
    return datasets
