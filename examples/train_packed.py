"""Trains a tiny GPT on packs of whole documents, balanced over processes; runs on CPU.

Run `make demo` first, or name any data:

    torchrun --nproc-per-node 2 examples/train_packed.py --data demo-output/stdlib_text_document

Every process plans each global batch from the lengths in the index, and reads only the documents it works on. With
`--exchange` each reads its share of the batch as it comes and the processes exchange documents, as is needed where
lengths are not known beforehand. Both see the same packs, so the losses that they print are the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

import tokenloom

LONGEST = 256
"""Tokens of a document that are kept."""


class Documents:
    """Documents of a pair as sub-samples of their own length."""

    def __init__(self, prefix: str) -> None:
        self.data = tokenloom.IndexedDataset(prefix)
        tokens = np.minimum(self.data.sequence_lengths.astype(np.int64) - 1, LONGEST)
        self.usable = np.flatnonzero(tokens > 0)
        self.tokens = tokens[self.usable]

    def __len__(self) -> int:
        return len(self.tokens)

    def lengths(self, positions: np.ndarray) -> np.ndarray:
        return self.tokens[positions]

    padded_lengths = lengths

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        document, length = self.usable[position], int(self.tokens[position])
        tokens = torch.from_numpy(self.data[int(document)][: length + 1].astype(np.int64))
        return {
            "tokens": tokens[:-1],
            "labels": tokens[1:],
            "loss_mask": torch.ones(length),
            "position_ids": torch.arange(length),
        }


class TinyGPT(nn.Module):
    """One transformer layer; enough to see the loss fall."""

    def __init__(self, vocab_size: int, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(LONGEST, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, vocab_size)

    def forward(
        self, tokens: torch.Tensor, position_ids: torch.Tensor, params: tokenloom.PackedSeqParams
    ) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.positions(position_ids)
        return self.head(self.layer(hidden, src_mask=_forbidden(params.cu_seqlens_q)))


def _forbidden(cu_seqlens: torch.Tensor) -> torch.Tensor:
    """Returns where a token must not look: ahead, and into other documents. A GPU kernel takes `cu_seqlens` itself."""
    document = torch.repeat_interleave(torch.arange(len(cu_seqlens) - 1), cu_seqlens.diff())
    index = torch.arange(len(document))
    return (document[:, None] != document) | (index[:, None] < index)


def global_batches(
    data: Documents, groups: tokenloom.ProcessGroups, options: argparse.Namespace
) -> Iterator[tuple[Any, int]]:
    """Yields, for each step, an iterator over packs and their number."""
    config = tokenloom.PackingConfig(
        max_seqlen_per_dp_cp_rank=options.max_tokens, sequence_packing_scheduler=options.scheduler
    )
    for step in range(options.steps):
        positions = np.arange(step * options.global_batch_size, (step + 1) * options.global_batch_size)
        positions %= len(data.usable)
        if options.exchange:
            mine = positions[dist.get_rank() :: dist.get_world_size()]
            items = (data[int(position)] for position in mine)
            wrapped = tokenloom.wrap_data_iterator(items, config, len(mine), groups)
        else:
            wrapped = tokenloom.wrap_dataset(data, positions, config, groups)
        yield wrapped[:2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="demo-output/stdlib_text_document", help="prefix of a .bin/.idx pair")
    parser.add_argument("--vocab-size", type=int, default=2**15)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--global-batch-size", type=int, default=32, help="documents; a multiple of the processes")
    parser.add_argument("--max-tokens", type=int, default=1024, help="in a pack")
    parser.add_argument("--scheduler", default="cost_balanced", choices=("dp_balanced", "cost_balanced"))
    parser.add_argument("--exchange", action="store_true", help="exchange documents instead of reading by plan")
    options = parser.parse_args()

    torch.manual_seed(0)  # the same weights everywhere
    model = TinyGPT(options.vocab_size)
    # Before the groups: what an optimizer imports would otherwise keep the default group, and its threads, for ever,
    # and threads that outlive Python can abort the process at its end.
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    dist.init_process_group("gloo")
    groups = tokenloom.ProcessGroups.from_mesh(
        init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    )
    data = Documents(options.data)

    for step, (packs, num_microbatches) in enumerate(global_batches(data, groups, options)):
        optimizer.zero_grad()
        totals = torch.zeros(2)  # loss, and tokens that it is the sum of
        for _ in range(num_microbatches):
            tokens, labels, loss_mask, _, position_ids, params, _ = (
                tokenloom.get_batch_on_this_rank_for_sequence_packing(packs, pg_collection=groups)
            )
            logits = model(tokens, position_ids, params)
            losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
            loss = (losses * loss_mask.flatten()).sum()
            loss.backward()
            totals += torch.stack([loss.detach(), loss_mask.sum()])
        dist.all_reduce(totals)
        for parameter in model.parameters():  # packs differ in tokens: the mean is taken over all of them at once
            dist.all_reduce(parameter.grad)
            parameter.grad /= totals[1]
        optimizer.step()
        if dist.get_rank() == 0:
            mean = totals[0] / totals[1]
            print(f"step {step}: {num_microbatches} microbatches, {int(totals[1])} tokens, loss {mean:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
