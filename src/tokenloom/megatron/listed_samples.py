"""Batches of samples as the reference's clients expect them: a list of dicts that can be written into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tokenloom.datasets.tensors import Sample, SampleBatch

if TYPE_CHECKING:
    from tokenloom.datasets.pair_samples import PairSamples

    _Base = PairSamples  # before which a dataset class has this
else:
    _Base = object


class ListedSamples(_Base):
    """What dataset classes here have before a class of ours: `collate_fn` gets a plain list."""

    def __getitems__(self, positions: Sequence[int | None]) -> list[Sample]:
        """Returns many samples as `dataset[k]` gives them, made as one batch where they can be."""
        return listed(super().__getitems__(positions))


def listed(samples: Sequence[Sample]) -> list[Sample]:
    """Returns samples as a plain list; those of a batch that was filled as a whole are views of it."""
    return samples if type(samples) is list else list(samples)


def numbers_of(samples: Sequence[Any], name: str) -> Any:
    """Returns an array that a batch was filled with, one number per sample; None where each was made by itself."""
    return samples.tensors[name].numpy() if isinstance(samples, SampleBatch) else None
