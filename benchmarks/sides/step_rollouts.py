"""Forward and backward of rollouts through a transformer of four layers on the CPU: trees, padded, or single."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from pack_prefixes import rollouts
from serve import Outcome, serve
from torch.nn import functional

VOCABULARY, MAX_TOKENS = 1024, 1024


class Toy(torch.nn.Module):
    def __init__(self, width: int = 256, heads: int = 4, layers: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = torch.nn.Embedding(VOCABULARY, width)
        self.places = torch.nn.Embedding(4096, width)
        self.into = torch.nn.ModuleList([torch.nn.Linear(width, 3 * width) for _ in range(layers)])
        self.out = torch.nn.ModuleList([torch.nn.Linear(width, width) for _ in range(layers)])
        self.wide = torch.nn.ModuleList([torch.nn.Linear(width, 4 * width) for _ in range(layers)])
        self.narrow = torch.nn.ModuleList([torch.nn.Linear(4 * width, width) for _ in range(layers)])
        self.head = torch.nn.Linear(width, VOCABULARY)

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


def prepare(*, folder: str, way: str, shape: list[int]) -> Callable[[], Outcome]:
    """Draws `rollouts` of a distribution; a round is one step over all of them, and reports the loss with four digits.

    `way` is "trees", packs of 1,024 tokens with a dense mask; "padded", one batch; "alone", one sequence at a time; or
    "floor", the distinct tokens as sequences of 1,024 without a mask.
    """
    torch.manual_seed(0)
    sequences = [row % VOCABULARY for row in rollouts(np.random.default_rng(1), *shape)]
    model, num_tokens = Toy(), sum(map(len, sequences))
    losses = {"trees": trees, "padded": padded, "alone": alone, "floor": floor}[way](model, sequences)

    def step() -> Outcome:
        model.zero_grad(set_to_none=True)
        total = 0.0
        for loss in losses():
            loss.backward()
            total += float(loss.detach())
        return {"work": num_tokens, "digest": f"{total:.4g}"}

    return step


def trees(model: Toy, sequences: list[np.ndarray]) -> Callable[[], object]:
    from tokenloom.packing import pack_prefixes

    def losses() -> object:
        for pack in pack_prefixes(sequences, max_tokens=MAX_TOKENS):
            mask = pack.attention_mask()[None, None]
            yield pack.loss(model(pack.tokens[None], pack.position_ids[None], mask)[0])

    return losses


def padded(model: Toy, sequences: list[np.ndarray]) -> Callable[[], object]:
    width = max(map(len, sequences))
    tokens = torch.from_numpy(np.stack([np.pad(row, (0, width - len(row))) for row in sequences])).long()
    real = torch.arange(width - 1) < torch.tensor([len(row) - 1 for row in sequences])[:, None]

    def losses() -> object:
        logits = model(tokens, torch.arange(width)[None])
        yield (functional.cross_entropy(logits.mT[..., :-1], tokens[:, 1:], reduction="none") * real).sum()

    return losses


def alone(model: Toy, sequences: list[np.ndarray]) -> Callable[[], object]:
    rows = [torch.from_numpy(row).long()[None] for row in sequences]

    def losses() -> object:
        for row in rows:
            logits = model(row, torch.arange(row.shape[1])[None])[0, :-1]
            yield functional.cross_entropy(logits, row[0, 1:], reduction="sum")

    return losses


def floor(model: Toy, sequences: list[np.ndarray]) -> Callable[[], object]:
    from tokenloom.packing import PrefixForest

    num_tokens = PrefixForest.of(sequences).num_tokens
    sizes = [MAX_TOKENS] * (num_tokens // MAX_TOKENS) + [num_tokens % MAX_TOKENS or MAX_TOKENS]
    return alone(model, [np.resize(np.concatenate(sequences), size) for size in sizes])


if __name__ == "__main__":
    serve(prepare)
