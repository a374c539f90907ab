"""Whether all ranks would read the same batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.shortcuts import batch_of
from tokenloom.distributed.steps import agree


class BatchSource(Protocol):
    """What is asked of a dataset here; `GPTDataset` and `BlendedDataset` have it."""

    def __len__(self) -> int:
        """Returns the number of samples."""

    def batch(self, positions: Any, /) -> Mapping[str, NDArray[Any]]:
        """Returns the samples at some positions, as arrays with a leading batch axis."""


def digest_of_samples(dataset: BatchSource, positions: Iterable[int]) -> str:
    """Returns a SHA-256, in hex, over the samples at some positions: names, dtypes, shapes and bytes, in this order.

    It costs as much as reading the samples, and hashing about 1 GB per second.
    """
    digest = hashlib.sha256()
    for position in positions:  # one by one: masks are large, and the digest must not depend on a batch size
        for name, array in batch_of(dataset, (position,)).items():
            digest.update(f"{position}\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def check_same_batches(dataset: BatchSource | None, *, num_samples: int = 64, name: str = "the first samples") -> None:
    """Raises on every rank of `torch.distributed` unless all read the same first samples and as many in total.

    All ranks must call this, those without the dataset with None. Without `torch.distributed` nothing is compared, but
    the samples are read.

    Args:
        dataset: gives samples by number, such as `GPTDataset`.
        num_samples: compared from the start, or all if there are fewer.
        name: says in messages what was compared.

    Raises:
        DivergenceError: they differ; the message says which ranks hold which digest.
        BuildError: a rank failed to read them, or died.
    """

    def digest() -> str:
        assert dataset is not None
        first = digest_of_samples(dataset, range(min(num_samples, len(dataset))))
        return f"{len(dataset)} samples, {first[:16]}"

    agree(name, None if dataset is None else digest)
