"""The neighbors of all chunks of the samples of a split, block by block."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.jobs.running import Runner
from tokenloom_retro.block_output import make_block_files
from tokenloom_retro.block_plan import Arrays
from tokenloom_retro.chunk_maker import ChunkMaker
from tokenloom_retro.gpt_chunks import GPTChunkDataset
from tokenloom_retro.index_build import CHUNKS_AT_ONCE, filled_path
from tokenloom_retro.neighbor_match import recorded_hash
from tokenloom_retro.neighbor_table import NAME
from tokenloom_retro.output import OutputManifest
from tokenloom_retro.project import RetroProject
from tokenloom_retro.search import without_own_documents
from tokenloom_retro.vector_index import VectorIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySettings:
    """How neighbors are searched.

    Attributes:
        string: what the index was made from.
        num_neighbors: neighbors of each chunk that are kept.
        num_searched: neighbors that are searched, before those of the same documents are left out.
        nprobe: lists that are searched, for IVF; None for what the index has.
        ef_search: candidates that are kept, for HNSW; None for what the index has.
        block_size: chunks of a block.
    """

    string: str
    num_neighbors: int = 20
    num_searched: int = 200
    nprobe: int | None = None
    ef_search: int | None = None
    block_size: int = 100_000


@dataclass(frozen=True)
class NeighborTask:
    """The neighbors of the chunks of samples; a row is a chunk.

    Attributes:
        chunks: what makes vectors.
        project: the project folder.
        samples: the samples as chunks.
        split: "train", "valid" or "test".
        settings: how neighbors are searched.
        num_rows: chunks whose neighbors are wanted, the first ones.
        index: digest of the index.
        unit: what a row is.
    """

    chunks: ChunkMaker
    project: str
    samples: GPTChunkDataset
    split: str
    settings: QuerySettings
    num_rows: int
    index: str
    unit: str = "chunks"

    @property
    def name(self) -> str:
        """What is made."""
        return f"neighbors of {self.split}"

    @property
    def block_size(self) -> int:
        """Chunks of a block."""
        return self.settings.block_size

    @cached_property
    def description_hash(self) -> str:
        """What identifies the samples, wherever the project lies."""
        return recorded_hash(RetroProject(self.project), self.samples.sample_dataset)

    @property
    def folder(self) -> str:
        """The folder of the files."""
        return os.path.join(RetroProject(self.project).query_folder, f"{self.split}_{self.description_hash}")

    def identity(self) -> dict[str, Any]:
        """Returns what decides the neighbors."""
        settings = self.settings
        return {
            **self.chunks.identity(),
            "samples": self.description_hash,
            "chunks_per_sample": self.samples.n_chunks_per_sample,
            "index": settings.string,
            "index_digest": self.index,
            "num_neighbors": settings.num_neighbors,
            "num_searched": settings.num_searched,
            "nprobe": settings.nprobe,
            "ef_search": settings.ef_search,
            "block_size": settings.block_size,
        }

    def maker(self, num_workers: int) -> _NeighborMaker:
        """Returns what searches."""
        return _NeighborMaker(self, num_workers)


class _NeighborMaker:
    """Searches the neighbors of chunks."""

    def __init__(self, task: NeighborTask, num_threads: int) -> None:
        self._task = task
        self._num_threads = num_threads

    def __enter__(self) -> Self:
        task, chunks = self._task, self._task.chunks
        project = RetroProject(task.project)
        self._database = project.database("train", chunk_length=chunks.chunk_length, eod_token_id=chunks.eod)
        self._database.load_doc_tuples()
        self._index = VectorIndex.open(
            filled_path(project, task.settings.string),
            string=task.settings.string,
            dimension=chunks.embedder.dimension,
            num_vectors=len(self._database),
        )
        self._index.set_effort(nprobe=task.settings.nprobe, ef_search=task.settings.ef_search)
        return self

    def __exit__(self, *_: object) -> None:
        del self._database, self._index

    def make(self, start: int, stop: int, advance: Callable[[int], None]) -> Arrays:
        """Returns the neighbors of chunks [start, stop)."""
        task, settings = self._task, self._task.settings
        found = np.full((stop - start, settings.num_neighbors), -1, dtype=np.int64)
        for first in range(start, stop, CHUNKS_AT_ONCE):
            ids = np.arange(first, min(first + CHUNKS_AT_ONCE, stop))
            texts = task.chunks.texts(task.samples.texts(ids))
            says = np.flatnonzero(task.chunks.count_tokens(texts))
            vectors = task.chunks.embed([texts[row] for row in says.tolist()])
            near = self._index.search(vectors, settings.num_searched, num_threads=self._num_threads)
            found[first - start + says] = self._of_others(ids[says], near.ids)
            advance(len(ids))
        return {NAME: found}

    def _of_others(self, ids: NDArray[np.int64], found: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the neighbors of chunks that are of other documents than all those of their samples."""
        task = self._task
        samples, groups = np.unique(ids // task.samples.n_chunks_per_sample, return_inverse=True)
        documents, offsets = task.samples.documents_of(samples)
        own = np.column_stack([np.repeat(np.arange(len(samples)), np.diff(offsets)), documents])
        return without_own_documents(
            found, self._database.doc_tuples, groups=groups, own_documents=own, num_saved=task.settings.num_neighbors
        )


def build_neighbors(
    task: NeighborTask, *, runner: Runner | None = None, restart: bool = False, overwrite: bool = False
) -> OutputManifest:
    """Searches the neighbors of all chunks of a split, or what of them is missing, and returns the manifest.

    Args:
        task: whose neighbors, and how.
        runner: makes the blocks; None for processes of this machine.
        restart: gives up blocks that were made of neighbors that are not finished.
        overwrite: whether neighbors that were made of something else are replaced.

    Raises:
        OutputExistsError: other neighbors are there, and no `overwrite`.
        TokenloomError: reading or writing failed; what was made is kept.
    """
    return make_block_files(task, task.folder, runner=runner, restart=restart, overwrite=overwrite)
