"""A check that every way to read a dataset gives the same samples."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support import equal_samples


def check_everywhere(dataset: Any, positions: list[int], *others: Any) -> None:
    """Checks that batches, tensors, threads, negative indices, a pickle and `others` give the same samples."""
    expected = [dataset.sample(k) for k in positions]
    batch, tensors = dataset.batch(positions[::-1]), dataset.__getitems__(positions)
    with ThreadPoolExecutor(4) as executor:
        threaded = list(executor.map(dataset.sample, positions))
    copies = (pickle.loads(pickle.dumps(dataset)), *others)
    for row, (k, sample) in reversed([*enumerate(zip(positions, expected, strict=True))]):
        assert equal_samples({name: array[-1 - row] for name, array in batch.items()}, sample)
        assert equal_samples({name: tensor.numpy() for name, tensor in tensors[row].items()}, sample)
        assert equal_samples(threaded[row], sample)
        assert equal_samples(dataset.sample(k - len(dataset)), sample)
        assert all(equal_samples(other.sample(k), sample) for other in copies)
