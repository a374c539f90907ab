"""The corpus as one sequence of tokens, and the timing of loaders, for the sides of all peers; needs NumPy only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext
from typing import Any

import numpy as np
from serve import Outcome, tree_memory

BATCH = 8
CHECKED_ROWS = 4


def open_corpus(folder: str) -> np.ndarray:
    """Returns the tokens of the pair `corpus`, mapped: uint16[num_tokens]."""
    return np.memmap(os.path.join(folder, "corpus.bin"), dtype=np.uint16, mode="r")


def num_windows(folder: str, length: int) -> int:
    """Returns the number of windows of length + 1 tokens; each starts with the last token of the previous one."""
    return (len(open_corpus(folder)) - 1) // length


def check_rows(folder: str, tokens: Any, labels: Any, *, contiguous: bool = True) -> None:
    """Raises unless rows are int64, labels are the next tokens, and the corpus contains the rows."""
    tokens, labels = np.asarray(tokens), np.asarray(labels)
    if tokens.dtype != np.int64 or labels.dtype != np.int64 or tokens.shape != labels.shape or len(tokens) != BATCH:
        raise RuntimeError(f"expected two int64 arrays of {BATCH} rows, found {tokens.dtype}{tokens.shape}")
    if not np.array_equal(tokens[:, 1:], labels[:, :-1]):
        raise RuntimeError("labels are not the next tokens")
    corpus = open_corpus(folder)
    whole = corpus.tobytes()
    for row in np.concatenate([tokens, labels[:, -1:]], axis=1)[:CHECKED_ROWS].astype(np.uint16):
        # Rows that documents were shuffled into are runs of several documents: only their first tokens are searched.
        wanted = row if contiguous else row[:8]
        at = whole.find(wanted.tobytes())
        while at % 2 and at >= 0:
            at = whole.find(wanted.tobytes(), at + 1)
        if at < 0:
            raise RuntimeError("a row is not in the corpus")


def loader_round(make: Callable[[], Iterable[dict[str, Any]]], length: int, seconds: float) -> Callable[[], Outcome]:
    """Returns a round that reads batches for some seconds, or until the end of the epoch.

    The first batch includes the start and is not counted. The consumer adds up one row of each batch. Memory is the
    growth of this process and its running workers since before the first batch.
    """
    before = tree_memory()

    def round_() -> Outcome:
        iterator = iter(make())
        count = 0
        with closing(iterator) if hasattr(iterator, "close") else nullcontext():
            next(iterator)["tokens"][0].sum()
            count, elapsed = _consume(iterator, seconds)
            memory_bytes = max(tree_memory() - before, 0)
        del iterator
        return {"work": count * BATCH * length, "seconds": elapsed, "memory_bytes": memory_bytes}

    return round_


def _consume(iterator: Iterator[dict[str, Any]], seconds: float) -> tuple[int, float]:
    count = 0
    started = time.perf_counter()
    for batch in iterator:
        batch["tokens"][0].sum()
        count += 1
        if time.perf_counter() - started >= seconds:
            break
    return count, time.perf_counter() - started
