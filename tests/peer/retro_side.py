"""A process of its own that reads project folders with megatron-core 0.15.3, the last release that has RETRO.

`python retro_side.py CASES OUTPUT`: cases are a JSON list of what `read` takes; arrays go to OUTPUT, an .npz file.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

PEER = Path(os.environ.get("TOKENLOOM_RETRO_PEER", Path(__file__).parents[2] / "build" / "megatron-core-0.15.3"))
"""Where the peer is."""


class Tokenizer:
    """What the peer's datasets ask of one."""

    def __init__(self, *, eod: int, vocab_size: int, pad: int) -> None:
        self.eod, self.vocab_size, self.pad = eod, vocab_size, pad
        self.unique_identifiers = {"class": "StandInTokenizer", "vocab_size": vocab_size}


def read(case: dict[str, Any]) -> dict[str, Any]:
    """Returns what the peer gives for a case: samples by split and position, keys and lengths of splits."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.retro import MultiSplitGPTDataset, MultiSplitGPTDatasetConfig, get_retro_datasets

    resets = dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), False)
    config = MultiSplitGPTDatasetConfig(**case["settings"], **resets, tokenizer=Tokenizer(**case["tokenizer"]))
    built = BlendedMegatronDatasetBuilder(MultiSplitGPTDataset, case["sizes"], lambda: True, config).build()
    samples = {
        key: (dataset, size)
        for key, dataset, size in zip(("train", "valid", "test"), built, case["sizes"], strict=True)
    }
    found: dict[str, Any] = {"matrix": json.dumps(config.split_matrix)}
    for key, (dataset, _) in samples.items():
        if dataset is not None:
            found |= {f"{key}/hash": dataset.unique_description_hash, f"{key}/length": len(dataset)}
    length = config.sequence_length
    datasets = get_retro_datasets(SimpleNamespace(**case["retro"]), samples, length, case["tokenizer"]["eod"])
    for key, dataset in zip(samples, datasets, strict=True):
        for position in range(0 if dataset is None else len(dataset)):
            for name, array in dataset[position].items():
                found[f"{key}/{position}/{name}"] = array
    return found


def main(cases_path: str, output: str) -> None:
    import megatron.core

    assert megatron.core.__version__ == "0.15.3", megatron.core.__version__
    with open(cases_path) as stream:
        cases = json.load(stream)
    found = {f"{number}/{name}": value for number, case in enumerate(cases) for name, value in read(case).items()}
    np.savez(output, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
