"""A process of its own that builds chunk databases with megatron-core 0.15.3, and chooses among neighbors with it.

`python retro_building_side.py CASES OUTPUT`: cases are a JSON list of what `build` takes; neighbors that are left go to
OUTPUT, an .npz file, and databases to the folders of the cases. Its 8 to 128 processes are threads here.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch


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


def main(cases_path: str, output: str) -> None:
    import megatron.core

    assert megatron.core.__version__ == "0.15.3", megatron.core.__version__
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    with open(cases_path) as stream:
        cases = json.load(stream)
    np.savez(output, **{f"{n}/{name}": value for n, case in enumerate(cases) for name, value in build(case).items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
