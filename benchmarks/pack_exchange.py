"""The cost of packing a global batch on 8 processes: exchange, known lengths, and as the peer documents it.

The peer's released package has no packing scheduler, so "documented" implements its documentation directly: one
all-to-all per tensor over data x context parallelism, padded to the multiple that context parallelism needs. Reading,
planning and packing are the same for all three. Sides alternate in one set of processes; times are medians of the
slowest rank, bytes are sums over ranks of the bytes sent to other ranks.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path

import common
import numpy as np

RANKS = 8
SIDES = ("exchange", "known lengths", "documented")
NAMES = ("tokens", "labels", "position_ids", "loss_mask")


class Samples:
    """Sub-samples in memory, with lognormal lengths."""

    def __init__(self, count: int, longest: int) -> None:
        import torch

        rng = np.random.default_rng(0)
        self._lengths = np.clip(rng.lognormal(6.5, 1.0, size=count).astype(np.int64), 16, longest)
        self.tokens = torch.from_numpy(rng.integers(0, 50_000, size=longest + 1))
        self.ones, self.positions = torch.ones(longest), torch.arange(longest)

    def __len__(self):
        return len(self._lengths)

    def lengths(self, positions):
        return self._lengths[positions]

    padded_lengths = lengths

    def __getitem__(self, position):
        length = int(self._lengths[position])
        return {
            "tokens": self.tokens[:length],
            "labels": self.tokens[1 : length + 1],
            "loss_mask": self.ones[:length],
            "position_ids": self.positions[:length],
        }


def documented(items, count, config, groups):
    """Returns the packs of this rank and the bytes it sent; sends each tensor separately, with padding."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional

    from tokenloom import build_packed_microbatches
    from tokenloom.megatron.core.datasets.data_schedule_utils import get_batch_and_global_seqlens
    from tokenloom.packing.schedulers import scheduler_map

    dp, cp_size = groups.dp.size(), 1 if groups.cp is None else groups.cp.size()
    batch, _, _, offsets, lengths = get_batch_and_global_seqlens(items, count, groups.dp)
    lengths, offsets = np.array(lengths), offsets.tolist()
    multiple = 2 * cp_size if cp_size > 1 else 1
    padded = -(-lengths // multiple) * multiple
    scheduler = scheduler_map[config.sequence_packing_scheduler](config.max_seqlen_per_dp_cp_rank, cp_size, dp, None)
    plan = scheduler.plan(padded)
    mine, lane = groups.dp_cp.rank(), range(groups.dp_cp.rank() % cp_size, dp * cp_size, cp_size)
    first = int(offsets[groups.dp.rank()])
    samples, sent = {}, 0
    wanted = [np.sort(np.concatenate([plan.ids_of(i, rank) for i in range(plan.num_microbatches)])) for rank in lane]

    def owned(ids, rank):
        return [int(i) for i in ids if offsets[rank] <= i < offsets[rank + 1]]

    outgoing = dict(zip(lane, (owned(ids, groups.dp.rank()) for ids in wanted), strict=True))
    incoming = dict(zip(lane, (owned(wanted[groups.dp.rank()], rank) for rank in range(dp)), strict=True))
    for name in NAMES:
        rows = [
            functional.pad(batch[i - first][name], (0, int(padded[i] - lengths[i])))
            for ids in outgoing.values()
            for i in ids
        ]
        out = torch.cat(rows)
        sizes = [sum(int(padded[i]) for i in outgoing.get(rank, ())) for rank in range(dp * cp_size)]
        arriving = [sum(int(padded[i]) for i in incoming.get(rank, ())) for rank in range(dp * cp_size)]
        received = torch.empty(sum(arriving), dtype=out.dtype)
        dist.all_to_all_single(received, out, arriving, sizes, group=groups.dp_cp)
        sent += (sum(sizes) - sizes[mine]) * out.element_size()
        ids = [i for row in incoming.values() for i in row]
        for i, part in zip(ids, received.split([int(padded[i]) for i in ids]), strict=True):
            sizes_of = {"original_seq_len": int(lengths[i]), "padded_seq_len": int(padded[i])}
            samples.setdefault(i, sizes_of)[name] = part
    grouped = [[samples[int(i)] for i in plan.ids_of(step, mine)] for step in range(plan.num_microbatches)]
    return build_packed_microbatches(grouped, "cpu"), sent


def work(rank, folder, options, results):
    """Runs all rounds of all sides in one process; rank 0 reports."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    import tokenloom

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS)
    dp = RANKS // options.cp
    mesh = init_device_mesh("cpu", (dp, options.cp), mesh_dim_names=("dp", "cp"))
    groups = tokenloom.ProcessGroups.from_mesh(mesh)
    config = tokenloom.PackingConfig(
        max_seqlen_per_dp_cp_rank=options.max_tokens // options.cp, sequence_packing_scheduler="cost_balanced"
    )
    data = Samples(options.samples, options.max_tokens)
    mine = range(rank // options.cp, options.samples, dp)
    rows = []
    for turn in range(options.rounds + 1):
        for side in SIDES:
            dist.barrier()
            started = time.perf_counter()
            items = (data[i] for i in mine)
            with tokenloom.measure_traffic() as traffic:
                if side == "documented":
                    packs, sent = documented(items, len(mine), config, groups)
                elif side == "exchange":
                    packs, *_ = tokenloom.wrap_data_iterator(items, config, len(mine), groups)
                else:
                    packs, *_ = tokenloom.wrap_dataset(data, range(options.samples), config, groups)
            seconds = time.perf_counter() - started
            check = sum(int(pack["tokens"].sum()) for pack in packs)
            bytes_sent = traffic.total() + (sent if side == "documented" else 0)
            told = torch.tensor([seconds, bytes_sent, check], dtype=torch.float64)
            everyone = [torch.empty_like(told) for _ in range(RANKS)]
            dist.all_gather(everyone, told)
            table = torch.stack(everyone)
            if turn:
                rows.append((side, float(table[:, 0].max()), int(table[:, 1].sum()), table[:, 2].tolist()))
    if rank == 0:
        assert len({tuple(check) for *_, check in rows}) == 1, "the sides gave different packs"
        results.put([row[:3] for row in rows])
    dist.barrier()
    os._exit(0) if rank else dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1024, help="sub-samples of a global batch")
    parser.add_argument("--max-tokens", type=int, default=16384, help="of a pack")
    parser.add_argument("--cp", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=work, args=(rank, Path(folder), options, results)) for rank in range(RANKS)]
        for process in processes:
            process.start()
        rows = results.get(timeout=600)
        for process in processes:
            process.join()
    summary = {
        side: (statistics.median(row[1] for row in rows if row[0] == side), next(r[2] for r in rows if r[0] == side))
        for side in SIDES
    }
    slowest, most = summary["documented"]
    common.print_rows(
        f"A global batch of {options.samples} sub-samples on {RANKS} processes, cp {options.cp} (medians)",
        ("side", "ms", "speed-up", "MB sent", "share"),
        [
            [side, f"{1e3 * seconds:.1f}", f"{slowest / seconds:.2f}x", f"{sent / 1e6:.2f}", f"{sent / most:.0%}"]
            for side, (seconds, sent) in summary.items()
        ],
    )


if __name__ == "__main__":
    main()
