"""Several pairs into one; or `cp` of the same files."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from functools import partial

import numpy as np
import peers
from serve import Outcome, serve

BLOCK_BYTES = 1 << 24


def prepare(*, folder: str, side: str, names: list[str]) -> Callable[[], Outcome]:
    """Imports one side; work is megabytes of both files."""
    prefixes = [os.path.join(folder, name) for name in names]
    megabytes = sum(os.path.getsize(prefix + suffix) for prefix in prefixes for suffix in (".bin", ".idx")) / 1e6
    target = os.path.join(folder, f"joined-{side}")
    join = {peers.OURS: join_ours, peers.PEER: join_peer, "limit": copy}[side](prefixes, target)

    def round_() -> Outcome:
        join()
        return {"work": megabytes, **({} if side == "limit" else {"digest": partial(digest, target)})}

    def clean_round() -> Outcome:
        for suffix in (".bin", ".idx"):
            if os.path.exists(target + suffix):
                os.remove(target + suffix)
        return round_()

    return clean_round


def join_ours(prefixes: list[str], target: str) -> Callable[[], object]:
    import tokenloom

    return partial(tokenloom.merge_datasets, prefixes, target)


def join_peer(prefixes: list[str], target: str) -> Callable[[], object]:
    """Returns what the reference's tool does with its builder."""
    builder_class = peers.modules(peers.PEER)[1]

    def join() -> None:
        builder = builder_class(f"{target}.bin", dtype=np.uint16)
        for prefix in prefixes:
            builder.add_index(prefix)
        builder.finalize(f"{target}.idx")

    return join


def copy(prefixes: list[str], target: str) -> Callable[[], object]:
    os.makedirs(target, exist_ok=True)
    files = [prefix + suffix for prefix in prefixes for suffix in (".bin", ".idx")]
    return lambda: subprocess.run(["cp", *files, target], check=True)


def digest(prefix: str) -> str:
    """Returns the hash of both files."""
    state = hashlib.blake2b()
    for suffix in (".bin", ".idx"):
        with open(prefix + suffix, "rb") as file:
            while block := file.read(BLOCK_BYTES):
                state.update(block)
    return state.hexdigest()


if __name__ == "__main__":
    serve(prepare)
