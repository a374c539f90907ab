"""Input files into the shards of a job: about equal amounts of work, always the same ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tokenloom.errors import ConfigError
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.inputs.formats import FORMATS

Shard = tuple[InputSlice, ...]

_NUM_THREADS = 16


def cut_inputs(files: Sequence[InputFile], *, shard_bytes: int) -> tuple[Shard, ...]:
    """Returns the shards of a corpus: slices that together are all its records, in their order.

    A function of the files (their order, formats, sizes and, where they have units, such as the row groups of Parquet,
    these) and `shard_bytes` alone. Lines that are not compressed are cut into equal ranges of bytes, others between
    their units; what has none is never cut.
    Consecutive slices are one shard as long as they do not exceed `shard_bytes` together. What can be read once only
    is a shard by itself.

    Args:
        files: files of the corpus.
        shard_bytes: size of a shard, at most, unless it is a single slice that cannot be cut: bytes of the files as
            they are, of units as they are decoded.

    Raises:
        ConfigError: `shard_bytes` is not above 0.
        InputError, StorageError: the units of a file cannot be read.
    """
    if shard_bytes < 1:
        message = f"expected shard_bytes of at least 1, got {shard_bytes!r}"
        raise ConfigError(message)
    shards: list[Shard] = []
    current: list[InputSlice] = []
    num_bytes = 0
    for slice_, size in _slices(files, shard_bytes):
        if current and (num_bytes + size > shard_bytes or slice_.file.is_stream or current[-1].file.is_stream):
            shards.append(tuple(current))
            current, num_bytes = [], 0
        current.append(slice_)
        num_bytes += size
    if current:
        shards.append(tuple(current))
    return tuple(shards)


def whole_file(file: InputFile) -> InputSlice:
    """Returns a file as one slice.

    Raises:
        InputError, StorageError: the units of a file cannot be read.
    """
    if file.is_cut_by_bytes:
        return InputSlice(file=file, start=0, stop=file.num_bytes)
    return InputSlice(file=file, start=0, stop=len(_unit_bytes(file)))


def _slices(files: Sequence[InputFile], shard_bytes: int) -> Iterator[tuple[InputSlice, int]]:
    """Yields the slices of all files, each with its size."""
    opened = [file for file in files if FORMATS[file.format].opens_to_cut]
    with ThreadPoolExecutor(min(_NUM_THREADS, max(1, len(opened)))) as executor:
        sizes = dict(zip(opened, executor.map(_unit_bytes, opened), strict=True))
    for file in files:
        if not file.is_cut_by_bytes:
            yield from _of_units(file, sizes[file] if file in sizes else _unit_bytes(file), shard_bytes)
            continue
        parts = max(1, -(-file.num_bytes // shard_bytes))
        bounds = [file.num_bytes * number // parts for number in range(parts + 1)]
        for start, stop in itertools.pairwise(bounds):
            yield InputSlice(file=file, start=start, stop=stop), stop - start


def _unit_bytes(file: InputFile) -> Sequence[int]:
    return FORMATS[file.format].unit_bytes(file)


def _of_units(file: InputFile, sizes: Sequence[int], shard_bytes: int) -> Iterator[tuple[InputSlice, int]]:
    start = num_bytes = 0
    for number, size in enumerate(sizes):
        if number > start and num_bytes + size > shard_bytes:
            yield InputSlice(file=file, start=start, stop=number), num_bytes
            start, num_bytes = number, 0
        num_bytes += size
    yield InputSlice(file=file, start=start, stop=len(sizes)), num_bytes
