"""Packs, written to be read: lists and loops, one process, no tensors."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

NAMES = ("tokens", "labels", "position_ids", "loss_mask")


def sample(number: int, length: int) -> dict[str, np.ndarray]:
    """Returns sub-sample `number`: all its values tell which one it is, and nothing about one follows from another."""
    rng = np.random.default_rng(number)
    return {
        "tokens": number * 100_000 + np.arange(1, length + 1),
        "labels": rng.integers(-100, 2**40, size=length),
        "position_ids": rng.integers(1, 100, size=length),
        "loss_mask": rng.choice(np.array([0.5, 1.0, 3.25], dtype=np.float32), size=length),
    }


def round_up(length: int, multiple: int) -> int:
    """Returns the smallest multiple that is not below the length."""
    while length % multiple:
        length += 1
    return length


def partition(cu_seqlens: Sequence[int], cp_size: int, cp_rank: int) -> list[int]:
    """Returns where the tokens of a context-parallel rank lie: of each sequence, its two chunks of 2 × cp."""
    indices: list[int] = []
    for start, stop in itertools.pairwise(cu_seqlens):
        chunk = (stop - start) // (2 * cp_size)
        for number in (cp_rank, 2 * cp_size - 1 - cp_rank):
            indices += range(start + number * chunk, start + (number + 1) * chunk)
    return indices if cp_size > 1 else list(range(cu_seqlens[-1]))


def pack(samples: Sequence[dict[str, np.ndarray]], multiple: int) -> dict[str, Any]:
    """Returns the sub-samples in a row, each padded with zeros, and where padding is."""
    packed: dict[str, Any] = {name: [] for name in NAMES}
    packed |= {"padding_mask": [], "cu_seqlens": [0], "cu_seqlens_padded": [0]}
    for one in samples:
        length = len(one["tokens"])
        padding = round_up(length, multiple) - length
        for name in NAMES:
            packed[name] += [*one[name].tolist(), *[0] * padding]
        packed["padding_mask"] += [*[False] * length, *[True] * padding]
        packed["cu_seqlens"].append(packed["cu_seqlens"][-1] + length)
        packed["cu_seqlens_padded"].append(packed["cu_seqlens_padded"][-1] + length + padding)
    return packed


def part_of(packed: dict[str, Any], cp_size: int, cp_rank: int) -> dict[str, Any]:
    """Returns what a context-parallel rank has of a pack; the boundaries stay those of the whole."""
    indices = partition(packed["cu_seqlens_padded"], cp_size, cp_rank)
    cut = {name: [packed[name][index] for index in indices] for name in (*NAMES, "padding_mask")}
    return packed | cut
