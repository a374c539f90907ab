"""Samples with the neighbors of their chunks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.base import positions_and_fillers
from tokenloom.datasets.shortcuts import batch_of, makes_batches
from tokenloom.datasets.tensors import Sample, sample_batch
from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom_retro.block_files import BlockPathMap
from tokenloom_retro.chunk_database import DBDataset
from tokenloom_retro.gpt_chunks import GPTChunkDataset
from tokenloom_retro.neighbor_table import NeighborTable


class RetroDataset:
    """Samples with the neighbors of their chunks, and the chunks that follow each neighbor.

    `dataset[k]` has the entries of the sample (`text`, and `dataset_id` in a blend), and as NumPy arrays:

    - neighbor_chunks: int64[num_chunks, num_neighbors, num_retrieved_chunks], indices in the database.
    - neighbor_tokens: int64[num_chunks, num_neighbors, num_retrieved_chunks * chunk_length].

    For a missing neighbor, or a chunk after a document's end, the index is -1 and each token is the end-of-document id.
    `dataset.batch(positions)` reads many samples with one gather per dataset. Thread-safe, fork-safe and picklable.

    Args:
        num_queried_samples: number of samples with neighbors; later positions repeat these samples.
        num_neighbors: neighbors per chunk.
        num_retrieved_chunks: chunks per neighbor: the neighbor and the chunks that follow it.
        block_size: chunks per neighbor file.
        db_dataset: the chunk database.
        chunk_dataset: the samples as chunks.
        neighbor_path_map: the neighbor files.

    Attributes:
        neighbors: the neighbors of each chunk of the samples.
        makes_batches: whether `batch` is supported: False for samples with document ids, as their shapes differ.

    Raises:
        ConfigError: an integer is not positive, or the block sizes of the arguments differ.
        StorageError: neighbor files are missing, overlap or have another size.
    """

    def __init__(
        self,
        num_queried_samples: int,
        num_neighbors: int,
        num_retrieved_chunks: int,
        block_size: int,
        db_dataset: DBDataset,
        chunk_dataset: GPTChunkDataset,
        neighbor_path_map: BlockPathMap,
    ) -> None:
        self.num_queried_samples: int = checked_integer("num_queried_samples", num_queried_samples, at_least=1)
        self.num_neighbors: int = checked_integer("num_neighbors", num_neighbors, at_least=1)
        self.num_retrieved_chunks: int = checked_integer("num_retrieved_chunks", num_retrieved_chunks, at_least=1)
        self.block_size: int = checked_integer("block_size", block_size, at_least=1)
        if self.block_size != neighbor_path_map.block_size:
            message = f"expected {block_size} chunks per neighbor file, found {neighbor_path_map.block_size}"
            raise ConfigError(message, hint="use the same block size in `block_size` and `neighbor_path_map`")
        self.db_dataset = db_dataset
        self.chunk_dataset = chunk_dataset
        self.neighbor_path_map = neighbor_path_map
        samples = self.sample_dataset
        members = samples.datasets if isinstance(samples, BlendedDataset) else [samples]
        self.makes_batches: bool = all(map(makes_batches, members))
        self.neighbors: NeighborTable = NeighborTable(
            neighbor_path_map, num_neighbors=num_neighbors, num_database_chunks=len(db_dataset)
        )

    @property
    def sample_dataset(self) -> Any:
        return self.chunk_dataset.sample_dataset

    def __len__(self) -> int:
        return len(self.sample_dataset)

    def __repr__(self) -> str:
        return f"RetroDataset({self.sample_dataset!r}, num_neighbors={self.num_neighbors}, db={self.db_dataset!r})"

    def __getitem__(self, sample_idx: int) -> Sample:
        """Returns a sample as NumPy arrays; see the class.

        Raises:
            StorageError, DatasetFormatError: neighbors or tokens cannot be read, or belong to another database.
        """
        position = self._position(sample_idx)
        return {**self.sample_dataset[position], **self._retrieved(np.array([position]), single=True)}

    def sample(self, idx: int) -> Sample:
        """Returns a sample as NumPy arrays; see the class."""
        return self[idx]

    def batch(self, positions: Sequence[int | None] | NDArray[np.integer[Any]]) -> Sample:
        """Returns samples as NumPy arrays with a leading batch axis; positions may have any order and repeats.

        Raises:
            ConfigError: a position is None, or samples have document ids.
        """
        rows, fillers = positions_and_fillers(positions)
        if fillers:
            raise ConfigError("a position must not be None (a sample without loss): samples have no loss mask")
        queried = np.array([self._position(row) for row in rows.tolist()], dtype=np.int64)
        return {**batch_of(self.sample_dataset, queried), **self._retrieved(queried)}

    def __getitems__(self, positions: Sequence[int]) -> Sequence[Sample]:
        """Returns many samples, read as one batch if `makes_batches`; called by torch's DataLoader."""
        if not self.makes_batches:
            return [self[position] for position in positions]
        return sample_batch(self.batch(positions), len(positions))

    def _position(self, idx: int) -> int:
        """Returns the index of the sample, below `num_queried_samples`; a negative position counts from the end."""
        count, position = len(self), operator.index(idx)
        if not -count <= position < count:
            raise IndexError(f"sample index {position} out of range: the dataset has {count} samples")
        return (position if position >= 0 else position + count) % self.num_queried_samples

    def _retrieved(self, samples: NDArray[np.int64], *, single: bool = False) -> Sample:
        """Returns `neighbor_chunks` and `neighbor_tokens` of samples; `single` drops the batch axis."""
        per_sample = self.chunk_dataset.n_chunks_per_sample
        chunk_ids = (samples[:, None] * per_sample + np.arange(per_sample, dtype=np.int64)).reshape(-1)
        found = self.db_dataset.following(self.neighbors.rows(chunk_ids), self.num_retrieved_chunks)
        tokens = self.db_dataset.gather(found)
        leading = (per_sample, self.num_neighbors) if single else (len(samples), per_sample, self.num_neighbors)
        return {
            "neighbor_chunks": found.reshape(*leading, self.num_retrieved_chunks),
            "neighbor_tokens": tokens.reshape(*leading, self.num_retrieved_chunks * self.db_dataset.max_chunk_length),
        }
