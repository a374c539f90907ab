"""A sample with the neighbors of its chunks, decoded: what a model with retrieval reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.inspect.token_texts import Detokenizer, decoded
from tokenloom_retro.assembled import RetroSettings, get_retro_datasets
from tokenloom_retro.build import retro_samples
from tokenloom_retro.chunk_database import MISSING
from tokenloom_retro.dataset import RetroDataset
from tokenloom_retro.document_numbers import DocumentNumbers
from tokenloom_retro.project import RetroProject
from tokenloom_retro.recorded import RecordedSettings, recorded_settings, tokenizer_of_project

EOD_MARK = "[EOD]"
"""Stands for the end of a document."""

_SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievedChunk:
    """A chunk of the database.

    Attributes:
        chunk: its number in the database.
        data: prefix of its data set, as the project has it.
        document: number of its document in that.
        start, stop: its tokens, counted from the start of the document.
        text: decoded, hostile until `printable` has seen it.
    """

    chunk: int
    data: str
    document: int
    start: int
    stop: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueriedChunk:
    """A chunk of a sample.

    Attributes:
        start, stop: its tokens, counted from the start of the sample.
        text: decoded; the end of a document is `EOD_MARK`.
        neighbors: of each neighbor the chunks that are retrieved, itself first; none where there is no neighbor, and
            fewer where its document ends.
    """

    start: int
    stop: int
    text: str
    neighbors: tuple[tuple[RetrievedChunk, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetroSample:
    """A sample with the neighbors of its chunks.

    Attributes:
        split: "train", "valid" or "test".
        sample: its number.
        num_samples: samples of the split that have neighbors.
        documents: prefix and number of each document that stands in it.
        num_retrieved: chunks that each neighbor gives where its document does not end.
        chunks: its chunks.
    """

    split: str
    sample: int
    num_samples: int
    documents: tuple[tuple[str, int], ...]
    num_retrieved: int
    chunks: tuple[QueriedChunk, ...]


def retro_sample(
    project: str | os.PathLike[str],
    sample: int,
    *,
    split: str = "train",
    tokenizer: Any = None,
    num_neighbors: int = 2,
    num_retrieved: int = 1,
) -> RetroSample:
    """Returns a sample of a project with its neighbors, decoded.

    Args:
        project: path of the project folder.
        sample: number of the sample; negative ones count from the end.
        split: "train", "valid" or "test".
        tokenizer: tokenizer of the data, its path or name; None for the one that the project names.
        num_neighbors: most neighbors of each chunk.
        num_retrieved: chunks that each neighbor gives: itself, and those that follow it.

    Raises:
        IndexError: there is no such sample.
        ConfigError: the project does not say how it was made, or has no neighbors of the split.
        TokenizerError: there is no tokenizer, or another than the one that the project was made with.
        TokenloomError: the project cannot be read.
    """
    folder = RetroProject(project)
    recorded = recorded_settings(folder)
    if split not in recorded.neighbor_dirs:
        there = ", ".join(recorded.neighbor_dirs) or "none"
        message = f"expected neighbors of {split} in `{folder.folder}`, found those of: {there}"
        raise ConfigError(message, hint="find them first: `query-neighbors` is a task of a build")
    decoder = tokenizer_of_project(folder, recorded, tokenizer)
    dataset = _dataset(folder, recorded, split, decoder, num_neighbors=num_neighbors, num_retrieved=num_retrieved)
    count = dataset.num_queried_samples
    if not -count <= sample < count:
        message = f"sample {sample} of {split} was asked for, but {count} have neighbors"
        raise IndexError(message)
    return _decoded_sample(folder, dataset, sample % count, split, decoder)


def _dataset(
    project: RetroProject,
    recorded: RecordedSettings,
    split: str,
    tokenizer: Any,
    *,
    num_neighbors: int,
    num_retrieved: int,
) -> RetroDataset:
    build = recorded.build
    train, valid, test = (size if name == split else None for name, size in zip(_SPLITS, build.sizes, strict=True))
    samples = retro_samples(project, replace(build, sizes=(train, valid, test)), tokenizer)
    settings = RetroSettings(
        retro_project_dir=project.folder,
        retro_chunk_length=build.chunk_length,
        retro_block_size=build.block_size,
        retro_neighbor_dirs=recorded.neighbor_dirs,
        retro_num_neighbors=min(num_neighbors, build.num_neighbors),
        retro_num_retrieved_chunks=num_retrieved,
        retro_verify_neighbor_count=False,
    )
    [dataset] = filter(None, get_retro_datasets(settings, samples, build.sequence_length, tokenizer.eod))
    return dataset


def _decoded_sample(
    project: RetroProject, dataset: RetroDataset, position: int, split: str, tokenizer: Any
) -> RetroSample:
    sample, database = dataset[position], dataset.db_dataset
    documents, _ = dataset.chunk_dataset.documents_of(np.array([position]))
    length = dataset.chunk_dataset.chunk_length
    names = [info.prefix for info in project.infos]
    numbers = [DocumentNumbers(pair) for pair in project.datasets]

    def shown(data: int, sequence: int) -> int:
        return int(numbers[data].of_sequences(np.array([sequence]))[0])

    def retrieved(number: int, tokens: Sequence[int]) -> RetrievedChunk:
        data, sequence, start, stop = database.chunks[number, :4].tolist()
        document, text = shown(data, sequence), _text(tokens[: stop - start], tokenizer)
        return RetrievedChunk(chunk=number, data=names[data], document=document, start=start, stop=stop, text=text)

    chunks = []
    for place, neighbors in enumerate(sample["neighbor_chunks"].tolist()):
        start = place * length
        tokens = sample["neighbor_tokens"][place].reshape(len(neighbors), -1, length).tolist()
        found = tuple(
            tuple(retrieved(number, row) for number, row in zip(numbers, rows, strict=True) if number != MISSING)
            for numbers, rows in zip(neighbors, tokens, strict=True)
        )
        text = _text(sample["text"][start : start + length].tolist(), tokenizer)
        chunks.append(QueriedChunk(start=start, stop=start + length, text=text, neighbors=found))
    return RetroSample(
        split=split,
        sample=position,
        num_samples=dataset.num_queried_samples,
        documents=tuple((names[data], shown(data, sequence)) for data, sequence in documents.tolist()),
        num_retrieved=dataset.num_retrieved_chunks,
        chunks=tuple(chunks),
    )


def _text(ids: Sequence[int], tokenizer: Any) -> str:
    """Returns the text of tokens, with a mark at each end of a document, and without what only fills up."""
    decoder: Detokenizer = tokenizer
    eod = tokenizer.eod
    texts, part = [], list[int]()
    for number in ids:
        if number == eod:
            texts += [decoded(part, decoder), EOD_MARK]
            part = []
        elif number >= 0:
            part.append(number)
    return "".join([*texts, decoded(part, decoder)])
