"""Start-up over many small datasets beside megatron-core: one blend built cold, then opened warm, and the fast path.

Each run is a process of its own; imports are not counted; sides alternate. "fast" is the peer with its three flags
(fast_cache_load, defer_npy_index_mmap, sequences_per_dataset); ours runs it without any flag. "4 ranks" is warm on as
many processes joined by gloo, the slowest of them; more than there are cores share these.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time

import common
import numpy as np
import peers

MODES = ("cold", "warm", "fast", "1 ranks", "2 ranks", "4 ranks")
DOCUMENTS = 40


def write_datasets(folder: str, count: int) -> None:
    """Writes small pairs."""
    import tokenloom

    rng = np.random.default_rng(0)
    for number in range(count):
        lengths = rng.integers(50, 500, size=DOCUMENTS).astype(np.int32)
        with tokenloom.IndexedDatasetBuilder(f"{folder}/{number:05d}.bin", dtype=np.uint16) as builder:
            builder.append_block(rng.integers(1, 1000, size=int(lengths.sum())), lengths)
            builder.finalize(f"{folder}/{number:05d}.idx")


def child(side: str, mode: str, folder: str, cache: str, count: int) -> None:
    """Builds the blend once; reports the descriptors that stay open."""

    def prepare():
        build = prepare_build(side, mode, folder, cache, count)
        if side == peers.PEER:  # its blends with a cache need a process group, even of one
            import torch.distributed as dist

            dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())

        def work():
            train, _, _ = build()
            assert len(train) >= 50 * count
            return len(os.listdir("/proc/self/fd"))

        return work

    common.measure(prepare)


def prepare_build(side: str, mode: str, folder: str, cache: str, count: int):
    """Imports one side and returns what builds the blend."""
    _, _, dataset, config, _ = peers.modules(side)
    prefixes = [f"{folder}/{number:05d}" for number in range(count)]
    settings = {
        "random_seed": 1,
        "sequence_length": 128,
        "tokenizer": peers.Tokenizer(),
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "create_attention_mask": False,
        "path_to_cache": cache,
        "blend_per_split": [(prefixes, [1.0] * count), None, None],
    }
    if side == peers.OURS:
        from tokenloom import BlendedMegatronDatasetBuilder as builder_class
    else:
        from megatron.core.datasets.blended_megatron_dataset_builder import (
            BlendedMegatronDatasetBuilder as builder_class,
        )

        if mode == "fast":
            settings |= {"fast_cache_load": True, "defer_npy_index_mmap": True}
            settings["sequences_per_dataset"] = {prefix: [DOCUMENTS, DOCUMENTS + 1] for prefix in prefixes}
    return lambda: builder_class(dataset, [50 * count, None, None], lambda: True, config(**settings)).build()


def ranks_child(side: str, world_size: int, folder: str, cache: str, count: int) -> None:
    """Builds the blend on several ranks at once; reports the seconds of the slowest."""
    import torch.distributed as dist

    build = prepare_build(side, "warm", folder, cache, count)
    seconds = multiprocessing.get_context("fork").Queue()
    store = f"{tempfile.mkdtemp(dir=folder)}/store"

    def rank_main(rank: int) -> None:
        dist.init_process_group("gloo", rank=rank, world_size=world_size, init_method=f"file://{store}")
        dist.barrier()
        started = time.perf_counter()
        build()
        seconds.put(time.perf_counter() - started)
        dist.barrier()

    ranks = [multiprocessing.get_context("fork").Process(target=rank_main, args=(rank,)) for rank in range(world_size)]
    for rank in ranks:
        rank.start()
    slowest = max(seconds.get(timeout=300) for _ in ranks)
    for rank in ranks:
        rank.join()
    print(json.dumps({"seconds": slowest, "growth_bytes": 0}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        side, mode, folder, cache, count = options.child
        if mode.endswith("ranks"):
            ranks_child(side, int(mode.split()[0]), folder, cache, int(count))
        else:
            child(side, mode, folder, cache, int(count))
        return
    rows = []
    caches: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_datasets(folder, options.datasets)
        for mode in MODES:

            def run(side: str, mode: str = mode):
                if mode == "cold":
                    # A new folder each time: ext4 creates files twenty times slower for seconds after deleting many.
                    caches[side] = tempfile.mkdtemp(dir=folder)
                return common.run_child("startup.py", "--child", side, mode, folder, caches[side], options.datasets)

            results = common.alternate(peers.SIDES, options.rounds, run)
            ours, peer = results[peers.OURS], results[peers.PEER]
            rows.append(
                [
                    mode,
                    f"{ours['seconds']:.3f}",
                    f"{peer['seconds']:.3f}",
                    f"{peer['seconds'] / ours['seconds']:.1f}x",
                    ours["result"] or "",
                    peer["result"] or "",
                ]
            )
    common.print_rows(
        f"Start-up over {options.datasets} datasets (medians)",
        ("mode", "ours s", "peer s", "speed-up", "ours open files", "peer open files"),
        rows,
    )


if __name__ == "__main__":
    main()
