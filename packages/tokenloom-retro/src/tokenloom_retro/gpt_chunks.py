"""Samples of GPT data as chunks: what neighbors are found for."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.multi_split import MultiSplitGPTDataset
from tokenloom.datasets.shortcuts import BATCH, ask_each, hook_of
from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.overrides import overrides
from tokenloom_retro.project import RetroProject

_WITH_DOCUMENTS = "set `return_document_ids=True` in `MultiSplitGPTDatasetConfig`"


def get_num_chunks_per_sample(sample_length: int, chunk_length: int) -> int:
    """Returns how many chunks a sample has.

    Raises:
        ConfigError: a length is not positive, or the sample no whole number of chunks.
    """
    checked_integer("chunk_length", chunk_length, at_least=1)
    checked_integer("sample_length", sample_length, at_least=1)
    if sample_length % chunk_length:
        message = (
            f"expected a sample length that is a multiple of the chunk length {chunk_length}, found {sample_length}"
        )
        raise ConfigError(message)
    return sample_length // chunk_length


class GPTChunkDataset:
    """The chunks of samples, by number: those of sample 0 come first.

    `dataset[i]` gives one as the reference does: text int64[chunk_length], and doc_ids int64[num_documents], all
    documents of the whole sample. `texts` and `documents_of` give those of many by one kernel call for each data set.

    Args:
        sample_dataset: samples with `text`, such as `MultiSplitGPTDataset` or a blend of these.
        sample_length: tokens of a sample; its text may have one more.
        chunk_length: tokens of a chunk.

    Attributes:
        n_chunks_per_sample: chunks of a sample.
        n_samples: samples.
        n_chunks: chunks of all samples.

    Raises:
        ConfigError: a sample is no whole number of chunks.
    """

    def __init__(self, sample_dataset: Any, sample_length: int, chunk_length: int) -> None:
        self.sample_dataset = sample_dataset
        self.chunk_length = chunk_length
        self.n_chunks_per_sample: int = get_num_chunks_per_sample(sample_length, chunk_length)
        self.n_samples: int = len(sample_dataset)
        self.n_chunks: int = self.n_samples * self.n_chunks_per_sample

    def __len__(self) -> int:
        """The number of chunks."""
        return self.n_chunks

    def __repr__(self) -> str:
        return f"GPTChunkDataset({self.sample_dataset!r}, chunks={len(self)}, chunk_length={self.chunk_length})"

    def __getitem__(self, idx: int) -> dict[str, Any]:
        """Returns a chunk, and all documents of its sample.

        Raises:
            IndexError: there is no such chunk.
            ConfigError: samples do not name their documents.
        """
        number = operator.index(idx)
        if not -len(self) <= number < len(self):
            raise self._no_chunk(number)
        sample_number, place = divmod(number % len(self), self.n_chunks_per_sample)
        sample = self.sample_dataset[sample_number]
        if "document_ids" not in sample:
            message = f"expected samples with `document_ids`, found {', '.join(sample)}"
            raise ConfigError(message, hint=_WITH_DOCUMENTS)
        start = place * self.chunk_length
        return {"doc_ids": sample["document_ids"], "text": sample["text"][start : start + self.chunk_length]}

    def texts(self, chunk_ids: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Returns the tokens of many chunks, int64[num_chunks, chunk_length]; each sample among them is made once.

        Raises:
            IndexError: there is no such chunk.
        """
        ids = self._checked(chunk_ids)
        samples, places = np.unique(ids // self.n_chunks_per_sample, return_inverse=True)
        width = self.n_chunks_per_sample * self.chunk_length
        found = np.empty((len(samples), width), dtype=np.int64)
        for _, dataset, own, positions in _members(self.sample_dataset, samples):
            if isinstance(dataset, MultiSplitGPTDataset):
                found[own] = dataset.texts(positions)[:, :width]
            else:
                asked = ask_each(dataset, positions.tolist())
                found[own] = np.stack([np.asarray(sample["text"])[:width] for sample in asked])
        chunks = found.reshape(len(samples), self.n_chunks_per_sample, self.chunk_length)
        return chunks[places, ids % self.n_chunks_per_sample]

    def documents_of(self, samples: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the documents of many samples.

        Args:
            samples: integers[num_samples], numbers of samples, not of chunks.

        Returns:
            documents: int64[num_documents, 2], the number of the data set in the blend, and of the document in that;
                those of one sample after those of the other.
            offsets: int64[num_samples + 1]; sample i has documents [offsets[i], offsets[i + 1]).

        Raises:
            IndexError: there is no such sample.
            ConfigError: samples of a class of a user's own do not name their documents.
        """
        positions = np.asarray(samples, dtype=np.int64)
        parts: list[NDArray[np.int64]] = [np.empty((0, 2), dtype=np.int64)] * len(positions)
        for number, dataset, own, inner in _members(self.sample_dataset, positions):
            for row, documents in zip(own.tolist(), _documents(dataset, inner), strict=True):
                parts[row] = np.stack([np.full_like(documents, number), documents], axis=1)
        offsets = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
        return np.concatenate([np.empty((0, 2), dtype=np.int64), *parts]), offsets

    def _checked(self, chunk_ids: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        ids = np.asarray(chunk_ids, dtype=np.int64)
        outside = (ids < 0) | (ids >= len(self))
        if outside.any():
            raise self._no_chunk(int(ids[np.argmax(outside)]))
        return ids

    def _no_chunk(self, number: int) -> IndexError:
        return IndexError(f"chunk {number} of {self.n_samples} samples was asked for, but they have {len(self)}")


def build_gpt_chunk_datasets_from_gpt_datasets(
    project_dir: str, gpt_datasets: Mapping[str, Any], sample_length: int, chunk_length: int
) -> dict[str, Any]:
    """Returns what is queried, or trained on, of each split; None for one without samples.

    Args:
        project_dir: path of the project folder.
        gpt_datasets: (samples, number of them that count), or None, by "train", "valid" and "test".
        sample_length: tokens of a sample.
        chunk_length: tokens of a chunk.

    Returns:
        By split, `dataset`, a `GPTChunkDataset`; `neighbor_dir`, the folder of its neighbors; and `num_active_chunks`,
        the chunks that have neighbors.

    Raises:
        ConfigError: a sample is no whole number of chunks.
    """
    num_chunks, project = get_num_chunks_per_sample(sample_length, chunk_length), RetroProject(project_dir)
    return {
        key: None
        if entry is None or entry[0] is None
        else {
            "dataset": GPTChunkDataset(entry[0], sample_length, chunk_length),
            "neighbor_dir": project.neighbor_folder(key, entry[0]),
            "num_active_chunks": entry[1] * num_chunks,
        }
        for key, entry in gpt_datasets.items()
    }


def _members(
    dataset: Any, positions: NDArray[np.int64]
) -> Iterator[tuple[int, Any, NDArray[np.int64], NDArray[np.int64]]]:
    """Yields (number in the blend, dataset, rows of `positions` that are of it, their numbers in it)."""
    if not isinstance(dataset, BlendedDataset) or overrides(dataset, "__getitem__"):
        yield 0, dataset, np.arange(len(positions)), positions
        return
    numbers, samples = dataset.order.locate(positions)
    for number in np.unique(numbers).tolist():
        own = np.flatnonzero(numbers == number)
        yield number, dataset.datasets[number], own, samples[own]


def _documents(dataset: Any, positions: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    if isinstance(dataset, MultiSplitGPTDataset) and hook_of(dataset, BATCH) is None:
        documents, offsets = dataset.documents_of(positions)
        return np.split(documents, offsets[1:-1]) if len(positions) else []
    found = ask_each(dataset, positions.tolist())
    if any("document_ids" not in sample for sample in found):
        message = f"expected samples of {type(dataset).__name__} with `document_ids`, found none"
        raise ConfigError(message, hint=_WITH_DOCUMENTS)
    return [np.asarray(sample["document_ids"], dtype=np.int64) for sample in found]
