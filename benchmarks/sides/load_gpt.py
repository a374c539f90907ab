"""Batches of tokenloom, or of megatron-core's dataset in torch's DataLoader."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from typing import Any

import peers
from serve import Outcome, serve
from tokens import BATCH, check_rows, loader_round


def prepare(*, folder: str, side: str, way: str, workers: int, length: int, seconds: float) -> Callable[[], Outcome]:
    """Opens the corpus; `way` is ThreadLoader, ring (ThreadLoader with reused batches), dataloader, or peer."""
    from torch.utils.data import DataLoader

    from tokenloom import MegatronPretrainingSampler, ThreadLoader, build_dataloader

    # Both sides take the same indices from one cache, so that they read the same samples in the same order.
    cache = os.path.join(folder, "cache")
    dataset = peers.gpt_dataset_builder(side, os.path.join(folder, "corpus"))(
        num_samples=None, path_to_cache=cache, sequence_length=length
    )
    sampler = MegatronPretrainingSampler(len(dataset), 0, BATCH, 0, 1)

    def make() -> Iterable[dict[str, Any]]:
        if way in ("ThreadLoader", "ring"):
            return ThreadLoader(dataset, sampler, reuse_after=1 if way == "ring" else None)
        if way == "dataloader":
            return build_dataloader(dataset, sampler, num_workers=workers, persistent_workers=False)
        return DataLoader(dataset, batch_sampler=sampler, num_workers=workers)

    round_ = loader_round(make, length, seconds)
    first = next(iter(make()))
    check_rows(folder, first["tokens"], first["labels"], contiguous=False)
    digest = hashlib.sha256(first["tokens"].numpy().tobytes() + first["labels"].numpy().tobytes()).hexdigest()
    return lambda: {**round_(), "digest": digest}


if __name__ == "__main__":
    serve(prepare)
