"""Samples and batches as torch tensors: the one place that turns NumPy arrays into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from tokenloom.optional import require

Sample = dict[str, Any]


def to_tensors(sample: Mapping[str, Any]) -> Sample:
    """Returns the arrays of a sample or batch as torch tensors that share their memory.

    A read-only array is one that several samples share (a constant mask): its tensor is shared too, and a broadcast
    batch axis stays a stride of 0. Do not write into such a tensor.
    """
    torch = _torch()
    from_numpy = torch.from_numpy
    tensors = {}
    for name, array in sample.items():
        if array.ndim and array.flags.writeable:
            tensors[name] = from_numpy(array)
        else:
            tensors[name] = _shared_tensor(torch, array) if array.ndim else torch.tensor(array)
    return tensors


@cache
def _torch() -> Any:
    return require("torch", extra="torch")


def _shared_tensor(torch: Any, array: Any) -> Any:
    """torch refuses read-only memory with a warning; lend it the memory by address of the writable base."""
    base = array
    while base.base is not None and hasattr(base.base, "flags") and not base.flags.writeable:
        base = base.base
    if not base.flags.writeable:  # the base itself was frozen: only a copy is safe to hand out
        return torch.from_numpy(array.copy())
    tensor = torch.from_numpy(base)
    return tensor.expand(array.shape) if tensor.shape != array.shape else tensor


class SampleBatch(Sequence[Sample]):
    """The samples of a batch, held as one set of tensors with a batch axis.

    Iterating gives single samples, so that any collate function works; `build_dataloader` takes `tensors` as they are.
    """

    def __init__(self, tensors: Sample, count: int) -> None:
        self.tensors = tensors
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(self._count))]
        if not -self._count <= row < self._count:
            message = f"row {row} of a batch of {self._count}"
            raise IndexError(message)
        return {name: tensor[row] for name, tensor in self.tensors.items()}

    def __iter__(self) -> Iterator[Sample]:
        return (self[row] for row in range(self._count))
