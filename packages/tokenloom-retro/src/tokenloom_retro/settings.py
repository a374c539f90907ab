"""What a project is made of, and how: the settings of a build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom_retro.database_build import DatabaseSettings
from tokenloom_retro.index_build import IndexSettings
from tokenloom_retro.query_build import QuerySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RetroBuildSettings:
    """What a project is made of, and how.

    Attributes:
        data: weight and prefix of each data set; prefixes are relative to `PROJECT/data`. A single one may have None as
            its weight: its samples are then those of a data set, and not of a blend of one, which are others.
        sequence_length: tokens of a sample; a multiple of `chunk_length`.
        sizes: samples of train, valid and test that neighbors are found for; None or 0 for none.
        split: documents for train, valid and test, in percent, such as "98,2,0"; those of train are retrieved.
        seed: seed of the samples.
        chunk_length: tokens of a chunk.
        index: what `faiss.index_factory` takes, such as "IVF4096,Flat".
        num_index_chunks: chunks that the index is trained on.
        num_neighbors: neighbors of each chunk that are kept.
        num_searched: neighbors that are searched, before those of the same documents are left out.
        nprobe: lists that are searched, for IVF; None for what the index has.
        ef_search: candidates that are kept, for HNSW; None for what the index has.
        block_size: chunks of a block.
        document_block_size: documents of a block.
        cache: folder of the index cache of the samples; None for one in the project.
        of_samples: further settings of `MultiSplitGPTDatasetConfig`; a project does not record them.
    """

    data: Sequence[tuple[float | None, str]]
    sequence_length: int
    sizes: tuple[int | None, int | None, int | None]
    index: str
    num_index_chunks: int
    split: str = "98,2,0"
    seed: int = 1234
    chunk_length: int = 64
    num_neighbors: int = 20
    num_searched: int = 200
    nprobe: int | None = None
    ef_search: int | None = None
    block_size: int = 100_000
    document_block_size: int = 100_000
    cache: str | None = None
    of_samples: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the weights."""
        if len(self.data) != 1 and any(weight is None for weight, _ in self.data):
            message = f"expected a weight of each of {len(self.data)} data sets, found None"
            raise ConfigError(message)

    @property
    def blend_weights(self) -> list[float] | None:
        """The weights; None for a single data set without."""
        weights = [float(weight) for weight, _ in self.data if weight is not None]
        return weights or None

    @property
    def of_database(self) -> DatabaseSettings:
        """What the database is built of."""
        return DatabaseSettings(
            data=tuple((1.0 if weight is None else float(weight), prefix) for weight, prefix in self.data),
            split=self.split,
            num_index_chunks=self.num_index_chunks,
            block_size=self.document_block_size,
        )

    @property
    def of_index(self) -> IndexSettings:
        """How the index is made."""
        return IndexSettings(string=self.index, block_size=self.block_size)

    @property
    def of_queries(self) -> QuerySettings:
        """How neighbors are searched."""
        return QuerySettings(
            string=self.index,
            num_neighbors=self.num_neighbors,
            num_searched=self.num_searched,
            nprobe=self.nprobe,
            ef_search=self.ef_search,
            block_size=self.block_size,
        )


def three_sizes(sizes: Sequence[int | None]) -> tuple[int | None, int | None, int | None]:
    """Returns numbers of samples as `RetroBuildSettings` takes them.

    Raises:
        ConfigError: they are not three.
    """
    if len(sizes) != 3:
        message = f"expected the samples of train, valid and test, found {list(sizes)}"
        raise ConfigError(message)
    train, valid, test = sizes
    return train, valid, test
