"""Batches of grain: windows of the mapped corpus by number, shuffled or not, stacked; worker processes, or threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import grain
import numpy as np
from serve import Outcome, serve
from tokens import BATCH, check_rows, loader_round, num_windows, open_corpus


class Windows:
    """A source for grain: window k of the corpus, as tokens and labels."""

    def __init__(self, folder: str, length: int) -> None:
        self._folder, self._length = folder, length
        self._corpus = open_corpus(folder)
        self._count = num_windows(folder, length)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        start = number * self._length
        window = self._corpus[start : start + self._length + 1].astype(np.int64)
        return {"tokens": window[:-1], "labels": window[1:]}

    def __getstate__(self) -> tuple[str, int]:
        return self._folder, self._length  # a mapping is opened anew in a worker, not copied into it

    def __setstate__(self, state: tuple[str, int]) -> None:
        self.__init__(*state)


def prepare(*, folder: str, shuffle: bool, workers: int, length: int, seconds: float) -> Callable[[], Outcome]:
    dataset = grain.MapDataset.source(Windows(folder, length)).seed(1)
    if shuffle:
        dataset = dataset.shuffle()
    dataset = dataset.batch(BATCH)

    def make() -> Iterable[dict[str, Any]]:
        iterable = dataset.to_iter_dataset()
        return iterable.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers)) if workers else iterable

    round_ = loader_round(make, length, seconds)
    first = next(iter(make()))
    check_rows(folder, first["tokens"], first["labels"])
    return round_


if __name__ == "__main__":
    # What the command line says reaches grain's flags otherwise.
    from absl import flags

    flags.FLAGS(["load_grain"])
    serve(prepare)
