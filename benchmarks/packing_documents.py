"""Best-fit packing of documents: documents per second and fill, compared with the usual Python segment tree.

Lengths are lognormal, 665 tokens on average, as in the other benchmarks. Our side does the work of a dataset for an
epoch: count the packs, shuffle the documents, pack them, shuffle the packs. The other side packs the same pieces into
as many rows and writes no index; it gets fewer documents because it is much slower. Sides alternate in one process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import common
import numpy as np

from tokenloom.order.array_store import ArrayStore
from tokenloom.order.documents import Documents, Rows
from tokenloom.order.packs import best_fit_report
from tokenloom.order.policies import BestFitPacks, SampleShape


def lognormal(count: int) -> np.ndarray:
    """Returns lengths: int32[count]."""
    drawn = np.random.default_rng(0).lognormal(6.0, 1.0, size=count)
    return np.minimum(drawn.astype(np.int32) + 1, 50_000)


@dataclass(frozen=True)
class Lengths:
    """Data with known document lengths only."""

    sequence_lengths: np.ndarray


def pack_ours(lengths: np.ndarray, capacity: int) -> int:
    """Builds the index of an epoch; returns the number of packs."""
    documents = Documents(source=Lengths(lengths), rows=Rows.of(range(len(lengths))))
    policy = BestFitPacks(SampleShape(sequence_length=capacity, extra=0))
    epochs = policy.epochs(documents.count_tokens(), documents.length_blocks())
    plan = epochs.plan(None)
    policy.order(documents, epochs, plan, seed=1234, store=ArrayStore(cache=None, description="", name="documents"))
    return plan.num_samples


def pack_with_tree(lengths: np.ndarray, capacity: int) -> int:
    """Packs by best-fit decreasing, with a segment tree over the free space of rows; returns the rows."""
    leaves = 1 << capacity.bit_length()
    largest = [0] * (2 * leaves)  # the largest room below each node that has rows
    rows_with: list[list[int]] = [[] for _ in range(capacity + 1)]
    rows: list[list[int]] = []

    def update(room: int) -> None:
        node = leaves + room
        largest[node] = room if rows_with[room] else 0
        while node > 1:
            node //= 2
            largest[node] = max(largest[2 * node], largest[2 * node + 1])

    full = int((lengths // capacity).sum())
    rests = lengths % capacity
    for number, length in enumerate(sorted((int(rest) for rest in rests if rest), reverse=True)):
        node = leaves + length
        while node > 1 and largest[node] < length:  # up to a subtree that holds a room of that size or more
            node = node + 1 if node % 2 == 0 and largest[node + 1] >= length else node // 2
        if largest[node] >= length:
            while node < leaves:
                node = 2 * node if largest[2 * node] >= length else 2 * node + 1
            room = node - leaves
            row = rows_with[room].pop()
            if not rows_with[room]:
                update(room)
        else:
            room, row = capacity, len(rows)
            rows.append([])
        rows[row].append(number)
        if left := room - length:
            rows_with[left].append(row)
            if len(rows_with[left]) == 1:
                update(left)
    return full + len(rows)


def seconds(pack, lengths: np.ndarray, capacity: int) -> tuple[float, int]:
    started = time.perf_counter()
    packs = pack(lengths, capacity)
    return time.perf_counter() - started, packs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[1_000_000, 20_000_000])
    parser.add_argument("--capacities", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--tree-documents", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for count in options.documents:
        lengths = lognormal(count)
        for capacity in options.capacities:
            few = lengths[: options.tree_documents]
            ours, tree = [], []
            for _ in range(options.rounds):
                ours.append(len(lengths) / seconds(pack_ours, lengths, capacity)[0])
                tree.append(len(few) / seconds(pack_with_tree, few, capacity)[0])
            equal = pack_ours(few, capacity) == pack_with_tree(few, capacity)
            report = best_fit_report(lengths, sequence_length=capacity, extra=0)
            fast, slow = statistics.median(ours), statistics.median(tree)
            rows.append(
                [
                    f"{count:,}",
                    capacity,
                    f"{fast / 1e6:.2f} M",
                    f"{slow / 1e6:.3f} M",
                    f"{fast / slow:.0f}x",
                    "equal" if equal else "DIFFERENT",
                    f"{report.fill:.4%}",
                    f"{report.documents_per_pack:.2f}",
                ]
            )
    common.print_rows(
        "Documents per second of best-fit packing (medians)",
        ("documents", "capacity", "ours", "tree", "ours / tree", "packs", "fill", "documents per pack"),
        rows,
    )


if __name__ == "__main__":
    main()
