"""Trains a tiny GPT for a few steps, stops in the middle of an epoch, and goes on with the very next batch.

Run `make demo` first, or name any data:

    python examples/train_tiny_gpt.py --data demo-output/stdlib_text_document --tokenizer demo-output/tokenizer.json

The second half runs twice: once straight on, and once from the checkpoint with a new dataset, sampler and loader, as
after a restart. Both must see the same batches and come to the same losses.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

import tokenloom

SEQUENCE_LENGTH = 128
MICRO_BATCH_SIZE = 4


class TinyGPT(nn.Module):
    """Two transformer layers; enough to see the loss fall."""

    def __init__(self, vocab_size: int, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(SEQUENCE_LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens: torch.Tensor, position_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.positions(position_ids)
        return self.head(self.layers(hidden, mask=mask))


def batches(options: argparse.Namespace, consumed_samples: int) -> Iterator[dict[str, torch.Tensor]]:
    """Everything from the paths on: what a restarted job does. Only the consumed samples tell it from the first."""
    config = tokenloom.GPTDatasetConfig(
        random_seed=1234,
        sequence_length=SEQUENCE_LENGTH,
        blend=([options.data], None),
        split="99,1,0",
        tokenizer=tokenloom.load_tokenizer(options.tokenizer),
        reset_position_ids=True,
        reset_attention_mask=True,
        create_attention_mask=True,
        eod_mask_loss=False,
    )
    train, _, _ = tokenloom.BlendedMegatronDatasetBuilder(
        tokenloom.GPTDataset, [10_000, None, None], lambda: True, config
    ).build()
    sampler = tokenloom.MegatronPretrainingSampler(
        len(train), consumed_samples, MICRO_BATCH_SIZE, data_parallel_rank=0, data_parallel_size=1
    )
    return iter(tokenloom.build_dataloader(train, sampler, num_workers=options.workers))


def train(
    model: TinyGPT, optimizer: torch.optim.Optimizer, data: Iterator[dict[str, torch.Tensor]], steps: int
) -> list[tuple[float, int]]:
    """Trains for some steps; returns (loss, fingerprint of the batch) of each."""
    history = []
    for _ in range(steps):
        batch = next(data)
        mask = batch["attention_mask"].repeat_interleave(4, dim=0).squeeze(1)  # one per head
        logits = model(batch["tokens"], batch["position_ids"], mask)
        losses = functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
        weights = batch["loss_mask"].flatten()
        loss = (losses * weights).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append((loss.item(), hash(batch["tokens"].numpy().tobytes())))
    return history


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="demo-output/stdlib_text_document", help="prefix of a .bin/.idx pair")
    parser.add_argument("--tokenizer", default="demo-output/tokenizer.json")
    parser.add_argument("--steps", type=int, default=20, help="before and after the restart")
    parser.add_argument("--workers", type=int, default=0, help="worker processes of the loader")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = TinyGPT(tokenloom.load_tokenizer(options.tokenizer).vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = batches(options, consumed_samples=0)
    first = train(model, optimizer, data, options.steps)
    print(f"steps 0 to {options.steps - 1}: loss {first[0][0]:.3f} to {first[-1][0]:.3f}")

    checkpoint = io.BytesIO()
    consumed_samples = options.steps * MICRO_BATCH_SIZE
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "consumed_samples": consumed_samples},
        checkpoint,
    )
    straight_on = train(model, optimizer, data, options.steps)

    checkpoint.seek(0)
    state = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    resumed = train(model, optimizer, batches(options, state["consumed_samples"]), options.steps)
    print(f"steps {options.steps} to {2 * options.steps - 1}: loss {resumed[0][0]:.3f} to {resumed[-1][0]:.3f}")

    if resumed != straight_on:
        raise SystemExit("the resumed run saw other batches, or came to other losses")
    print(f"resumed after {consumed_samples} samples: all {options.steps} batches and losses are identical")


if __name__ == "__main__":
    main()
