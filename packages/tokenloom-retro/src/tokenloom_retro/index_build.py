"""The vector index: trained on vectors of some chunks, then filled with those of all chunks to be retrieved."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.jobs.running import Runner
from tokenloom.machine import usable_processors
from tokenloom_retro.block_job import MadeBlock, make_blocks
from tokenloom_retro.block_plan import Arrays
from tokenloom_retro.chunk_database import DBDataset
from tokenloom_retro.chunk_maker import ChunkMaker
from tokenloom_retro.hdf5 import open_array
from tokenloom_retro.output import NewOutput, OutputManifest, finished_output
from tokenloom_retro.project import DatabaseKind, RetroProject
from tokenloom_retro.vector_index import VectorIndex, check_training

CHUNKS_AT_ONCE = 1024
"""Chunks that are embedded at a time."""

INDEX_TYPE = "faiss-par-add"
"""What the reference calls an index whose codes are made in blocks."""

TRAINED_MANIFEST, FILLED_MANIFEST = "empty.json", "added.json"
"""Names of the manifests of an index that is trained and empty, and of one that has all chunks."""

_TRAINED, _FILLED = "empty_1.000.faissindex", "added_1.000_1.000.faissindex"
"""Their names, the reference's."""

_DATA = "data"
"""The array of a block, as the reference names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """How an index is made.

    Attributes:
        string: what `faiss.index_factory` takes, such as "IVF4096,Flat".
        block_size: chunks that are embedded as a block.
        num_train_threads: threads to train with; None for all processors. Bits of rotations (OPQ, PCA) depend on it.
    """

    string: str
    block_size: int = 100_000
    num_train_threads: int | None = None


@dataclass(frozen=True)
class EmbeddingTask:
    """Vectors, or codes of vectors, of the chunks of a database; a row is a chunk.

    Attributes:
        chunks: what makes vectors.
        project: the project folder.
        kind: which chunks.
        database: digest of the database that they are of.
        block_size: chunks of a block.
        trained: path, string and digest of the trained index whose codes are wanted; None for vectors.
        unit: what a row is.
    """

    chunks: ChunkMaker
    project: str
    kind: DatabaseKind
    database: str
    block_size: int
    trained: tuple[str, str, str] | None = None
    unit: str = "chunks"

    @property
    def name(self) -> str:
        """What is made."""
        return "vectors to train on" if self.trained is None else "codes of chunks"

    @cached_property
    def num_rows(self) -> int:
        """The chunks."""
        return len(self.open_database())

    def open_database(self) -> DBDataset:
        """Returns the chunks."""
        return RetroProject(self.project).database(
            self.kind, chunk_length=self.chunks.chunk_length, eod_token_id=self.chunks.eod
        )

    def identity(self) -> dict[str, Any]:
        """Returns what decides vectors and codes."""
        of_index = {} if self.trained is None else {"index": self.trained[1], "trained_digest": self.trained[2]}
        return {
            **self.chunks.identity(),
            "database": self.kind,
            "database_digest": self.database,
            "block_size": self.block_size,
            **of_index,
        }

    def maker(self, num_workers: int) -> _EmbeddingMaker:
        """Returns what makes vectors, or codes."""
        return _EmbeddingMaker(self, num_workers)


class _EmbeddingMaker:
    """Makes vectors, or codes, of chunks."""

    def __init__(self, task: EmbeddingTask, num_threads: int) -> None:
        self._task = task
        self._num_threads = num_threads

    def __enter__(self) -> Self:
        task = self._task
        self._database = task.open_database()
        self._index: VectorIndex | None = None
        if task.trained is not None:
            path, string, _ = task.trained
            self._index = VectorIndex.open(path, string=string, dimension=task.chunks.embedder.dimension, num_vectors=0)
        return self

    def __exit__(self, *_: object) -> None:
        del self._database, self._index

    def make(self, start: int, stop: int, advance: Callable[[int], None]) -> Arrays:
        """Returns the vectors or codes of chunks [start, stop)."""
        chunks = self._task.chunks
        vectors = np.empty((stop - start, chunks.embedder.dimension), dtype=np.float32)
        for first in range(start, stop, CHUNKS_AT_ONCE):
            ids = np.arange(first, min(first + CHUNKS_AT_ONCE, stop))
            texts = chunks.texts(self._database.gather(ids))
            vectors[first - start : first - start + len(ids)] = chunks.embed(texts)
            advance(len(ids))
        if self._index is None:
            return {_DATA: vectors}
        return {_DATA: self._index.encode(vectors, num_threads=self._num_threads)}


def trained_path(project: RetroProject, string: str) -> str:
    """Returns the path of an index that is trained, and empty."""
    return os.path.join(project.index_folder(INDEX_TYPE, string), _TRAINED)


def filled_path(project: RetroProject, string: str) -> str:
    """Returns the path of an index that has all chunks."""
    return os.path.join(project.index_folder(INDEX_TYPE, string), _FILLED)


def build_index(
    project: RetroProject,
    chunks: ChunkMaker,
    settings: IndexSettings,
    database: OutputManifest,
    *,
    runner: Runner | None = None,
    restart: bool = False,
    overwrite: bool = False,
) -> OutputManifest:
    """Trains and fills the index of a project, or does what of that is missing, and returns the manifest.

    Args:
        project: the project folder, with its database.
        chunks: tokenizer, embedder and length of chunks.
        settings: the kind of index.
        database: manifest of the database.
        runner: makes the blocks; None for processes of this machine.
        restart: gives up blocks that were made of an index that is not finished.
        overwrite: whether an index that was made of something else is replaced.

    Raises:
        ConfigError: the index string is none, or it needs more chunks to train on.
        OutputExistsError: another index is there, and no `overwrite`.
        TokenloomError: reading or writing failed; what was made is kept.
    """
    num_sampled = database.counts["num_chunks_sampled"]
    check_training(settings.string, chunks.embedder.dimension, num_vectors=num_sampled)  # before texts are embedded
    options: dict[str, Any] = {"runner": runner, "restart": restart, "overwrite": overwrite}
    trained = _train(project, chunks, settings, database, **options)
    return _fill(project, chunks, settings, database, trained, **options)


def _train(
    project: RetroProject,
    chunks: ChunkMaker,
    settings: IndexSettings,
    database: OutputManifest,
    *,
    runner: Runner | None,
    restart: bool,
    overwrite: bool,
) -> OutputManifest:
    task = sample_task(project, chunks, settings, database)
    path = trained_path(project, settings.string)
    identity = {**task.identity(), "index": settings.string}

    def assemble(made: Sequence[MadeBlock]) -> OutputManifest:
        sample = np.empty((task.num_rows, chunks.embedder.dimension), dtype=np.float32)
        for block in made:
            sample[block.block.start : block.block.stop] = _rows(block.path, kind="floats")
        index = VectorIndex.train(
            settings.string, sample, num_threads=settings.num_train_threads or usable_processors()
        )
        return _publish(index, path, task.name, identity, made, overwrite=overwrite)

    return _made(task, path, task.name, identity, assemble, runner=runner, restart=restart, overwrite=overwrite)


def sample_task(
    project: RetroProject, chunks: ChunkMaker, settings: IndexSettings, database: OutputManifest
) -> EmbeddingTask:
    """Returns the task of making the vectors that an index is trained on."""
    return EmbeddingTask(chunks, project.folder, "sampled", database.digest, settings.block_size)


def code_task(
    project: RetroProject,
    chunks: ChunkMaker,
    settings: IndexSettings,
    database: OutputManifest,
    trained: OutputManifest,
) -> EmbeddingTask:
    """Returns the task of making the codes of an index."""
    path = trained_path(project, settings.string)
    return EmbeddingTask(
        chunks,
        project.folder,
        "train",
        database.digest,
        settings.block_size,
        (path, settings.string, trained.digest),
    )


def _fill(
    project: RetroProject,
    chunks: ChunkMaker,
    settings: IndexSettings,
    database: OutputManifest,
    trained: OutputManifest,
    *,
    runner: Runner | None,
    restart: bool,
    overwrite: bool,
) -> OutputManifest:
    task, path = code_task(project, chunks, settings, database, trained), filled_path(project, settings.string)

    def assemble(made: Sequence[MadeBlock]) -> OutputManifest:
        assert task.trained is not None
        empty = VectorIndex.open(
            task.trained[0], string=settings.string, dimension=chunks.embedder.dimension, num_vectors=0
        )
        index = empty.assemble(_rows(block.path) for block in made)
        return _publish(index, path, task.name, task.identity(), made, overwrite=overwrite)

    return _made(task, path, task.name, task.identity(), assemble, runner=runner, restart=restart, overwrite=overwrite)


def _made(
    task: EmbeddingTask,
    path: str,
    name: str,
    identity: dict[str, Any],
    assemble: Callable[[Sequence[MadeBlock]], OutputManifest],
    *,
    runner: Runner | None,
    restart: bool,
    overwrite: bool,
) -> OutputManifest:
    folder, file = os.path.split(path)
    return make_blocks(
        task,
        f"{path}.job",
        assemble,
        finished=lambda: finished_output(
            folder, name, identity, manifest=_manifest_of(file), names=[file], overwrite=overwrite
        ),
        pending=[path],
        runner=runner,
        restart=restart,
    )


def _publish(
    index: VectorIndex,
    path: str,
    name: str,
    identity: dict[str, Any],
    made: Sequence[MadeBlock],
    *,
    overwrite: bool,
) -> OutputManifest:
    folder, file = os.path.split(path)
    with NewOutput(folder, name, manifest=_manifest_of(file)) as output:
        index.write(output.file(file))
        blocks = [block.report.arrays_crc32 for block in made]
        return output.publish(identity, {"vectors": len(index)}, blocks=blocks, overwrite=overwrite)


def _manifest_of(file: str) -> str:
    return TRAINED_MANIFEST if file == _TRAINED else FILLED_MANIFEST


def _rows(path: str, **options: Any) -> NDArray[Any]:
    return open_array(path, _DATA, shape=(None, None), **options)
