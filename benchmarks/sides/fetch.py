"""Samples one by one or in batches, from a warm page cache; or copies of as many bytes, in memory."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import peers
from serve import Outcome, serve

BATCH = 32
DIGESTED = 8  # samples


def prepare(
    *,
    folder: str,
    side: str,
    way: str,
    settings: dict[str, bool],
    length: int,
    seconds: float,
    count_tokens: bool = False,
) -> Callable[[], Outcome]:
    """Opens the corpus; `way` is single, batched, given or copy.

    Given fills arrays that exist; copy copies what a batch of these settings holds.

    Work is samples, or their tokens.
    """
    cache = os.path.join(folder, "cache")
    dataset = peers.gpt_dataset_builder(side, os.path.join(folder, "corpus"))(
        num_samples=None, path_to_cache=cache, sequence_length=length, **settings
    )
    positions = np.random.default_rng(1).permutation(len(dataset))
    heavy = settings.get("create_attention_mask", False)
    size = 4 if heavy else BATCH
    if way == "copy":
        return copies(dataset.batch(positions[:size]), size * (length if count_tokens else 1), seconds)
    digest = digest_of(dataset, positions[:DIGESTED].tolist(), skip_attention=heavy)
    if way == "single":
        return lambda: {**repeat(dataset.__getitem__, [[int(p)] for p in positions], seconds, spread=True), **digest}
    groups = [positions[i : i + size].tolist() for i in range(0, len(positions) - size + 1, size)]
    if way == "given":
        arrays = dataset.allocate_batch(size)
        return lambda: {**repeat(lambda group: dataset.batch(group, out=arrays), groups, seconds), **digest}
    return lambda: {**repeat(dataset.__getitems__, groups, seconds), **digest}


def digest_of(dataset: Any, positions: list[int], *, skip_attention: bool) -> dict[str, str]:
    """Returns the hash of tokens, labels, loss mask and position ids of some samples."""
    state = hashlib.sha256()
    for position in positions:
        sample = dataset[position]
        for name in ("tokens", "labels", "loss_mask", "position_ids"):
            state.update(sample[name].numpy().tobytes())
        if skip_attention:
            break  # the peer's masks of later samples repeat the first one's: a known defect of its cache
    return {"digest": state.hexdigest()}


def repeat(fetch: Callable[[Any], Any], groups: list[list[int]], seconds: float, *, spread: bool = False) -> Outcome:
    """Fetches group after group for some seconds, dropping what was fetched, as a training loop does."""
    count, at = 0, 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        group = groups[at % len(groups)]
        fetch(*group) if spread else fetch(group)
        count += len(group)
        at += 1
    return {"work": count, "seconds": time.perf_counter() - started}


def copies(batch: dict[str, np.ndarray], work: int, seconds: float) -> Callable[[], Outcome]:
    """Returns a round that copies a batch into arrays that exist already, again and again; each is that much work."""
    pairs = [(np.empty_like(array), array) for array in map(np.asarray, batch.values())]

    def copy(_: list[int]) -> None:
        for target, source in pairs:
            np.copyto(target, source)

    def round_() -> Outcome:
        copied = repeat(copy, [[0]], seconds)
        return {**copied, "work": copied["work"] * work}

    return round_


if __name__ == "__main__":
    serve(prepare)
