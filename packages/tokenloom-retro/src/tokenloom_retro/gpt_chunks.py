"""Samples of GPT datasets as chunks, for which neighbors are searched."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom_retro.project import RetroProject


def get_num_chunks_per_sample(sample_length: int, chunk_length: int) -> int:
    """Returns the number of chunks per sample; raises ConfigError if `chunk_length` does not divide `sample_length`."""
    checked_integer("chunk_length", chunk_length, at_least=1)
    checked_integer("sample_length", sample_length, at_least=1)
    if sample_length % chunk_length:
        raise ConfigError(f"sample length {sample_length} is not a multiple of the chunk length {chunk_length}")
    return sample_length // chunk_length


class GPTChunkDataset:
    """The chunks of samples by index; the chunks of sample 0 come first.

    `dataset[i]` returns one chunk as in Megatron: text int64[chunk_length], and doc_ids int64[num_documents] of the
    whole sample.

    Args:
        sample_dataset: samples with `text`, such as `MultiSplitGPTDataset` or a blend.
        sample_length: tokens per sample; `text` may have one more token.
        chunk_length: tokens per chunk.

    Attributes:
        n_chunks_per_sample: number of chunks per sample.
        n_samples: number of samples.
        n_chunks: number of chunks of all samples.

    Raises:
        ConfigError: `sample_length` is not a multiple of `chunk_length`.
    """

    def __init__(self, sample_dataset: Any, sample_length: int, chunk_length: int) -> None:
        self.sample_dataset = sample_dataset
        self.chunk_length = chunk_length
        self.n_chunks_per_sample: int = get_num_chunks_per_sample(sample_length, chunk_length)
        self.n_samples: int = len(sample_dataset)
        self.n_chunks: int = self.n_samples * self.n_chunks_per_sample

    def __len__(self) -> int:
        return self.n_chunks

    def __repr__(self) -> str:
        return f"GPTChunkDataset({self.sample_dataset!r}, chunks={len(self)}, chunk_length={self.chunk_length})"

    def __getitem__(self, idx: int) -> dict[str, Any]:
        """Returns a chunk, and the document ids of its whole sample; ConfigError if samples have no document ids."""
        number = operator.index(idx)
        if not -len(self) <= number < len(self):
            raise IndexError(f"chunk {number} out of range: {self.n_samples} samples have {len(self)} chunks")
        sample_number, place = divmod(number % len(self), self.n_chunks_per_sample)
        sample = self._sample(sample_number)
        start = place * self.chunk_length
        return {"doc_ids": sample["document_ids"], "text": sample["text"][start : start + self.chunk_length]}

    def queried(self, chunk_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the tokens of chunks, and all documents of the samples with these chunks; reads each sample once.

        Args:
            chunk_ids: int64[num_chunks], chunk indices.

        Returns:
            tokens: int64[num_chunks, chunk_length].
            documents: int64[num_documents, 3]: sample, dataset in the blend, and document in the dataset.
        """
        tokens = np.empty((len(chunk_ids), self.chunk_length), dtype=np.int64)
        documents = [np.empty((0, 3), dtype=np.int64)]
        numbers, places = np.divmod(chunk_ids, self.n_chunks_per_sample)
        for number in np.unique(numbers).tolist():
            sample, own = self._sample(number), numbers == number
            width = self.n_chunks_per_sample * self.chunk_length
            tokens[own] = np.asarray(sample["text"])[:width].reshape(-1, self.chunk_length)[places[own]]
            ids = np.asarray(sample["document_ids"], dtype=np.int64)
            head = np.broadcast_to([number, int(sample.get("dataset_id", 0))], (len(ids), 2))
            documents.append(np.column_stack([head, ids]))
        return tokens, np.concatenate(documents)

    def _sample(self, number: int) -> dict[str, Any]:
        sample: dict[str, Any] = self.sample_dataset[number]
        if "document_ids" not in sample:
            hint = "set `return_document_ids=True` in `MultiSplitGPTDatasetConfig`"
            raise ConfigError(f"samples need `document_ids`, got only {', '.join(sample)}", hint=hint)
        return sample


def build_gpt_chunk_datasets_from_gpt_datasets(
    project_dir: str, gpt_datasets: Mapping[str, Any], sample_length: int, chunk_length: int
) -> dict[str, Any]:
    """Returns the chunks of each split; None for a split without samples.

    Args:
        project_dir: path of the project folder.
        gpt_datasets: mapping of "train", "valid" and "test" to (samples, number of samples in training), or to None.
        sample_length: tokens per sample.
        chunk_length: tokens per chunk.

    Returns:
        By split: `dataset`, a `GPTChunkDataset`; `neighbor_dir`, the folder of its neighbors; and `num_active_chunks`,
            the number of chunks with neighbors.
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
