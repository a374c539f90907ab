"""Packs of sequences that begin alike: planning, what is saved, balance, and a step beside unpacked and padded ones.

`saved` is the share of all tokens that is not computed, `of ideal` that share beside the one with nothing repeated.
`balance` is what the slowest ranks take together over what all take on average, `over ideal` over the mean of a plan
that repeats nothing. Planning is the trees and the plan of all ranks, in milliseconds of one process.

The step is forward and backward of a transformer of four layers on the CPU: sequences one by one, in one padded batch,
and as trees in packs of 1,024 tokens with a dense mask. Sides take turns; shown is how many times as fast as one by one
each is, by medians.
"""

from __future__ import annotations

import argparse
import statistics
import time

import common
import numpy as np
import torch
from torch.nn import functional

from tokenloom import PolynomialCost
from tokenloom.packing import PrefixForest, PrefixTreeScheduler, pack_prefixes

SHAPES = {
    "128 prompts x 8, 8,192 each": (128, 8, 2048, 6144, 6145, 32768, 64),
    "64 prompts x 16, 8,192 each": (64, 16, 2048, 6144, 6145, 131072, 64),
    "128 prompts x 8, to 8,192": (128, 8, 2048, 100, 6144, 32768, 64),
    "16 prompts x 64, to 8,192": (16, 64, 2048, 100, 6144, 65536, 8),
    "512 pairs, to 4,096": (512, 2, 1500, 100, 2596, 32768, 8),
}
"""Prompts, rollouts of each, tokens of a prompt, least and most of a response, tokens of a rank, ranks."""


def rollouts(rng: np.random.Generator, prompts: int, each: int, size: int, least: int, most: int) -> list[np.ndarray]:
    sequences = []
    for _ in range(prompts):
        prompt = rng.integers(0, 50_000, size, dtype=np.int32)
        responses = (rng.integers(0, 50_000, rng.integers(least, most), dtype=np.int32) for _ in range(each))
        sequences += [np.concatenate([prompt, response]) for response in responses]
    return [sequences[number] for number in rng.permutation(len(sequences))]


def plan_row(name: str, rounds: int) -> list[object]:
    *shape, max_tokens, dp_size = SHAPES[name]
    sequences = rollouts(np.random.default_rng(0), *shape)
    scheduler = PrefixTreeScheduler(max_tokens, 1, dp_size)
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        forest = PrefixForest.of(sequences)
        met = time.perf_counter()
        plan = scheduler.plan_forest(forest)
        times.append((met - started, time.perf_counter() - started))
    model, costs, tokens = PolynomialCost(), [], 0
    for microbatch in range(plan.num_microbatches):
        packs = [PrefixForest.of([sequences[i] for i in plan.ids_of(microbatch, rank)]) for rank in range(dp_size)]
        costs.append([cost_of(pack, model) for pack in packs])
        tokens += sum(pack.num_tokens for pack in packs)
    total, slowest = sum(map(len, sequences)), np.max(costs, axis=1).sum()
    return [
        name,
        dp_size,
        plan.num_microbatches,
        f"{1 - tokens / total:.1%}",
        f"{(total - tokens) / (total - forest.num_tokens):.1%}",
        f"{slowest / np.sum(costs) * dp_size:.3f}",
        f"{slowest / cost_of(forest, model) * dp_size:.3f}",
        f"{1e3 * statistics.median(first for first, _ in times):.1f}",
        f"{1e3 * statistics.median(whole for _, whole in times):.1f}",
    ]


def cost_of(forest: PrefixForest, model: PolynomialCost) -> float:
    shared = np.where(forest.shared > 0, model.cost(np.maximum(forest.shared, 1), 1), 0)
    return float((model.cost(forest.lengths, 1) - shared).sum())


