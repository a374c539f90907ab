"""Project folders for tests: pairs, their chunks computed one by one, and given neighbors."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tests.support import EOD, StandInTokenizer, write_corpus

from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom_retro.multi_split import MultiSplitGPTDataset, MultiSplitGPTDatasetConfig

CHUNK_LENGTH = 4

Documents = Sequence[Sequence[int] | np.ndarray]


def chunks_of(documents: Documents, *, dataset: int = 0, chunk_length: int = CHUNK_LENGTH, eod: int = EOD) -> list[Any]:
    """Returns the rows of a chunk table, for documents without empty chunks."""
    rows = []
    for number, document in enumerate(documents):
        length = len(document)
        if length and document[-1] == eod:
            length -= 1
        for start in range(0, length, chunk_length):
            stop = min(start + chunk_length, length)
            rows.append((dataset, number, start, stop, stop - start))
    return rows


def write_project(
    folder: Path,
    corpora: Mapping[str, Documents],
    *,
    chunk_length: int = CHUNK_LENGTH,
    train_share: float = 1.0,
    eod: int = EOD,
    dtype: Any = np.uint16,
) -> str:
    """Writes pairs and the database of a project; returns its folder."""
    merged = {"train": [], "valid": [], "sampled": []}
    infos = []
    for number, (prefix, documents) in enumerate(corpora.items()):
        path = folder / "data" / prefix
        path.parent.mkdir(parents=True, exist_ok=True)
        write_corpus(path, documents, dtype=dtype)
        rows = chunks_of(documents, dataset=number, chunk_length=chunk_length, eod=eod)
        num_train_documents = int(train_share * len(documents))
        num_train = sum(row[1] < num_train_documents for row in rows)
        merged["train"] += rows[:num_train]
        merged["valid"] += rows[num_train:]
        counts = {"n_docs": len(documents), "n_docs_train": num_train_documents, "n_chunks": len(rows)}
        counts |= {"n_chunks_train": num_train, "n_chunks_invalid": 0, "n_chunks_sampled": 0}
        infos.append({"ratio": 1.0, "prefix": prefix, **counts})
    (folder / "db" / "merged").mkdir(parents=True)
    (folder / "db" / "indexed_dataset_infos.json").write_text(json.dumps(infos, indent=4))
    for kind, rows in merged.items():
        write_chunks(folder / "db" / "merged" / f"{kind}.hdf5", rows)
    return os.fspath(folder)


def write_chunks(path: Path, rows: Sequence[Any], *, num_written: int | None = None) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("chunks", data=np.array(rows, dtype=np.uint32).reshape(-1, 5))
        file.create_dataset("n_written", data=np.array([len(rows) if num_written is None else num_written], np.uint64))


def write_neighbors(folder: Path, neighbors: np.ndarray, *, block_size: int, digits: int = 5) -> str:
    """Writes the neighbors of chunks, a file per block; returns the folder."""
    folder.mkdir(parents=True)
    for start in range(0, len(neighbors), block_size):
        stop = min(start + block_size, len(neighbors))
        with h5py.File(folder / f"{start:0{digits}d}-{stop:0{digits}d}.hdf5", "w") as file:
            file.create_dataset("neighbors", data=neighbors[start:stop])
    return os.fspath(folder)


def split_datasets(
    project: str, prefixes: Sequence[str], sizes: Sequence[int | None], **changes: Any
) -> dict[str, Any]:
    """Returns (samples, number of active ones) by split, for `get_retro_datasets`."""
    weights = changes.pop("weights", [1.0] * len(prefixes) if len(prefixes) > 1 else None)
    settings = {
        "random_seed": 7,
        "sequence_length": 2 * CHUNK_LENGTH,
        "blend": ([os.path.join(project, "data", prefix) for prefix in prefixes], weights),
        "split": "1,0,0",
        "split_preprocessing": changes.get("split", "1,0,0"),
        "return_document_ids": False,
        "tokenizer": StandInTokenizer(),
    }
    config = MultiSplitGPTDatasetConfig(**(settings | changes))
    built = BlendedMegatronDatasetBuilder(MultiSplitGPTDataset, list(sizes), lambda: True, config).build()
    return {
        name: None if dataset is None else (dataset, len(dataset) if size is None else size)
        for name, dataset, size in zip(("train", "valid", "test"), built, sizes, strict=True)
    }
