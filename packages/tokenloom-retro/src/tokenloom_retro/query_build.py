"""Finds the neighbors of each chunk of a split's samples, block by block."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tokenloom_retro.block_job import Arrays, BlockTask, MakeBlock
from tokenloom_retro.chunk_database import DBDataset
from tokenloom_retro.embedders import ChunkMaker
from tokenloom_retro.gpt_chunks import GPTChunkDataset
from tokenloom_retro.index_build import CHUNKS_AT_ONCE, filled_path
from tokenloom_retro.neighbor_match import recorded_hash
from tokenloom_retro.neighbor_table import NAME
from tokenloom_retro.output import Output, OutputManifest
from tokenloom_retro.project import RetroProject
from tokenloom_retro.settings import RetroBuildSettings
from tokenloom_retro.vector_index import VectorIndex

Int64s = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class NeighborTask(BlockTask):
    """The task of finding the neighbors of chunks of samples; a row is a chunk."""

    chunks: ChunkMaker
    project: str
    samples: GPTChunkDataset
    split: str
    settings: RetroBuildSettings

    def maker(self, num_threads: int) -> MakeBlock:
        """Returns the function that finds the neighbors of a block."""
        chunks, settings, project = self.chunks, self.settings, RetroProject(self.project)
        database = project.database("train", chunk_length=chunks.chunk_length, eod_token_id=chunks.eod)
        database.load_doc_tuples()
        index = VectorIndex.open(
            filled_path(project, settings.index),
            string=settings.index,
            dimension=chunks.embedder.dimension,
            num_vectors=len(database),
        )
        index.set_effort(nprobe=settings.nprobe, ef_search=settings.ef_search)
        return partial(self._make, database, index, num_threads)

    def _make(
        self,
        database: DBDataset,
        index: VectorIndex,
        num_threads: int,
        start: int,
        stop: int,
        advance: Callable[[int], None],
    ) -> Arrays:
        chunks, settings = self.chunks, self.settings
        found = np.full((stop - start, settings.num_neighbors), -1, dtype=np.int64)
        for first in range(start, stop, CHUNKS_AT_ONCE):
            ids = np.arange(first, min(first + CHUNKS_AT_ONCE, stop))
            tokens, documents = self.samples.queried(ids)
            texts = chunks.texts(tokens)
            has_text = np.flatnonzero(chunks.count_tokens(texts))
            vectors = chunks.embed([texts[row] for row in has_text.tolist()])
            near = index.search(vectors, settings.num_searched, num_threads=num_threads)
            found[first - start + has_text] = without_own_documents(
                near.ids,
                database.doc_tuples,
                groups=ids[has_text] // self.samples.n_chunks_per_sample,
                own_documents=documents,
                num_saved=settings.num_neighbors,
            )
            advance(len(ids))
        return {NAME: found}


def neighbor_task(
    project: RetroProject,
    chunks: ChunkMaker,
    settings: RetroBuildSettings,
    index: OutputManifest,
    split: str,
    samples: GPTChunkDataset,
    num_samples: int,
) -> NeighborTask:
    """Returns the task to find neighbors of the first `num_samples` samples; `index` is the filled index's manifest."""
    description_hash = recorded_hash(project, samples.sample_dataset)
    num_rows = num_samples * samples.n_chunks_per_sample
    identity = {
        **chunks.identity(),
        "samples": description_hash,
        "chunks_per_sample": samples.n_chunks_per_sample,
        "index": settings.index,
        "index_digest": index.digest,
        **{name: getattr(settings, name) for name in ("num_neighbors", "num_searched", "nprobe", "ef_search")},
        "block_size": settings.block_size,
        "num_rows": num_rows,
    }
    return NeighborTask(
        output=Output(
            folder=os.path.join(project.query_folder, f"{split}_{description_hash}"),
            task=f"neighbors of {split}",
            identity=identity,
            pattern="*.hdf5",
        ),
        num_rows=num_rows,
        block_size=settings.block_size,
        chunks=chunks,
        project=project.folder,
        samples=samples,
        split=split,
        settings=settings,
    )


def without_own_documents(
    neighbors: Int64s,
    chunk_documents: NDArray[np.integer],
    *,
    groups: Int64s,
    own_documents: Int64s,
    num_saved: int,
) -> Int64s:
    """Returns, for each queried chunk, the first `num_saved` neighbors that are not in documents of the chunk's sample.

    Example:
        >>> neighbors = np.array([[0, 3, -1], [2, 1, 3]])
        >>> chunk_documents = np.array([[0, 7], [0, 8], [1, 7], [1, 7]], dtype=np.uint32)
        >>> own = np.array([[0, 0, 7], [1, 1, 7]])  # query 0: document 7 of dataset 0; query 1: document 7 of dataset 1
        >>> queries = np.arange(2)
        >>> without_own_documents(neighbors, chunk_documents, groups=queries, own_documents=own, num_saved=2).tolist()
        [[3, -1], [1, -1]]

    Args:
        neighbors: int64[num_queries, num_found], rows of the chunk table; -1 for none.
        chunk_documents: integers[num_chunks, 2], dataset and document of each row of the table.
        groups: int64[num_queries], the sample of each queried chunk.
        own_documents: int64[num_pairs, 3], sample, dataset, and document in this dataset; in any order, with repeats.
        num_saved: neighbors per query in the result, int64[num_queries, num_saved], with -1 after the last neighbor.
    """
    saved = np.full((len(neighbors), num_saved), -1, dtype=np.int64)
    is_kept = neighbors >= 0
    for group in np.unique(groups) if len(chunk_documents) else ():
        rows = np.flatnonzero(groups == group)
        own = _keys(own_documents[own_documents[:, 0] == group, 1:])
        is_kept[rows] &= ~np.isin(_keys(chunk_documents[neighbors[rows]]), own)  # entries of -1 are already dropped
    places = np.cumsum(is_kept, axis=1) - 1
    found = np.nonzero(is_kept & (places < num_saved))
    saved[found[0], places[found]] = neighbors[found]
    return saved


def _keys(documents: NDArray[np.integer]) -> Int64s:
    """Packs each (dataset, document) into one number: int64[...] for integers[..., 2]."""
    keys: Int64s = (documents[..., 0].astype(np.int64) << 32) | documents[..., 1].astype(np.int64)
    return keys
