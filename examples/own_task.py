"""A dataset of a task of your own, in a blend: pairs of numbers as tuples, from text files.

A subclass of `MegatronDataset` says what lies under a path, how many elements that has, and what sample i is. Splits,
sizes, blends, samplers and loaders need nothing else; there is nothing to register.

    python examples/own_task.py FOLDER
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import tokenloom


@dataclass
class SumsConfig(tokenloom.BlendedMegatronDatasetConfig):
    """What sums need to know."""

    modulus: int = 97


class Sums(tokenloom.MegatronDataset):
    """Lines such as `31 17` as (both numbers, their sum)."""

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> list[list[int]]:
        return [[int(word) for word in line.split()] for line in Path(dataset_path).read_text().splitlines()]

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: list[list[int]]) -> int:
        return len(low_level_dataset)

    def __len__(self) -> int:
        return len(self.indices) if self.num_samples is None else self.num_samples

    def __getitem__(self, idx: int) -> tuple[torch.Tensor, int]:
        numbers = self.dataset[self.indices[range(len(self))[idx] % len(self.indices)]]
        return torch.tensor(numbers), sum(numbers) % self.config.modulus


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the text files go")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    paths = [str(options.folder / name) for name in ("small.txt", "large.txt")]
    for path, scale in zip(paths, (1, 1000), strict=True):
        Path(path).write_text("".join(f"{scale * number} {scale * number + 1}\n" for number in range(40)))

    config = SumsConfig(random_seed=1, sequence_length=2, blend=(paths, [0.75, 0.25]), split="8,2,0")
    train, valid, _ = tokenloom.BlendedMegatronDatasetBuilder(Sums, [24, 8, 0], lambda: True, config).build()
    print(f"{len(train)} samples for training, {len(valid)} for validation")
    # Two ranks; each global batch of eight has six of the first file and two of the second, three and one per rank.
    for rank in range(2):
        sampler = tokenloom.samplers.BalancedSampler(train, len(train), 0, 4, 8, rank, 2)
        for dataset_id, numbers, total in tokenloom.build_dataloader(train, sampler):
            print(f"rank {rank}: datasets {sorted(dataset_id.tolist())}, sums {total.tolist()} of {len(numbers)} pairs")


if __name__ == "__main__":
    main()
