"""Converts samples and batches from NumPy arrays to torch tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from tokenloom.optional import require

Sample = dict[str, Any]


def to_tensors(sample: Mapping[str, Any], *, copy_shared: bool = False) -> Sample:
    """Converts the arrays of a sample or batch to torch tensors that share the memory of the arrays.

    All samples share the memory of a read-only array (a constant mask): never write into its tensor. With
    `copy_shared`, read-only arrays are copied. A broadcast batch axis keeps its stride of 0.
    """
    torch = _torch()
    from_numpy = torch.from_numpy
    tensors = {}
    for name, array in sample.items():
        if array.ndim and array.flags.writeable:
            tensors[name] = from_numpy(array)
        else:
            tensor = _shared_tensor(torch, array) if array.ndim else torch.tensor(array)
            tensors[name] = tensor.clone() if copy_shared else tensor
    return tensors


def tensors_of(sample: Mapping[str, Any]) -> Sample:
    """Converts arrays to tensors, faster than `to_tensors`; each array must be writable and have at least one axis."""
    from_numpy = _torch().from_numpy
    return {name: from_numpy(array) for name, array in sample.items()}


def sample_batch(arrays: Mapping[str, Any], count: int) -> SampleBatch:
    """Returns the `count` samples of a batch of arrays as a `SampleBatch`."""
    others = [name for name, array in arrays.items() if not (array.flags.writeable and array.ndim)]
    if not others:
        return SampleBatch(tensors_of(arrays), count)
    return SampleBatch(to_tensors(arrays), count, shared=[name for name in others if arrays[name].ndim])


@cache
def _torch() -> Any:
    return require("torch", extra="torch")


def _shared_tensor(torch: Any, array: Any) -> Any:
    """Converts a read-only array through its writable base array, as torch warns of read-only arrays."""
    base = array
    while base.base is not None and hasattr(base.base, "flags") and not base.flags.writeable:
        base = base.base
    if not base.flags.writeable:  # the base itself is frozen: only a copy is safe to return
        return torch.from_numpy(array.copy())
    tensor = torch.from_numpy(base)
    return tensor.expand(array.shape) if tensor.shape != array.shape else tensor


class SampleBatch(list[Sample]):
    """A batch as a list of samples, each a dict of tensors; stored as tensors with a batch axis until a sample is read.

    The first read splits the tensors into one dict of views per sample; later changes to these dicts change the batch.
    `build_dataloader` uses the tensors of an unread batch without a copy.

    Args:
        tensors: tensors with a batch axis.
        count: number of samples.
        shared: names of tensors that all samples share; each sample gets a copy.
    """

    def __init__(self, tensors: Sample, count: int, *, shared: Iterable[str] = ()) -> None:
        super().__init__()
        self._unread: Sample | None = tensors
        self._count = count
        self._shared = frozenset(shared)
        self.__class__ = _UnreadBatch

    @property
    def tensors(self) -> Sample:
        """The batch as tensors with a batch axis: the original ones or, once a sample was read, stacked samples."""
        return batch_tensors(self)

    def __getitem__(self, row: Any) -> Any:
        try:
            return super().__getitem__(row)
        except IndexError:
            raise IndexError(f"row {row} out of range: the batch has {len(self)} samples") from None


def batch_tensors(samples: Sequence[Sample]) -> Sample:
    """Returns samples as tensors with a batch axis; does not copy an unread `SampleBatch`."""
    if type(samples) is _UnreadBatch:
        assert samples._unread is not None
        return samples._unread
    batch: Sample = require("torch.utils.data", extra="torch").default_collate(list(samples))
    return batch


class _UnreadBatch(SampleBatch):
    """A batch before its first sample is read. The first method that needs a sample turns the batch into a list."""

    def _split(self) -> None:
        tensors, count, shared = self._unread, self._count, self._shared
        assert tensors is not None
        self._unread = None
        self.__class__ = SampleBatch  # type: ignore[assignment]
        self.extend(
            {name: tensor[row].clone() if name in shared else tensor[row] for name, tensor in tensors.items()}
            for row in range(count)
        )

    def __len__(self) -> int:
        return self._count

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SampleBatch, shared=self._shared), (self._unread, self._count)

    def __copy__(self) -> list[Sample]:
        return self.copy()

    def __radd__(self, other: Any) -> Any:
        return other + self.copy()


def _split_before(name: str) -> Any:
    def method(self: _UnreadBatch, *args: Any, **kwargs: Any) -> Any:
        self._split()
        return getattr(self, name)(*args, **kwargs)

    return method


for _name, _method in vars(list).items():
    if callable(_method) and _name not in {*vars(_UnreadBatch), *vars(object), "__class_getitem__"}:
        setattr(_UnreadBatch, _name, _split_before(_name))
for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__repr__"):
    setattr(_UnreadBatch, _name, _split_before(_name))
