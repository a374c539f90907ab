"""Samples of GPT data as chunks: what neighbors are found for."""

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
    documents of the whole sample.

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
            message = f"chunk {number} of {self.n_samples} samples was asked for, but they have {len(self)}"
            raise IndexError(message)
        sample_number, place = divmod(number % len(self), self.n_chunks_per_sample)
        sample = self._sample(sample_number)
        start = place * self.chunk_length
        return {"doc_ids": sample["document_ids"], "text": sample["text"][start : start + self.chunk_length]}

    def queried(self, chunk_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns many chunks, and the documents of their samples, each of which is made once.

        Args:
            chunk_ids: int64[num_chunks], numbers of chunks.

        Returns:
            tokens: int64[num_chunks, chunk_length].
            documents: int64[num_documents, 3]: the number of a sample; of one of its documents that of its data set
                in the blend, and its own in that.

        Raises:
            IndexError: there is no such chunk.
            ConfigError: samples do not name their documents.
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
            message = f"expected samples with `document_ids`, found {', '.join(sample)}"
            hint = "set `return_document_ids=True` in `MultiSplitGPTDatasetConfig`"
            raise ConfigError(message, hint=hint)
        return sample


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
