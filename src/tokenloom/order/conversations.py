"""The order of conversations: epochs that are shuffled one by one, and rows that they fill from first to last.

Each epoch is a permutation of its own, so that every conversation comes once before any comes again, and a longer run
begins as a shorter one did.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.kernels import LegacyRandom, next_fit
from tokenloom.order.shuffles import document_index_dtype


def shuffled_epochs(count: int, random: LegacyRandom) -> Iterator[NDArray[Any]]:
    """Yields a permutation of [0, count) per epoch, without end."""
    dtype = np.int32 if count <= np.iinfo(np.int32).max else np.int64
    while True:
        epoch = np.arange(count, dtype=dtype)
        random.shuffle(epoch)
        yield epoch


def shuffle_conversations(sequences: NDArray[Any], count: int | None, *, seed: int) -> NDArray[Any]:
    """Returns the first `count` sequences of the shuffled epochs, or one epoch if that is None.

    Args:
        sequences: integers[num_sequences], those of one epoch.
        count: how many.
        seed: seed of the shuffles.

    Raises:
        ConfigError: some are wanted, and there are none.
    """
    _check(sequences, count)
    parts: list[NDArray[Any]] = [np.empty(0, dtype=document_index_dtype(int(sequences.max(initial=-1))))]
    missing = len(sequences) if count is None else count
    epochs = shuffled_epochs(len(sequences), LegacyRandom(seed))
    while missing > 0:
        epoch = sequences[next(epochs)[:missing]].astype(parts[0].dtype)
        parts.append(epoch)
        missing -= len(epoch)
    return np.concatenate(parts)


def pack_conversations(
    sequences: NDArray[Any], slots: NDArray[np.int32], count: int | None, *, capacity: int, seed: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Returns the shuffled sequences of the first `count` packs, and where in these each pack begins.

    Next fit: a sequence joins the pack before it if it fits, and begins a new pack if it does not; the next epoch goes
    on where the last one ended. O(sequences). With None: the packs of one epoch, the last of which is the emptiest.

    Args:
        sequences: integers[num_sequences], those of one epoch.
        slots: int32[num_sequences], what each takes of a pack, at least 1 and at most `capacity`.
        count: packs.
        capacity: positions of a pack.
        seed: seed of the shuffles.

    Returns:
        stream: [num_used], the sequences.
        starts: int64[num_packs + 1], the position in the stream at which each pack begins, and the end.

    Raises:
        ConfigError: packs are wanted, and there are no sequences.
    """
    _check(sequences, count)
    stream: list[NDArray[Any]] = [np.empty(0, dtype=document_index_dtype(int(sequences.max(initial=-1))))]
    starts: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    position, num_starts, filled = 0, 0, -1
    epochs = shuffled_epochs(len(sequences), LegacyRandom(seed))
    while count is None or num_starts <= count:  # a pack is complete once the next one begins
        order = next(epochs)
        begins, filled = next_fit(slots[order], capacity=capacity, filled=filled)
        stream.append(sequences[order].astype(stream[0].dtype))
        starts.append(begins + position)
        position += len(order)
        num_starts += len(begins)
        if count is None or count == 0:
            break
    joined, ends = np.concatenate(stream), np.concatenate(starts)
    if count is None:
        return joined, np.append(ends, position)
    ends = ends[: count + 1] if len(ends) else np.zeros(1, dtype=np.int64)
    return joined[: int(ends[-1])], ends


def _check(sequences: NDArray[Any], count: int | None) -> None:
    if count and not len(sequences):
        message = f"{count} samples were asked for, but there is no conversation to train on"
        raise ConfigError(message, hint="give this split more of them, or ask for no samples from it")