class Toy(torch.nn.Module):
    def __init__(self, vocabulary: int = 1024, width: int = 256, heads: int = 4, layers: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.places = torch.nn.Embedding(4096, width)
        self.into = torch.nn.ModuleList([torch.nn.Linear(width, 3 * width) for _ in range(layers)])
        self.out = torch.nn.ModuleList([torch.nn.Linear(width, width) for _ in range(layers)])
        self.wide = torch.nn.ModuleList([torch.nn.Linear(width, 4 * width) for _ in range(layers)])
        self.narrow = torch.nn.ModuleList([torch.nn.Linear(4 * width, width) for _ in range(layers)])
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embedding(tokens) + self.places(positions)
        for into, out, wide, narrow in zip(self.into, self.out, self.wide, self.narrow, strict=True):
            query, key, value = (
                part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for part in into(functional.layer_norm(x, x.shape[-1:])).chunk(3, dim=-1)
            )
            seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
            x = x + out(seen.transpose(1, 2).flatten(2))
            x = x + narrow(functional.gelu(wide(functional.layer_norm(x, x.shape[-1:]))))
        return self.head(x)


def step_row(name: str, shape: tuple[int, int, int, int, int], rounds: int) -> list[object]:
    rng = np.random.default_rng(1)
    sequences = [row % 1024 for row in rollouts(rng, *shape)]
    model = Toy()
    packs = pack_prefixes(sequences, max_tokens=1024)
    width = max(map(len, sequences))
    padded = torch.from_numpy(np.stack([np.pad(row, (0, width - len(row))) for row in sequences])).long()
    real = torch.arange(width) < torch.tensor([len(row) - 1 for row in sequences])[:, None]

    def alone() -> torch.Tensor:
        total = torch.zeros(())
        for row in sequences:
            tokens = torch.from_numpy(row).long()[None]
            logits = model(tokens, torch.arange(len(row))[None])[0, :-1]
            loss = functional.cross_entropy(logits, tokens[0, 1:], reduction="sum")
            loss.backward()
            total += loss.detach()
        return total

    def in_padding() -> torch.Tensor:
        logits = model(padded, torch.arange(width)[None])
        losses = functional.cross_entropy(logits.mT[..., :-1], padded[:, 1:], reduction="none")
        loss = (losses * real[:, :-1]).sum()
        loss.backward()
        return loss.detach()

    def as_trees() -> torch.Tensor:
        total = torch.zeros(())
        for pack in packs:
            mask = pack.attention_mask()[None, None]
            loss = pack.loss(model(pack.tokens[None], pack.position_ids[None], mask)[0])
            loss.backward()
            total += loss.detach()
        return total

    sides = {"alone": alone, "padded": in_padding, "trees": as_trees}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    losses = {}
    for _ in range(rounds):
        for side, work in sides.items():
            model.zero_grad(set_to_none=True)
            started = time.perf_counter()
            losses[side] = float(work())
            seconds[side].append(time.perf_counter() - started)
    assert max(losses.values()) - min(losses.values()) < 1e-4 * losses["alone"]
    medians = {side: statistics.median(times) for side, times in seconds.items()}
    tokens, computed = sum(map(len, sequences)), sum(pack.num_tokens for pack in packs)
    return [name, f"{tokens:,}", f"{computed:,}", *(f"{medians['alone'] / medians[side]:.2f}" for side in sides)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    head = ["sequences", "ranks", "microbatches", "saved", "of ideal", "balance", "over ideal", "trees ms", "plan ms"]
    common.print_rows("plans", head, [plan_row(name, options.rounds) for name in SHAPES])
    steps = {
        "4 prompts of 384, 4 answers to 128": (4, 4, 384, 32, 128),
        "1 prompt of 512, 16 answers to 128": (1, 16, 512, 32, 128),
        "8 pairs, prompt of 256": (8, 2, 256, 32, 128),
    }
    head = ["sequences", "tokens", "as trees", "alone", "padded", "trees"]
    rows = [step_row(name, shape, options.rounds) for name, shape in steps.items()]
    common.print_rows("steps: times as fast as one by one", head, rows)


if __name__ == "__main__":
    main()
