"""The order of a blend: which dataset each sample comes from, and which of its samples it is."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import peers
from serve import Outcome, serve


def prepare(*, folder: str, side: str, datasets: int, size: int, weights: str, mode: str) -> Callable[[], Outcome]:
    """Draws weights, equal or of a Dirichlet distribution; `mode` is weighted or exhaustive."""
    drawn = np.ones(datasets) if weights == "equal" else np.random.default_rng(datasets).dirichlet(np.ones(datasets))
    shares = drawn / drawn.sum()
    sizes = None
    if mode == "exhaustive":
        sizes = np.maximum(shares * size, 1).astype(np.int64)
        size = int(sizes.sum())
        shares = sizes / float(size)
    if side == peers.OURS:
        from tokenloom.kernels.order import build_blending_indices

        build = lambda: build_blending_indices(shares, size=size, sizes=sizes)  # noqa: E731
    elif side == peers.PEER:
        build = peer_blend(shares, size, sizes)
    else:
        build = filling(size)

    def round_() -> Outcome:
        arrays = build()
        return {"work": size, "digest": lambda: f"{zlib.crc32(arrays[1], zlib.crc32(arrays[0])):08x}"}

    return round_


def peer_blend(shares: np.ndarray, size: int, sizes: np.ndarray | None) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """Returns what fills arrays that exist already, as the peer does."""
    peers.modules(peers.PEER)
    from megatron.core.datasets import helpers

    arrays = np.zeros(size, dtype=np.int16), np.zeros(size, dtype=np.int64)

    def build() -> tuple[np.ndarray, np.ndarray]:
        if sizes is None:
            helpers.build_blending_indices(*arrays, shares, len(shares), size, False)
        else:
            helpers.build_exhaustive_blending_indices(*arrays, sizes, len(shares))
        return arrays

    return build


def filling(size: int) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """Returns what writes arrays of that size."""
    sources = np.ones(size, dtype=np.int16), np.ones(size, dtype=np.int64)
    return lambda: tuple(source.copy() for source in sources)


if __name__ == "__main__":
    serve(prepare)
