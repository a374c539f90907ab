"""Batches of mosaicml-streaming: windows of the corpus as samples of its MDS shards, in torch's DataLoader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from mosaic import MDSWriter, StreamingDataset, clean_stale_shared_memory
from serve import Outcome, serve
from tokens import BATCH, check_rows, loader_round, num_windows, open_corpus
from torch.utils.data import DataLoader


class Windows(StreamingDataset):
    """Samples of length + 1 tokens, as tokens and labels."""

    def __getitem__(self, index: Any) -> dict[str, np.ndarray]:
        window = super().__getitem__(index)["tokens"].astype(np.int64)
        return {"tokens": window[:-1], "labels": window[1:]}


def convert(folder: str, output: str, length: int) -> None:
    """Writes the windows of the corpus, in its order."""
    corpus = open_corpus(folder)
    columns = {"tokens": f"ndarray:uint16:{length + 1}"}
    with MDSWriter(out=output, columns=columns) as writer:
        for number in range(num_windows(folder, length)):
            writer.write({"tokens": np.array(corpus[number * length : number * length + length + 1])})


def prepare(*, folder: str, shuffle: bool, workers: int, length: int, seconds: float) -> Callable[[], Outcome]:
    output = os.path.join(folder, f"mds-{length}")
    if not os.path.exists(os.path.join(output, "index.json")):
        convert(folder, output, length)
    clean_stale_shared_memory()
    dataset = Windows(local=output, shuffle=shuffle, shuffle_seed=1, batch_size=BATCH)

    def make() -> Iterable[dict[str, Any]]:
        return DataLoader(dataset, batch_size=BATCH, num_workers=workers, drop_last=True)

    round_ = loader_round(make, length, seconds)
    first = next(iter(make()))
    check_rows(folder, first["tokens"], first["labels"])
    return round_


if __name__ == "__main__":
    serve(prepare)
