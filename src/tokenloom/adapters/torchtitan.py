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
    """Returns the class of a loader for torchtitan, a `BaseDataLoader` with a `Config`.

    In the configuration of a trainer, set `trainer_config.dataloader` to

        torchtitan_loader().Config(dataset_path="data/corpus_text_document")

    Settings of that `Config`, beside torchtitan's own:

    - `dataset_path`: data of `tokenloom.load`: a prefix, a glob, a folder, a catalogue, a `run.toml`
    - `settings`: its further arguments, such as `{"split": "99,1,0", "seed": 1}`; `inter_document_masking` is on by
      default, as torchtitan separates documents by positions that restart at 0
    - `part`: with `split`, the one to read: "train", "valid" or "test"
    - `infinite`: start again after the last batch; torchtitan sets it for validation
    - `num_threads`: threads that fill batches

    Sequence length, batch size and ranks are those of the trainer, and labels without loss are -100. Checkpoints keep
    the position: training continues with the next batch, on as many data-parallel ranks, over a run on any number.
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
    """The methods of a torchtitan loader: batches as inputs and labels, and a state."""

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
            hint = "give a prefix, a folder or a `run.toml`, as to `tokenloom.load`"
            raise ConfigError("no `dataset_path` given in the configuration of the loader", hint=hint)
        settings = {**config.settings}
        if not os.fspath(config.dataset_path).endswith(".toml"):
            settings = {"sequence_length": seq_len, "inter_document_masking": True, **settings}
        loaded = load(config.dataset_path, **settings)
        dataset = loaded[Split[config.part].value] if "split" in settings else loaded
        if dataset is None or (found := len(dataset[0]["tokens"])) != seq_len:
            problem = "has no data" if dataset is None else f"has samples of {found} tokens"
            raise ConfigError(f"{config.part} {problem}: the trainer needs samples of {seq_len} tokens")
        return dataset

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yields inputs and labels of each batch."""
        while True:
            for batch in self.loader:
                yield {"input": batch["tokens"], "positions": batch["position_ids"]}, labels_with_loss(batch)
            if not self.infinite:
                return

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, the same on every rank, as one string, since checkpoints split a dict."""
        return {"tokenloom": json.dumps(self.loader.state_dict())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues after the last batch of the state; an empty state begins at the first batch."""
        if state_dict:
            self.loader.load_state_dict(json.loads(state_dict["tokenloom"]))
