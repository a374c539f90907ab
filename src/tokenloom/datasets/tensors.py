"""Samples and batches as torch tensors: the one place that turns NumPy arrays into them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from tokenloom.optional import require

Sample = dict[str, Any]


def to_tensors(sample: Mapping[str, Any], *, copy_shared: bool = False) -> Sample:
    """Returns the arrays of a sample or batch as torch tensors that share their memory.

    Samples share read-only arrays (a constant mask) and their tensors; a broadcast batch axis stays a stride of 0. Do
    not write into such a tensor.

    Args:
        sample: arrays by name.
        copy_shared: copy shared arrays, for callers that write into them.
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
    """Returns the same for arrays that all have an axis and are writable."""
    from_numpy = _torch().from_numpy
    return {name: from_numpy(array) for name, array in sample.items()}


def sample_batch(arrays: Mapping[str, Any], count: int) -> SampleBatch:
    """Returns a batch of arrays as its samples."""
    others = [name for name, array in arrays.items() if not (array.flags.writeable and array.ndim)]
    if not others:
        return SampleBatch(tensors_of(arrays), count)
    return SampleBatch(to_tensors(arrays), count, shared=[name for name in others if arrays[name].ndim])


@cache
def _torch() -> Any:
    return require("torch", extra="torch")


def _shared_tensor(torch: Any, array: Any) -> Any:
    """Returns the tensor of a read-only array; torch warns of these, so it gets the writable base."""
    base = array
    while base.base is not None and hasattr(base.base, "flags") and not base.flags.writeable:
        base = base.base
    if not base.flags.writeable:  # the base itself was frozen: only a copy is safe to hand out
        return torch.from_numpy(array.copy())
    tensor = torch.from_numpy(base)
    return tensor.expand(array.shape) if tensor.shape != array.shape else tensor


class SampleBatch(list[Sample]):
    """The samples of a batch: a list of dicts, held as tensors with a batch axis until somebody reads a sample.

    Samples are views of the tensors, made once, and writing into their dicts changes the batch. `build_dataloader`
    takes the tensors of an unread batch as they are.

    Args:
        tensors: tensors with a batch axis.
        count: number of samples.
        shared: names of tensors that all samples share, each of which gets a copy.
    """

    def __init__(self, tensors: Sample, count: int, *, shared: Iterable[str] = ()) -> None:
        super().__init__()
        self._held: Sample | None = tensors
        self._count = count
        self._shared = frozenset(shared)
        self.__class__ = _Untouched

    @property
    def tensors(self) -> Sample:
        """The batch as tensors: those that were filled, or the samples stacked once somebody has read them."""
        return whole(self)

    def __getitem__(self, row: Any) -> Any:
        try:
            return super().__getitem__(row)
        except IndexError:
            raise IndexError(f"row {row} of a batch of {len(self)}") from None


def whole(samples: Sequence[Sample]) -> Sample:
    """Returns samples as tensors with a batch axis; an unread `SampleBatch` as it was filled."""
    if type(samples) is _Untouched:
        assert samples._held is not None
        return samples._held
    batch: Sample = require("torch.utils.data", extra="torch").default_collate(list(samples))
    return batch


class _Untouched(SampleBatch):
    """An unread batch. The first method that needs the samples makes it a plain list."""

    def _touch(self) -> None:
        tensors, count, shared = self._held, self._count, self._shared
        assert tensors is not None
        self._held = None
        self.__class__ = SampleBatch  # type: ignore[assignment]
        self.extend(
            {name: tensor[row].clone() if name in shared else tensor[row] for name, tensor in tensors.items()}
            for row in range(count)
        )

    def __len__(self) -> int:
        return self._count

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SampleBatch, shared=self._shared), (self._held, self._count)

    def __copy__(self) -> list[Sample]:
        return self.copy()

    def __radd__(self, other: Any) -> Any:
        return other + self.copy()


def _touching(name: str) -> Any:
    def method(self: _Untouched, *args: Any, **kwargs: Any) -> Any:
        self._touch()
        return getattr(self, name)(*args, **kwargs)

    return method


for _name, _method in vars(list).items():
    if callable(_method) and _name not in {*vars(_Untouched), *vars(object), "__class_getitem__"}:
        setattr(_Untouched, _name, _touching(_name))
for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__repr__"):
    setattr(_Untouched, _name, _touching(_name))
