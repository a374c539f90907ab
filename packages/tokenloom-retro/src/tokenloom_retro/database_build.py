"""The chunk database: documents cut into chunks, block by block, and the tables of all data sets together."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.identity import dataset_identity
from tokenloom.jobs.running import Runner
from tokenloom.numbers import checked_integer
from tokenloom.progress import task as shown_task
from tokenloom_retro.block_files import planned_blocks
from tokenloom_retro.block_output import make_block_files
from tokenloom_retro.block_plan import Arrays
from tokenloom_retro.chunk_maker import ChunkMaker
from tokenloom_retro.chunk_table import (
    check_enough_chunks,
    chunk_block,
    chunk_spans,
    documents_in,
    merged_chunks,
    merged_offsets,
    merged_rows,
    num_sampled_chunks,
    num_train_chunks,
    num_train_documents,
    train_fraction,
)
from tokenloom_retro.hdf5 import hdf5_in, open_array
from tokenloom_retro.output import NewOutput, OutputManifest, same_output
from tokenloom_retro.project import DatabaseKind, DatasetInfo, RetroProject

DATABASE = "database"
"""What the tables of all data sets are called, for people."""

_CHUNKS_AT_ONCE = 4096
_TABLES: tuple[DatabaseKind, ...] = ("sampled", "train", "valid")


@dataclass(frozen=True)
class ChunkTask:
    """The chunks of the documents of one data set; a row is a document with a sequence.

    Attributes:
        chunks: what makes texts of chunks.
        prefix: prefix of the pair.
        shown: its name, for people.
        block_size: documents of a block.
        unit: what a row is.
    """

    chunks: ChunkMaker
    prefix: str
    shown: str
    block_size: int
    unit: str = "documents"

    @property
    def name(self) -> str:
        """What is made."""
        return f"chunks of {self.shown}"

    @cached_property
    def num_rows(self) -> int:
        """The documents of the data set that have a sequence."""
        return len(IndexedDataset(self.prefix))

    def identity(self) -> dict[str, Any]:
        """Returns what decides the chunks."""
        return {
            **self.chunks.identity(),
            "data": dataset_identity(IndexedDataset(self.prefix)),
            "block_size": self.block_size,
        }

    def maker(self, num_workers: int) -> _ChunkMaker:
        """Returns what cuts documents."""
        return _ChunkMaker(self)


class _ChunkMaker:
    """Cuts documents into chunks, and counts what each has for the embedder."""

    def __init__(self, task: ChunkTask) -> None:
        self._task = task

    def __enter__(self) -> Self:
        self._dataset = IndexedDataset(self._task.prefix)
        return self

    def __exit__(self, *_: object) -> None:
        del self._dataset

    def make(self, start: int, stop: int, advance: Callable[[int], None]) -> Arrays:
        """Returns the tables of documents [start, stop)."""
        made, dataset = self._task.chunks, self._dataset
        lengths, ends_with_eod = documents_in(dataset, start, stop, eod=made.eod)
        spans = chunk_spans(lengths, ends_with_eod, made.chunk_length, first_document=start)
        counts = np.zeros(len(spans), dtype=np.int64)
        done = start
        for first in range(0, len(spans), _CHUNKS_AT_ONCE):
            part = spans[first : first + _CHUNKS_AT_ONCE].astype(np.int64)
            counts[first : first + len(part)] = made.count_tokens(made.span_texts(dataset, part))
            at = int(part[-1, 0])
            advance(at - done)
            done = at
        advance(stop - done)
        block = chunk_block(spans, counts, range(start, stop))
        return {
            "chunks_valid": block.chunks_valid,
            "chunks_invalid": block.chunks_invalid,
            "doc_offsets": block.doc_offsets,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSettings:
    """What a database is built of.

    Attributes:
        data: weight and prefix of each data set; prefixes are relative to `PROJECT/data`.
        split: documents for train, valid and test, such as "98,2,0"; those of train are retrieved.
        num_index_chunks: chunks that the index is trained on.
        block_size: documents of a block.
    """

    data: tuple[tuple[float, str], ...]
    split: str
    num_index_chunks: int
    block_size: int = 100_000

    def __post_init__(self) -> None:
        """Checks what can be known without the data."""
        checked_integer("num_index_chunks", self.num_index_chunks, at_least=0)
        train_fraction(self.split)
        prefixes = [os.path.normpath(prefix) for _, prefix in self.data]
        for prefix in prefixes:
            if os.path.isabs(prefix) or prefix.split(os.sep)[0] == os.pardir:
                message = f"expected prefixes relative to the folder `data` of the project, found {prefix!r}"
                raise ConfigError(message, hint="move or link the pair into that folder")
            if prefixes.count(prefix) > 1:
                message = f"expected each data set once, found {prefix!r} {prefixes.count(prefix)} times"
                raise ConfigError(message, hint="give it the sum of its weights")
        num_sampled_chunks(self.num_index_chunks, [weight for weight, _ in self.data])


def build_database(
    project: RetroProject,
    chunks: ChunkMaker,
    settings: DatabaseSettings,
    *,
    runner: Runner | None = None,
    restart: bool = False,
    overwrite: bool = False,
) -> OutputManifest:
    """Builds the chunk database of a project, or what of it is missing, and returns its manifest.

    Args:
        project: the project folder, with its data.
        chunks: tokenizer, embedder and length of chunks.
        settings: the data sets, and how they are divided.
        runner: makes the blocks; None for processes of this machine.
        restart: gives up blocks that were made of a table that is not finished.
        overwrite: whether a database that was built of something else is replaced.

    Raises:
        ConfigError: a data set has fewer chunks than the index is to be trained on, or its documents have several
            sequences.
        OutputExistsError: another database is there, and no `overwrite`.
        DatasetNotFoundError: a data set is not there.
        TokenloomError: reading or writing failed; what was made is kept.
    """
    parts = [
        make_block_files(
            chunk_task(project, chunks, settings, prefix),
            project.individual_folder(prefix),
            runner=runner,
            restart=restart,
            overwrite=overwrite,
        )
        for _, prefix in settings.data
    ]
    identity = database_identity(chunks, settings, parts)
    folder = project.database_folder
    if (found := same_output(folder, DATABASE, identity)) is not None:
        return found
    return _merge(project, settings, identity, overwrite=overwrite)


def database_identity(
    chunks: ChunkMaker, settings: DatabaseSettings, parts: Sequence[OutputManifest]
) -> dict[str, Any]:
    """Returns what decides the tables of all data sets.

    Args:
        chunks: tokenizer, embedder and length of chunks.
        settings: the data sets, and how they are divided.
        parts: manifests of the chunks of each.
    """
    return {
        **chunks.identity(),
        "data": [[weight, prefix] for weight, prefix in settings.data],
        "split": settings.split,
        "num_index_chunks": settings.num_index_chunks,
        "parts": [part.digest for part in parts],
    }


def chunk_task(project: RetroProject, chunks: ChunkMaker, settings: DatabaseSettings, prefix: str) -> ChunkTask:
    """Returns the task of cutting one data set."""
    return ChunkTask(chunks, project.data_prefix(prefix), prefix, settings.block_size)


def _merge(
    project: RetroProject, settings: DatabaseSettings, identity: dict[str, Any], *, overwrite: bool
) -> OutputManifest:
    """Publishes the tables of all data sets, made from their blocks, a block in memory at a time."""
    sets = _counted(project, settings)
    total = sum(each.info.n_chunks + each.info.n_chunks_sampled for each in sets)
    with NewOutput(project.database_folder, DATABASE) as output:
        with shown_task("merged tables of chunks", unit="chunks", total=total) as advance:
            for kind in _TABLES:
                pending = output.file(os.path.relpath(project.merged_path(kind), project.database_folder))
                with hdf5_in(pending) as file:
                    _fill(file, kind, sets, advance)
        listed = [asdict(each.info) for each in sets]
        output.file(os.path.basename(project.infos_path)).write(json.dumps(listed, indent=4).encode())
        totals = {
            f"num_{name.removeprefix('n_')}": sum(getattr(each.info, name) for each in sets)
            for name in ("n_docs", "n_chunks", "n_chunks_train", "n_chunks_invalid", "n_chunks_sampled")
        }
        return output.publish(identity, totals, overwrite=overwrite)


@dataclass(frozen=True, slots=True)
class _DataSet:
    """A data set whose chunks are made.

    Attributes:
        number: its number in the blend.
        info: its documents and chunks.
        blocks: the files of its chunks, in order.
    """

    number: int
    info: DatasetInfo
    blocks: tuple[str, ...]


def _counted(project: RetroProject, settings: DatabaseSettings) -> list[_DataSet]:
    """Returns the data sets with what their blocks hold.

    Raises:
        ConfigError: one has fewer chunks than the index is to be trained on.
    """
    sampled = num_sampled_chunks(settings.num_index_chunks, [weight for weight, _ in settings.data])
    sets = []
    for number, (weight, prefix) in enumerate(settings.data):
        num_documents = len(IndexedDataset(project.data_prefix(prefix)))
        num_train = num_train_documents(num_documents, settings.split)
        folder = project.individual_folder(prefix)
        blocks = tuple(block.path for block in planned_blocks(folder, num_documents, settings.block_size))
        valid = [open_array(path, "chunks_valid", shape=(None, 4)) for path in blocks]
        info = DatasetInfo(
            ratio=weight,
            prefix=prefix,
            n_docs=num_documents,
            n_docs_train=num_train,
            n_chunks=sum(map(len, valid)),
            n_chunks_train=sum(num_train_chunks(rows, num_train) for rows in valid),
            n_chunks_invalid=sum(len(open_array(path, "chunks_invalid", shape=(None, 4))) for path in blocks),
            n_chunks_sampled=sampled[number],
        )
        check_enough_chunks(info)
        sets.append(_DataSet(number, info, blocks))
    return sets


def _fill(file: Any, kind: DatabaseKind, sets: Sequence[_DataSet], advance: Callable[[int], None]) -> None:
    """Writes a table of all data sets, in their order, and for train the chunks up to the end of each document."""
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
