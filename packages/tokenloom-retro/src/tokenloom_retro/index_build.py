"""Builds the vector index: trains it on vectors of some chunks, then adds the vectors of all train-split chunks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.machine import usable_processors
from tokenloom_retro.block_job import Arrays, BlockReport, BlockTask, MakeBlock, make_output
from tokenloom_retro.chunk_database import DBDataset
from tokenloom_retro.embedders import ChunkMaker
from tokenloom_retro.hdf5 import open_array
from tokenloom_retro.output import NewOutput, Output, OutputManifest
from tokenloom_retro.project import DatabaseKind, RetroProject
from tokenloom_retro.settings import RetroBuildSettings
from tokenloom_retro.vector_index import VectorIndex, make_index

CHUNKS_AT_ONCE = 1024  # chunks to embed per call
INDEX_TYPE = "faiss-par-add"  # Megatron's name of an index whose codes are made in blocks
TRAINED_MANIFEST, FILLED_MANIFEST = "empty.json", "added.json"
_TRAINED, _FILLED = "empty_1.000.faissindex", "added_1.000_1.000.faissindex"  # Megatron's file names
_DATA = "data"  # Megatron's name of a block's array


@dataclass(frozen=True, kw_only=True)
class EmbeddingTask(BlockTask):
    """The task of training an index on vectors of "sampled" chunks, or of adding codes of "train" chunks to an index.

    A row is a chunk.
    """

    chunks: ChunkMaker
    project: str
    string: str
    kind: DatabaseKind

    @property
    def job_path(self) -> str:
        return os.path.join(self.output.folder, f"{self.output.pattern}.job")

    def maker(self, num_threads: int) -> MakeBlock:
        """Returns the function that computes the vectors or codes of a block."""
        database = _database(RetroProject(self.project), self.chunks, self.kind)
        return partial(self._make, database, None if self.kind == "sampled" else self._trained(), num_threads)

    def assemble(self, made: Sequence[tuple[BlockReport, str]], output: NewOutput) -> Mapping[str, int]:
        """Writes the index, trained on the vectors of all blocks, or filled with the codes of all blocks."""
        if self.kind == "sampled":
            sample = np.empty((self.num_rows, self.chunks.embedder.dimension), dtype=np.float32)
            for report, path in made:
                sample[report.start : report.stop] = open_array(path, _DATA, shape=(None, None), kind="floats")
            index = VectorIndex.train(self.string, sample, num_threads=usable_processors())
        else:
            index = self._trained().assemble(open_array(path, _DATA, shape=(None, None)) for _, path in made)
        index.write(output.file(self.output.pattern))
        return {"vectors": len(index)}

    def _trained(self) -> VectorIndex:
        path = os.path.join(self.output.folder, _TRAINED)
        return VectorIndex.open(path, string=self.string, dimension=self.chunks.embedder.dimension, num_vectors=0)

    def _make(
        self,
        database: DBDataset,
        index: VectorIndex | None,
        num_threads: int,
        start: int,
        stop: int,
        advance: Callable[[int], None],
    ) -> Arrays:
        vectors: NDArray[np.float32] = np.empty((stop - start, self.chunks.embedder.dimension), dtype=np.float32)
        for first in range(start, stop, CHUNKS_AT_ONCE):
            ids = np.arange(first, min(first + CHUNKS_AT_ONCE, stop))
            texts = self.chunks.texts(database.gather(ids))
            vectors[first - start : first - start + len(ids)] = self.chunks.embed(texts)
            advance(len(ids))
        return {_DATA: vectors if index is None else index.encode(vectors, num_threads=num_threads)}


def embedding_task(
    project: RetroProject,
    chunks: ChunkMaker,
    settings: RetroBuildSettings,
    database: OutputManifest,
    trained: OutputManifest | None = None,
) -> EmbeddingTask:
    """Returns the task of training an index; or, given the manifest `trained` of a trained index, of filling that."""
    kind: DatabaseKind = "sampled" if trained is None else "train"
    identity: dict[str, Any] = {
        **chunks.identity(),
        "database": kind,
        "database_digest": database.digest,
        "block_size": settings.block_size,
        "index": settings.index,
    }
    if trained is not None:
        identity["trained_digest"] = trained.digest
    return EmbeddingTask(
        output=Output(
            folder=project.index_folder(INDEX_TYPE, settings.index),
            task="vectors to train on" if trained is None else "codes of chunks",
            identity=identity,
            pattern=_TRAINED if trained is None else _FILLED,
            manifest=TRAINED_MANIFEST if trained is None else FILLED_MANIFEST,
        ),
        num_rows=len(_database(project, chunks, kind)),
        block_size=settings.block_size,
        chunks=chunks,
        project=project.folder,
        string=settings.index,
        kind=kind,
    )


def _database(project: RetroProject, chunks: ChunkMaker, kind: DatabaseKind) -> DBDataset:
    return project.database(kind, chunk_length=chunks.chunk_length, eod_token_id=chunks.eod)


def filled_path(project: RetroProject, string: str) -> str:
    return os.path.join(project.index_folder(INDEX_TYPE, string), _FILLED)


def build_index(
    project: RetroProject,
    chunks: ChunkMaker,
    settings: RetroBuildSettings,
    database: OutputManifest,
    **options: Any,
) -> OutputManifest:
    """Trains and fills the index of a project if the index is missing; returns the filled index's manifest.

    `database` is the manifest of the database; see `make_output` for `options` and errors.

    Raises:
        ConfigError: the index string is invalid, or the index needs more chunks to train on.
    """
    make_index(settings.index, chunks.embedder.dimension)  # validate the string before embedding texts
    trained = make_output(embedding_task(project, chunks, settings, database), **options)
    return make_output(embedding_task(project, chunks, settings, database, trained), **options)
