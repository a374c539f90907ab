"""Samples with their neighbors, from a project folder, in one process without a loader."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from harness.row import LIMIT, OURS, Row, Scale, Side

from rows.data import write_corpus
from rows.fairness import NO_IMPORTS, PROCESSES, WARM

PEER = "megatron-core 0.15.3"
LENGTH, CHUNK_LENGTH = 2048, 64
NUM_NEIGHBORS, NUM_RETRIEVED, NUM_SAVED = 2, 2, 20
NUM_SAMPLES, BLOCK_SIZE = 2000, 10_000


def write_project(folder: Path, num_tokens: int) -> None:
    """Writes a project over one corpus, with neighbors of its samples drawn at random, all of which can be retrieved.

    Chunks are those of documents without the token that ends them; neighbors are saved as the reference saves them.
    """
    from tokenloom.indexed.dataset import IndexedDataset
    from tokenloom_retro.block_files import planned_blocks
    from tokenloom_retro.hdf5 import write_arrays

    infos = folder / "project" / "db" / "indexed_dataset_infos.json"
    if infos.exists():
        return
    for part in ("data", "db/merged", "query/train_drawn"):
        (folder / "project" / part).mkdir(parents=True, exist_ok=True)
    prefix = folder / "project" / "data" / "corpus"
    write_corpus(prefix, num_tokens)
    lengths = IndexedDataset(str(prefix)).sequence_lengths.astype(np.int64) - 1
    counts = -(-lengths // CHUNK_LENGTH)
    documents = np.repeat(np.arange(len(lengths)), counts)
    starts = (np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)) * CHUNK_LENGTH
    stops = np.minimum(starts + CHUNK_LENGTH, lengths[documents])
    chunks = np.stack([np.zeros_like(starts), documents, starts, stops, stops - starts], axis=1).astype(np.uint32)
    for kind, rows in (("train", chunks), ("valid", chunks[:0]), ("sampled", chunks[:0])):
        arrays = {"chunks": rows, "n_written": np.array([len(rows)], dtype=np.uint64)}
        write_arrays(str(folder / "project" / "db" / "merged" / f"{kind}.hdf5"), arrays)
    followed = np.flatnonzero(documents[1:] == documents[:-1])
    num_chunks = NUM_SAMPLES * (LENGTH // CHUNK_LENGTH)
    neighbors = np.random.default_rng(1).choice(followed, size=(num_chunks, NUM_SAVED))
    for block in planned_blocks(str(folder / "project" / "query" / "train_drawn"), num_chunks, BLOCK_SIZE):
        write_arrays(block.path, {"neighbors": neighbors[block.start : block.stop]})
    info = {"ratio": 1.0, "prefix": "corpus", "n_docs": len(lengths), "n_docs_train": len(lengths)}
    info |= {"n_chunks": len(chunks), "n_chunks_train": len(chunks), "n_chunks_invalid": 0, "n_chunks_sampled": 0}
    infos.write_text(json.dumps([info]))


def retro_row(way: str, num_tokens: int, rounds: int, seconds: float) -> Row:
    """Returns one row; `way` is single or batched."""
    ours = {"single": "RetroDataset[k]", "batched": "RetroDataset.batch"}[way]
    plural = {"single": "one by one", "batched": "in batches"}[way]

    def side(name: str, library: str, way: str) -> Side:
        return Side(
            name=name,
            library=library,
            script="fetch_retro.py",
            arguments={"is_peer": library == PEER, "way": way, "seconds": seconds},
        )

    return Row(
        job="retro",
        name=f"RETRO samples {plural}, S = {LENGTH}",
        compares=f"`RetroDataset`: random samples {plural}, as NumPy arrays: the text, and for each of its "
        f"{LENGTH // CHUNK_LENGTH} chunks {NUM_NEIGHBORS} neighbors of {NUM_RETRIEVED} chunks of {CHUNK_LENGTH} tokens",
        fairness="Same project folder, same samples, same positions; the arrays of the first samples are compared. "
        f"{WARM} {NO_IMPORTS} {PROCESSES} The peer is the last release that has RETRO, beside the newer one; it has no "
        "batched fetch, and its samples are not even stacked. Neighbors are drawn at random, which is as far from each "
        "other as they can be; all of them, and what follows them, are there, as the sides differ where they are not.",
        limit="copying the bytes of the same batches into arrays that exist already, in one thread",
        unit="samples",
        rounds=rounds,
        sides=(
            side(ours, OURS, way),
            side("megatron RetroDataset[k]", PEER, "single"),
            side("memcpy", LIMIT, "copy"),
        ),
        prepare=lambda folder: write_project(Path(folder), num_tokens),
        same=(ours, "megatron RetroDataset[k]"),
    )


def rows(scale: Scale) -> list[Row]:
    """Returns the rows of a mode."""
    return [retro_row(way, scale.corpus_tokens, scale.rounds, scale.seconds) for way in ("single", "batched")]
