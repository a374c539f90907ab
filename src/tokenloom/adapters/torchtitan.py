"""torchtitan: a data loader class for its trainer configuration."""

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
    """Returns a loader class for torchtitan: a subclass of `BaseDataLoader` with a class `Config`.

    Set `trainer_config.dataloader` in the configuration of a trainer to

        torchtitan_loader().Config(dataset_path="data/corpus_text_document")

    The `Config` has torchtitan's settings and these settings:

    - `dataset_path`: the data, as for `tokenloom.load`: a prefix, a glob, a folder, a catalogue or a `run.toml`
    - `settings`: further arguments of `tokenloom.load`, such as `{"split": "99,1,0", "seed": 1}`;
      `inter_document_masking` is True by default, because torchtitan separates documents by positions that restart at 0
    - `part`: the split to read if `settings` has `split`: "train", "valid" or "test"
    - `infinite`: whether to start again after the last batch; torchtitan itself sets `infinite` for validation
    - `num_threads`: number of threads that fill batches

    The trainer sets sequence length, batch size and ranks. Labels without loss are -100. Training resumes from a
    checkpoint with the next batch. The number of data-parallel ranks must not change, unless the data is a run.
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
    """A torchtitan loader that yields ({"input", "positions"}, labels) and has a resumable state."""

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
        """Opens the dataset of a configuration; called on all ranks. A subclass may override this method."""
        if config.dataset_path is None:
            hint = "set `dataset_path` to a prefix, a folder or a `run.toml`, as for `tokenloom.load`"
            raise ConfigError("no `dataset_path` given in the loader's configuration", hint=hint)
        settings = {**config.settings}
        if not os.fspath(config.dataset_path).endswith(".toml"):
            settings = {"sequence_length": seq_len, "inter_document_masking": True, **settings}
        loaded = load(config.dataset_path, **settings)
        dataset = loaded[Split[config.part].value] if "split" in settings else loaded
        if dataset is None or (found := len(dataset[0]["tokens"])) != seq_len:
            got = "no data" if dataset is None else f"samples of {found} tokens"
            raise ConfigError(f"{config.part}: samples must have {seq_len} tokens, as `seq_len` requires, got {got}")
        return dataset

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        while True:
            for batch in self.loader:
                yield {"input": batch["tokens"], "positions": batch["position_ids"]}, labels_with_loss(batch)
            if not self.infinite:
                return

    def state_dict(self) -> dict[str, Any]:
        """Returns {"tokenloom": state}, equal on all ranks; the state is text, because checkpoints split dicts."""
        return {"tokenloom": json.dumps(self.loader.state_dict())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Makes the next iteration start after the last batch that the state counts; an empty state has no effect."""
        if state_dict:
            self.loader.load_state_dict(json.loads(state_dict["tokenloom"]))
