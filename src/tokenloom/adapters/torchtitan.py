"""torchtitan: its loader, built from its configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tokenloom.adapters.transformers import labels_with_loss
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.loading.from_data import load
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.optional import require


@cache
def torchtitan_loader() -> Any:
    """Returns the class of a loader for torchtitan, a `BaseDataLoader`; its `Config` is what a trainer's takes.

    In a function that makes the configuration of a trainer, `trainer_config.dataloader` becomes

        torchtitan_loader().Config(dataset_path="data/corpus_text_document")

    Settings of that `Config`, beside torchtitan's own:

    - `dataset_path`: what `tokenloom.load` takes as data: a prefix, a glob, a folder, a catalogue, a `run.toml`
    - `settings`: what else it takes, such as `{"split": "99,1,0", "seed": 1}`; `inter_document_masking` is on unless it
      says otherwise, as torchtitan tells documents apart by positions that begin anew
    - `part`: with `split`, which of "train", "valid" and "test" this loader reads
    - `infinite`: whether to begin anew after the last batch; torchtitan sets it for validation
    - `num_threads`: threads that fill batches

    Sequence length, batch size and ranks are those of the trainer, and labels without loss are -100. Checkpoints have
    the position: training goes on with the next batch, on as many data-parallel ranks, over a run on any number.
    """
    base = require("torchtitan.components.dataloader", extra="torchtitan").BaseDataLoader

    @dataclass(kw_only=True, slots=True)
    class Config(base.Config):  # type: ignore[misc, name-defined]
        settings: dict[str, Any] = field(default_factory=dict)
        part: str = "train"
        infinite: bool = False
        num_threads: int = 1

    return type("TokenloomLoader", (Batches, base), {"Config": Config, "__doc__": Batches.__doc__})


class Batches:
    """What torchtitan asks of a loader: batches as inputs and labels, and a state."""

    def __init__(
        self, config: Any, *, dp_world_size: int, dp_rank: int, seq_len: int, local_batch_size: int, **_: Any
    ) -> None:
        self.infinite: bool = config.infinite
        self.loader: ThreadLoader = ThreadLoader(
            self.open(config, seq_len),
            batch_size=local_batch_size,
            data_parallel_rank=dp_rank,
            data_parallel_size=dp_world_size,
            num_threads=config.num_threads,
        )

    def open(self, config: Any, seq_len: int) -> Any:
        """Returns the dataset of a configuration; a class may override it. All ranks call it."""
        if config.dataset_path is None:
            message = "expected `dataset_path` in the configuration of the loader, found none"
            raise ConfigError(message, hint="a prefix, a folder or a `run.toml`, as `tokenloom.load` takes them")
        settings = {**config.settings}
        if not os.fspath(config.dataset_path).endswith(".toml"):
            settings = {"sequence_length": seq_len, "inter_document_masking": True, **settings}
        loaded = load(config.dataset_path, **settings)
        dataset = loaded[Split[config.part].value] if "split" in settings else loaded
        if dataset is None or (found := len(dataset[0]["tokens"])) != seq_len:
            message = f"expected samples of {seq_len} tokens for {config.part}, as the trainer asks for, found "
            raise ConfigError(message + ("no data for it" if dataset is None else f"{found} tokens"))
        return dataset

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yields inputs and labels of one batch after the other."""
        while True:
            for batch in self.loader:
                yield {"input": batch["tokens"], "positions": batch["position_ids"]}, labels_with_loss(batch)
            if not self.infinite:
                return

    def state_dict(self) -> dict[str, Any]:
        """Returns where the loader stands; the same on every rank, and as one value, since checkpoints split others."""
        return {"tokenloom": json.dumps(self.loader.state_dict())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on after the last batch that was handed out when the state was taken; from the first without a state."""
        if state_dict:
            self.loader.load_state_dict(json.loads(state_dict["tokenloom"]))
