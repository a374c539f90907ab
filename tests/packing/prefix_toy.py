"""A causal transformer of two layers, for single sequences or rows with a mask."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


class Toy(torch.nn.Module):
    def __init__(self, vocabulary: int = 17, width: int = 16, positions: int = 128) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)

        def parameter(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(*shape, generator=generator) / width**0.5)

        self.embedding = parameter(vocabulary, width)
        self.places = parameter(positions, width)
        self.layers = torch.nn.ParameterList([parameter(width, 5 * width) for _ in range(2)])
        self.outs = torch.nn.ParameterList([parameter(2 * width, width) for _ in range(2)])
        self.head = parameter(width, vocabulary)

    def forward(self, tokens, position_ids, mask):
        x = self.embedding[tokens] + self.places[position_ids]
        for layer, out in zip(self.layers, self.outs, strict=True):
            normal = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
            query, key, value, gate, up = (normal @ layer).chunk(5, dim=-1)
            scores = (query @ key.T / query.shape[-1] ** 0.5).masked_fill(~mask, float("-inf"))
            x = x + torch.cat([scores.softmax(-1) @ value, torch.nn.functional.silu(gate) * up], dim=-1) @ out
        return x @ self.head


def causal(length):
    return torch.ones(length, length, dtype=torch.bool).tril()


def unpacked_loss(model, sequences, labels, weights, positions):
    """Returns the sum of the weighted losses of single sequences."""
    total = torch.zeros((), dtype=torch.float64)
    for tokens, wanted, weight, places in zip(sequences, labels, weights, positions, strict=True):
        logits = model(torch.tensor(tokens), torch.tensor(places), causal(len(tokens)))
        losses = torch.nn.functional.cross_entropy(logits, torch.tensor(wanted), reduction="none")
        total = total + (losses * torch.tensor(weight, dtype=losses.dtype)).sum()
    return total


def gradients(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
