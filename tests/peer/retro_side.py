"""A process of its own with megatron-core 0.15.3, the last release that has RETRO.

`python retro_side.py read|build CASES OUTPUT`: cases are a JSON list of arguments of `read` or `build`; arrays go to
OUTPUT, an .npz file, and databases to the folders of the cases. The peer's 8 to 128 processes are threads here.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

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


def tokens_for_embedder(text: str) -> list[str]:
    """Returns the words that are no multiple of 3: some chunks have none."""
    return [word for word in text.split() if int(word) % 3]


def build(case: dict[str, Any]) -> dict[str, Any]:
    """Builds the database of a case, and returns which neighbors are left of those that its index finds."""
    from megatron.core.datasets.retro.db import build as theirs
    from megatron.core.datasets.retro.db.utils import (
        get_individual_db_dir,
        get_merged_train_dataset,
        init_indexed_dataset_infos,
        save_indexed_dataset_infos,
    )
    from megatron.core.datasets.retro.query.query import query_embeddings

    sample_dataset = SimpleNamespace(config=SimpleNamespace(split=case["split"]))
    config = SimpleNamespace(
        retro_project_dir=case["folder"],
        retro_gpt_data_path=[part for pair in zip(case["ratios"], case["prefixes"], strict=True) for part in pair],
        retro_gpt_chunk_length=case["chunk_length"],
        retro_index_ntrain=case["num_trained_on"],
        retro_task_validate=None,
        retro_query_num_neighbors_query=case["num_queried"],
        retro_query_num_neighbors_save=case["num_saved"],
        retro_tokenizers=SimpleNamespace(
            gpt=SimpleNamespace(eod=case["eod"], detokenize=lambda ids: " ".join(map(str, ids))),
            bert=SimpleNamespace(tokenize=tokens_for_embedder),
        ),
        retro_gpt_chunk_datasets=SimpleNamespace(train={"dataset": SimpleNamespace(sample_dataset=sample_dataset)}),
    )
    infos = init_indexed_dataset_infos(config)
    for number, info in enumerate(infos):
        folder = get_individual_db_dir(case["folder"], info["prefix"])
        os.makedirs(folder)
        for start in range(0, len(info["dataset"]), case["block_size"]):
            stop = min(start + case["block_size"], len(info["dataset"]))
            block = {"range": (start, stop), "path": os.path.join(folder, f"{start:06d}-{stop:06d}.hdf5")}
            with ThreadPoolExecutor(3) as executor:
                tables = theirs.build_block_db(config, number, len(infos), info["dataset"], 3, executor, 1, 0, block)
            theirs.save_block_db(block, *tables)
    theirs.update_chunk_counts(config, infos)
    save_indexed_dataset_infos(case["folder"], infos)
    theirs.build_merged_dbs(case["folder"], infos)

    database = get_merged_train_dataset(case["folder"], case["chunk_length"], case["eod"])
    database.load_doc_tuples()
    found = np.array(case["found"])
    index = SimpleNamespace(ntotal=len(database), search=lambda embeddings, k: (None, found))
    samples = {
        number: {"dataset_idx": np.int64(sample["dataset"]), "doc_ids": np.array(sample["documents"])}
        for number, sample in enumerate(case["samples"])
    }
    first = case["first_chunk"]
    _, left = query_embeddings(
        config, database, index, found, (first, first + len(found)), samples, case["chunks_per_sample"], verbose=False
    )
    return {"left": left}


def main(action: str, cases_path: str, output: str) -> None:
    import megatron.core

    assert megatron.core.__version__ == "0.15.3", megatron.core.__version__
    with open(cases_path) as stream:
        cases = json.load(stream)
    if action == "build":
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    act = {"build": build, "read": read}[action]
    np.savez(output, **{f"{n}/{name}": value for n, case in enumerate(cases) for name, value in act(case).items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
