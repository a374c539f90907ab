"""Batches of litdata: its chunks of tokens, cut into blocks by its TokensLoader, in its own loader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize
from serve import Outcome, serve
from tokens import BATCH, check_rows, loader_round, open_corpus

PART_TOKENS = 1 << 20


class Windows(StreamingDataset):
    """Blocks of length + 1 tokens, as tokens and labels."""

    def __getitem__(self, index: Any) -> dict[str, torch.Tensor]:
        block = super().__getitem__(index).to(torch.int64)
        return {"tokens": block[:-1], "labels": block[1:]}


def parts(start: int, *, folder: str) -> Iterator[torch.Tensor]:
    """Yields the tokens of one part of the corpus."""
    yield torch.from_numpy(open_corpus(folder)[start : start + PART_TOKENS].copy())


def convert(folder: str, output: str) -> None:
    """Writes the corpus as chunks, in its order."""
    optimize(
        fn=partial(parts, folder=folder),
        inputs=list(range(0, len(open_corpus(folder)), PART_TOKENS)),
        output_dir=output,
        chunk_bytes="64MB",
        item_loader=TokensLoader(),
        num_workers=1,
        verbose=False,
    )


def prepare(*, folder: str, shuffle: bool, workers: int, length: int, seconds: float) -> Callable[[], Outcome]:
    output = os.path.join(folder, "litdata")
    if not os.path.exists(os.path.join(output, "index.json")):
        convert(folder, output)
    dataset = Windows(output, item_loader=TokensLoader(block_size=length + 1), shuffle=shuffle, drop_last=True)

    def make() -> Iterable[dict[str, Any]]:
        return StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers)

    round_ = loader_round(make, length, seconds)
    first = next(iter(make()))
    check_rows(folder, first["tokens"], first["labels"])
    return round_


if __name__ == "__main__":
    serve(prepare)
