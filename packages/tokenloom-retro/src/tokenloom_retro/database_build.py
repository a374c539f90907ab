"""Builds the chunk database: the chunks of each dataset, block by block, and the merged tables of all datasets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset, dataset_identity
from tokenloom.progress import task as shown_task
from tokenloom_retro.block_files import planned_blocks
from tokenloom_retro.block_job import Arrays, BlockTask, MakeBlock, make_output
from tokenloom_retro.chunk_table import (
    chunk_block,
    chunk_spans,
    documents_in,
    merged_chunks,
    merged_offsets,
    num_sampled_chunks,
    num_train_chunks,
    num_train_documents,
)
from tokenloom_retro.embedders import ChunkMaker
from tokenloom_retro.hdf5 import hdf5_in, open_array
from tokenloom_retro.output import NewOutput, Output, OutputManifest
from tokenloom_retro.project import DatabaseKind, DatasetInfo, RetroProject, merged_rows
from tokenloom_retro.settings import RetroBuildSettings

_CHUNKS_AT_ONCE = 4096
_TABLES: tuple[DatabaseKind, ...] = ("sampled", "train", "valid")


@dataclass(frozen=True, kw_only=True)
class ChunkTask(BlockTask):
    """The task of cutting the documents of one dataset into chunks; a row is a non-empty document."""

    chunks: ChunkMaker
    prefix: str
    unit: str = "documents"

    def maker(self, num_threads: int) -> MakeBlock:
        """Returns the function that makes chunks and counts their embedder tokens."""
        return partial(self._make, IndexedDataset(self.prefix))

    def _make(self, dataset: IndexedDataset, start: int, stop: int, advance: Callable[[int], None]) -> Arrays:
        chunks = self.chunks
        lengths, ends_with_eod = documents_in(dataset, start, stop, eod=chunks.eod)
        spans = chunk_spans(lengths, ends_with_eod, chunks.chunk_length, first_document=start)
        counts = np.zeros(len(spans), dtype=np.int64)
        done = start
        for first in range(0, len(spans), _CHUNKS_AT_ONCE):
            part = spans[first : first + _CHUNKS_AT_ONCE].astype(np.int64)
            counts[first : first + len(part)] = chunks.count_tokens(chunks.span_texts(dataset, part))
            at = int(part[-1, 0])
            advance(at - done)
            done = at
        advance(stop - done)
        block = chunk_block(spans, counts, range(start, stop))
        return {name: getattr(block, name) for name in ("chunks_valid", "chunks_invalid", "doc_offsets")}


def chunk_task(project: RetroProject, chunks: ChunkMaker, settings: RetroBuildSettings, prefix: str) -> ChunkTask:
    """Returns the task of cutting the documents of one dataset into chunks."""
    dataset = IndexedDataset(project.data_prefix(prefix))
    identity = {
        **chunks.identity(),
        "data": dataset_identity(dataset),
        "block_size": settings.document_block_size,
        "num_rows": len(dataset),
    }
    return ChunkTask(
        output=Output(
            folder=project.individual_folder(prefix), task=f"chunks of {prefix}", identity=identity, pattern="*.hdf5"
        ),
        num_rows=len(dataset),
        block_size=settings.document_block_size,
        chunks=chunks,
        prefix=project.data_prefix(prefix),
    )


def database_output(
    project: RetroProject, chunks: ChunkMaker, settings: RetroBuildSettings, parts: Sequence[OutputManifest]
) -> Output:
    """Returns the output of the merged tables; `parts` has the manifest of the chunks of each dataset."""
    identity = {
        **chunks.identity(),
        "data": [[ratio, prefix] for ratio, (_, prefix) in zip(settings.ratios, settings.data, strict=True)],
        "split": settings.split,
        "num_index_chunks": settings.num_index_chunks,
        "parts": [part.digest for part in parts],
    }
    name = os.path.basename(project.infos_path)
    return Output(folder=project.database_folder, task="database", identity=identity, pattern=name)


def build_database(
    project: RetroProject,
    chunks: ChunkMaker,
    settings: RetroBuildSettings,
    *,
    overwrite: bool = False,
    **options: Any,
) -> OutputManifest:
    """Builds the missing parts of a project's chunk database; returns the manifest of the database.

    See `make_output` for `overwrite`, `options` and further errors.

    Raises:
        ConfigError: a dataset has too few chunks to train the index on, or a document with several sequences.
        DatasetNotFoundError: a dataset does not exist.
    """
    tasks = [chunk_task(project, chunks, settings, prefix) for _, prefix in settings.data]
    parts = [make_output(task, overwrite=overwrite, **options) for task in tasks]
    output = database_output(project, chunks, settings, parts)
    if (found := output.finished_or_free(overwrite=overwrite)) is not None:
        return found
    return _merge(project, settings, output, overwrite=overwrite)


def _merge(project: RetroProject, settings: RetroBuildSettings, output: Output, *, overwrite: bool) -> OutputManifest:
    """Writes the merged tables; keeps only one block in memory at a time."""
    sets = _count_chunks(project, settings)
    total = sum(each.info.n_chunks + each.info.n_chunks_sampled for each in sets)
    with NewOutput(output) as files:
        with shown_task("merged tables of chunks", unit="chunks", total=total) as advance:
            for kind in _TABLES:
                pending = files.file(os.path.relpath(project.merged_path(kind), output.folder))
                with hdf5_in(pending) as file:
                    _fill(file, kind, sets, advance)
        listed = [asdict(each.info) for each in sets]
        files.file(os.path.basename(project.infos_path)).write(json.dumps(listed, indent=4).encode())
        totals = {
            f"num_{name.removeprefix('n_')}": sum(getattr(each.info, name) for each in sets)
            for name in ("n_docs", "n_chunks", "n_chunks_train", "n_chunks_invalid", "n_chunks_sampled")
        }
        return files.publish(totals, overwrite=overwrite)


@dataclass(frozen=True, slots=True)
class _DataSet:
    """A dataset with finished chunks: its index in the blend, its counts, and its block files in order."""

    number: int
    info: DatasetInfo
    blocks: tuple[str, ...]


def _count_chunks(project: RetroProject, settings: RetroBuildSettings) -> list[_DataSet]:
    """Counts the finished chunks of each dataset: all chunks, chunks to retrieve, and chunks to train the index on.

    Raises:
        ConfigError: a dataset has fewer chunks than the index needs for training.
    """
    sampled = num_sampled_chunks(settings.num_index_chunks, settings.ratios)
    sets = []
    for number, (_, prefix) in enumerate(settings.data):
        num_documents = len(IndexedDataset(project.data_prefix(prefix)))
        num_train = num_train_documents(num_documents, settings.split)
        folder = project.individual_folder(prefix)
        blocks = tuple(block.path for block in planned_blocks(folder, num_documents, settings.document_block_size))
        valid = [open_array(path, "chunks_valid", shape=(None, 4)) for path in blocks]
        info = DatasetInfo(
            ratio=settings.ratios[number],
            prefix=prefix,
            n_docs=num_documents,
            n_docs_train=num_train,
            n_chunks=sum(map(len, valid)),
            n_chunks_train=sum(num_train_chunks(rows, num_train) for rows in valid),
            n_chunks_invalid=sum(len(open_array(path, "chunks_invalid", shape=(None, 4))) for path in blocks),
            n_chunks_sampled=sampled[number],
        )
        if info.n_chunks_sampled > info.n_chunks_train:
            found = f"{info.n_chunks_train} chunks, but training the index needs {info.n_chunks_sampled} chunks"
            message = f"`{prefix}`: the train split has {found}"
            raise ConfigError(message, hint="lower `num_index_chunks` or the weight of the dataset, or add data")
        sets.append(_DataSet(number, info, blocks))
    return sets


def _fill(file: Any, kind: DatabaseKind, sets: Sequence[_DataSet], advance: Callable[[int], None]) -> None:
    """Writes a merged table of all datasets; for "train", also the number of chunks up to the end of each document."""
    num_rows = [len(merged_rows(each.info, kind)) for each in sets]
    table = file.create_dataset("chunks", (sum(num_rows), 5), dtype=np.uint32)
    num_documents = sum(each.info.n_docs_train for each in sets)
    offsets = file.create_dataset("doc_offsets", (num_documents, 3), dtype=np.uint64) if kind == "train" else None
    row = document = 0
    for each in sets:
        wanted, first_of_block = merged_rows(each.info, kind), 0
        for path in each.blocks:
            chunks = open_array(path, "chunks_valid", shape=(None, 4))
            inside = chunks[max(wanted.start - first_of_block, 0) : max(wanted.stop - first_of_block, 0)]
            first_of_block += len(chunks)
            if offsets is not None:
                ends = open_array(path, "doc_offsets", shape=(None, 2))
                ends = ends[: np.searchsorted(ends[:, 0], each.info.n_docs_train)]
                offsets[document : document + len(ends)] = merged_offsets(each.number, ends, chunks_before=row)
                document += len(ends)
            table[row : row + len(inside)] = merged_chunks(each.number, inside)
            row += len(inside)
            advance(len(inside))
    file.create_dataset("n_written", data=np.array([row], dtype=np.uint64))
