"""Sub-samples as tensors: what is taken from the items of a data iterator, and how several travel as bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenloom.errors import InputError
from tokenloom.optional import require

SubSample = dict[str, Any]
"""1-D tensors of one length under the names in `DTYPES`, and the integers `original_seq_len` (tokens without padding)
and `padded_seq_len`. The tensors have either length; what lies beyond the original one is padding. And `dataset_id`,
where its item says that: the number of the dataset of a blend, or the source of a run, that it is from."""

DTYPES = {"tokens": "int64", "labels": "int64", "position_ids": "int64", "loss_mask": "float32"}
"""The tensors of a sub-sample and of a pack. Wide ones first, so that a run of bytes keeps each aligned."""

_WORD_BYTES = 8


def take_apart(items: Iterable[Any]) -> Iterator[SubSample]:
    """Yields the sub-samples of the items of a data iterator, without their padding.

    An item is a mapping with the tensors of `DTYPES`, or a list of such. The tensors may have a leading axis of 1. It
    is one sub-sample with its lengths in `original_seq_len` and `padded_seq_len` (both are the length of the tensors
    where they are missing), or, with `cu_seqlens`, several in a row: boundaries of the padded sub-samples, with those
    of the originals in `cu_seqlens_original` where they differ. `dataset_id`, if there is one, is that of all, or has
    a number for each. Other entries are left out.

    Raises:
        InputError: a tensor is missing, has another shape than its item's tokens, or fewer elements than is said.
    """
    for number, item in enumerate(items):
        for part in item if isinstance(item, list) else [item]:
            yield from _take_apart(part, f"item {number} of the data iterator")


def _take_apart(item: Any, where: str) -> Iterator[SubSample]:
    if not isinstance(item, Mapping):
        message = f"expected a mapping of tensors, or a list of such, found {type(item).__name__} as {where}"
        raise InputError(message)
    missing = [name for name in DTYPES if name not in item]
    if missing:
        message = f"{', '.join(f'`{name}`' for name in missing)} missing in {where}, which has {', '.join(item)}"
        raise InputError(message)
    tensors = {name: _row(item[name], dtype, f"`{name}` of {where}") for name, dtype in DTYPES.items()}
    size = len(tensors["tokens"])
    for name, tensor in tensors.items():
        if len(tensor) != size:
            message = f"expected `{name}` as long as the {size} tokens, found {len(tensor)} elements in {where}"
            raise InputError(message)
    bounds = list(_bounds(item, size))
    sources = _row(item["dataset_id"], "int64", "`dataset_id`").tolist() if "dataset_id" in item else None
    if sources is not None and len(sources) not in (1, len(bounds)):
        message = f"expected one `dataset_id`, or {len(bounds)} for the sub-samples of {where}, found {len(sources)}"
        raise InputError(message)
    for number, (start, original, padded) in enumerate(bounds):
        if not 0 <= original <= padded or start + original > size:
            message = (
                f"expected at least {start + original} tokens and no more than are left after padding, "
                f"found {size} tokens, original length {original} and padded length {padded} in {where}"
            )
            raise InputError(message)
        sample: SubSample = {name: tensor[start : start + original] for name, tensor in tensors.items()}
        sample |= {"original_seq_len": original, "padded_seq_len": padded}
        if sources is not None:
            sample["dataset_id"] = sources[number % len(sources)]
        yield sample


def _bounds(item: Mapping[str, Any], size: int) -> Iterator[tuple[int, int, int]]:
    """Yields (first element, original length, padded length) of each sub-sample of an item."""
    if "cu_seqlens" not in item:
        original = int(item.get("original_seq_len", size))
        yield 0, original, int(item.get("padded_seq_len", max(size, original)))
        return
    padded = _row(item["cu_seqlens"], "int64", "`cu_seqlens`").tolist()
    originals = _row(item.get("cu_seqlens_original", item["cu_seqlens"]), "int64", "`cu_seqlens_original`").tolist()
    for (start, stop), (original_start, original_stop) in zip(
        itertools.pairwise(padded), itertools.pairwise(originals), strict=True
    ):
        if stop > start:  # boundaries are filled up by repeating the last
            yield start, original_stop - original_start, stop - start


def _row(value: Any, dtype: str, what: str) -> Any:
    """Returns a 1-D tensor of the dtype, from one with or without a leading axis of 1, from an array or a number."""
    torch = require("torch", extra="torch")
    tensor = torch.as_tensor(value)
    if tensor.ndim == 0 or (tensor.ndim == 2 and len(tensor) == 1):
        tensor = tensor.reshape(-1)
    if tensor.ndim != 1:
        message = f"expected one row, found shape {list(tensor.shape)} for {what}"
        raise InputError(message, hint="packing takes micro-batches of size 1")
    return tensor.to(getattr(torch, dtype))


def to_bytes(samples: Sequence[Mapping[str, Any]], names: Iterable[str] = DTYPES) -> Any:
    """Returns the named tensors of several sub-samples as one uint8 tensor: name by name, filled up to whole words."""
    torch = require("torch", extra="torch")
    if not samples:
        return torch.empty(0, dtype=torch.uint8)
    parts = [torch.cat([sample[name] for sample in samples]).view(torch.uint8) for name in names]
    filler = -sum(map(len, parts)) % _WORD_BYTES
    return torch.cat([*parts, torch.zeros(filler, dtype=torch.uint8, device=parts[0].device)])


def num_bytes(lengths: Iterable[int], names: Iterable[str] = DTYPES) -> int:
    """Returns the size of what `to_bytes` makes of sub-samples whose tensors have these lengths."""
    torch = require("torch", extra="torch")
    size: int = sum(lengths) * sum(getattr(torch, DTYPES[name]).itemsize for name in names)
    return size + -size % _WORD_BYTES


def from_bytes(data: Any, lengths: Sequence[int], names: Iterable[str] = DTYPES) -> list[SubSample]:
    """Returns the sub-samples that `to_bytes` was given, as views of `data`."""
    torch = require("torch", extra="torch")
    samples: list[SubSample] = [{} for _ in lengths]
    offset, total = 0, sum(lengths)
    for name in names:
        dtype = getattr(torch, DTYPES[name])
        stop = offset + total * dtype.itemsize
        for sample, part in zip(samples, data[offset:stop].view(dtype).split(list(lengths)), strict=True):
            sample[name] = part
        offset = stop
    return samples
