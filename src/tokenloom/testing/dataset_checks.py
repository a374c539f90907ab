"""Checks that a dataset returns the same samples through all of its interfaces."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.base import PairSamples
from tokenloom.errors import ConfigError
from tokenloom.loading.loader import build_dataloader, collate
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.optional import is_installed
from tokenloom.storage.local import spread_evenly
from tokenloom.testing.checks import (
    CheckReport,
    as_array,
    columns_of,
    deviation,
    pickled_copy,
    require,
    require_same,
    run_checks,
    skip,
)

_MAX_BLEND_SAMPLES = 8
_BLEND_ATTRIBUTES = ("index_split", "unique_identifiers", "dataset_path", "config")
_MEMBER_ATTRIBUTES = ("spans", "lengths", "padded_lengths")
"""Attributes that a blend has only if all datasets in the blend have them."""


def check_dataset(dataset: Any, *, num_samples: int = 8, num_workers: int = 2) -> CheckReport:
    """Checks that a dataset meets the requirements of loaders and blends; skips checks of missing methods.

    `dataset[k]` defines sample k. All other ways to read sample k must give the same data: a second access, `sample`,
    `batch`, preallocated arrays, worker processes, threads, blends and a pickled copy.

    Example:
        >>> report = check_dataset([{"square": np.array([k**2])} for k in range(10)], num_workers=0)
        >>> report.passed[:2]
        ('the dataset has samples', 'a sample is the same on every access')

    Args:
        dataset: an object with `__len__` and `__getitem__`, and at least one sample.
        num_samples: number of samples to compare, spread evenly over the dataset.
        num_workers: number of worker processes of torch's DataLoader; 0 skips the check of worker processes.

    Raises:
        ConformanceError: another way to read sample k gives other data than `dataset[k]`, or the dataset is empty.
    """
    return run_checks(type(dataset).__name__, _DatasetChecks(dataset, num_samples, num_workers))


class _DatasetChecks:
    """The checks of one dataset; `has_samples` must run first."""

    def __init__(self, dataset: Any, num_samples: int, num_workers: int) -> None:
        self._dataset, self._num_workers, self._num_chosen = dataset, num_workers, num_samples
        self._samples: dict[int, Any] = {}

    def has_samples(self) -> None:
        """the dataset has samples"""
        count = len(self._dataset)
        require(count > 0, "at least one sample", count)
        chosen = spread_evenly(count, max(self._num_chosen, 1))
        self._samples = {position: copy.deepcopy(self._dataset[position]) for position in chosen.tolist()}

    def repeats(self) -> None:
        """a sample is the same on every access"""
        self._require_samples(self._dataset.__getitem__, "dataset[{}]", reversed(self._samples))

    def counts_from_the_end(self) -> None:
        """negative positions count from the end"""
        try:
            found = self._dataset[-1]
        except IndexError:
            skip("they raise `IndexError`")
        require_same(found, self._samples[max(self._samples)], where="dataset[-1]")

    def rejects_positions_beyond_the_end(self) -> None:
        """positions beyond the end raise `IndexError`"""
        count = len(self._dataset)
        hint = "raise `IndexError`: otherwise, a loop over the dataset never ends"
        with suppress(IndexError):
            self._dataset[count]
            raise deviation(f"`IndexError` from `dataset[{count}]` with {count} samples", "a sample", hint=hint)

    def pads(self) -> None:
        """`dataset[None]` returns a sample without loss"""
        sample = next(iter(self._samples.values()))
        if not isinstance(sample, Mapping) or "loss_mask" not in sample:
            skip("samples have no `loss_mask`")
        try:
            found = self._dataset[None]
        except (TypeError, IndexError, KeyError, ValueError) as error:
            skip(f"`dataset[None]` raises `{type(error).__name__}`")
        require_same(list(found), list(sample), where="list(dataset[None])")
        mask = as_array(found["loss_mask"])
        require(not mask.any(), "zeros as `dataset[None]['loss_mask']`", f"{np.count_nonzero(mask)} nonzero values")

    def returns_arrays(self) -> None:
        """`sample` returns the sample as arrays"""
        self._need("sample")
        self._require_samples(self._dataset.sample, "dataset.sample({})", self._samples)

    def returns_batches(self) -> None:
        """`batch` returns the samples, stacked"""
        positions = self._shuffled()
        self._require_batch(self._batch(positions), where="dataset.batch(positions)")
        self._require_batch(self._batch(np.array(positions)), where="dataset.batch(numpy.array(positions))")

    def fills_out_arrays(self) -> None:
        """`batch` fills the arrays passed as `out`"""
        self._need("allocate_batch")
        positions = self._shuffled()
        sample = self._samples[positions[0]]
        for integers in (np.int64, np.int32):
            try:
                arrays = self._dataset.allocate_batch(len(positions), integer_dtype=integers)
                found = self._dataset.batch(positions, out=arrays)
            except ConfigError as error:
                skip(error.message)
            require(found is arrays, "`arrays` from `dataset.batch(positions, out=arrays)`", "other arrays")
            wide = {name: array.astype(as_array(sample[name]).dtype) for name, array in arrays.items()}
            self._require_batch(wide, where="dataset.batch(positions, out=arrays)")
        for rows in (len(positions) + 1, len(positions) - 1):
            with suppress(ConfigError):
                self._dataset.batch(positions, out=self._dataset.allocate_batch(rows))
                raise deviation(f"`ConfigError` for {len(positions)} positions and `out` of {rows} rows", "a batch")

    def returns_lists(self) -> None:
        """`__getitems__` returns the samples"""
        self._need("__getitems__")
        positions = self._shuffled()
        expected = [self._samples[position] for position in positions]
        require_same(list(self._dataset.__getitems__(positions)), expected, where="dataset.__getitems__(positions)")

    def returns_spans(self) -> None:
        """`spans` and `span_batch` return equal spans within documents"""
        self._need("spans")
        lengths = self._dataset.documents.lengths if isinstance(self._dataset, PairSamples) else None
        for position in self._samples:
            spans = self._dataset.spans(position)
            where = f"dataset.spans({position})"
            require(np.all(spans.lengths > 0), f"lengths above 0 in `{where}`", spans.lengths.tolist())
            require(np.all(spans.starts >= 0), f"starts of 0 or more in `{where}`", spans.starts.tolist())
            if lengths is not None:
                stops, limits = spans.starts + spans.lengths, np.asarray(lengths)[spans.documents]
                require(np.all(stops <= limits), f"ends of at most {limits.tolist()} in `{where}`", stops.tolist())
        if self._without("span_batch") is not None:
            return
        positions = self._shuffled()
        for row, found in enumerate(self._dataset.span_batch(positions)):
            where = f"dataset.span_batch(positions)[{row}]"
            require_same(columns_of(found), columns_of(self._dataset.spans(positions[row])), where=where)

    def returns_lengths(self) -> None:
        """`lengths` and `padded_lengths` match the samples"""
        self._need("lengths", "padded_lengths")
        samples = [self._samples[position] for position in self._shuffled()]
        for name, key in (("lengths", "original_seq_len"), ("padded_lengths", "padded_seq_len")):
            found = getattr(self._dataset, name)(np.array(self._shuffled()))
            expected = [int(as_array(each[key]).item()) if key in each else len(each["tokens"]) for each in samples]
            require_same(found, np.array(expected, dtype=np.int64), where=f"dataset.{name}(positions)")

    def ignores_announcements(self) -> None:
        """`will_need` does not change samples"""
        self._need("will_need")
        self._dataset.will_need(list(self._samples))
        self.repeats()

    def is_pickled(self) -> None:
        """a pickled copy returns the samples"""
        found = pickled_copy(self._dataset)
        require(len(found) == len(self._dataset), f"{len(self._dataset)} samples in a pickled copy", len(found))
        self._require_samples(found.__getitem__, "pickle.loads(pickle.dumps(dataset))[{}]", self._samples)

    def works_with_data_loader(self) -> None:
        """torch's DataLoader yields the samples"""
        self._check_loader("DataLoader", build_dataloader)

    def works_with_workers(self) -> None:
        """worker processes yield the samples"""
        if not self._num_workers:
            skip("`num_workers` is 0")
        name = f"DataLoader with {self._num_workers} workers"
        self._check_loader(name, build_dataloader, num_workers=self._num_workers)

    def works_with_threads(self) -> None:
        """ThreadLoader yields the samples"""
        if self._without("batch") is None:
            self._batch(self._shuffled()[:2])
        self._check_loader("ThreadLoader", ThreadLoader, num_threads=2)

    def works_with_buffers(self) -> None:
        """ThreadLoader with reused buffers yields the samples"""
        try:
            self._check_loader("ThreadLoader(reuse_after=1)", ThreadLoader, reuse_after=1, read_ahead=1)
        except ConfigError as error:
            skip(error.message)

    def works_in_a_blend(self) -> None:
        """a blend returns the samples"""
        self._need(*_BLEND_ATTRIBUTES)
        if not isinstance(next(iter(self._samples.values())), Mapping):
            skip("samples are not mappings")
        size = min(len(self._dataset), _MAX_BLEND_SAMPLES)
        blend = BlendedDataset([self._dataset] * 2, [3.0, 2.0], size, _uncached(self._dataset.config))
        for position, sample in enumerate(blend.dataset_sample_index.tolist()):
            number, where = blend.dataset_index[position], f"BlendedDataset([dataset, dataset], …)[{position}]"
            found = dict(blend[position])
            require_same(found.pop("dataset_id"), number, where=f"blend[{position}]['dataset_id']")
            require_same(found, self._dataset[sample], where=f"{where}, sample {sample} of dataset {number}")
        positions = list(range(size))
        if self._without("batch") is None:
            self._batch(positions)
        (batch,) = ThreadLoader(blend, self._collatable([positions]))
        require_same(batch, collate([blend[position] for position in positions]), where="a batch of a blend")

    def _need(self, *attributes: str) -> None:
        for attribute in attributes:
            if (name := self._without(attribute)) is not None:
                skip(f"{name} has no `{attribute}`")

    def _without(self, attribute: str) -> str | None:
        """Returns the class name of the dataset, or of a member of the blend, that lacks `attribute`; or None."""
        is_of_members = attribute in _MEMBER_ATTRIBUTES and isinstance(self._dataset, BlendedDataset)
        owners = self._dataset.datasets if is_of_members else [self._dataset]
        return next((type(owner).__name__ for owner in owners if not hasattr(owner, attribute)), None)

    def _shuffled(self) -> list[int]:
        """Returns the positions of the chosen samples in descending order, then the largest position again."""
        backwards = list(reversed(self._samples))
        return [*backwards, backwards[0]]

    def _require_samples(self, read: Callable[[int], Any], where: str, positions: Iterable[int]) -> None:
        for position in positions:
            require_same(read(position), self._samples[position], where=where.format(position))

    def _require_batch(self, found: Any, *, where: str) -> None:
        samples = [self._samples[position] for position in self._shuffled()]
        require(isinstance(samples[0], Mapping), "mappings as samples of a dataset with `batch`", type(samples[0]))
        stacked = {name: np.stack([as_array(sample[name]) for sample in samples]) for name in samples[0]}
        require_same(found, stacked, where=where)

    def _batch(self, positions: Any) -> Any:
        self._need("batch")
        try:
            return self._dataset.batch(positions)
        except ConfigError as error:  # samples of different lengths
            skip(error.message)

    def _collatable(self, batches: Sequence[Sequence[int]] | None = None) -> list[list[int]]:
        """Returns batches of positions; skips the running check if torch cannot collate their samples."""
        if not is_installed("torch"):
            skip("torch is not installed")
        positions = self._shuffled()
        found = [list(batch) for batch in batches or (positions[:2], positions[2:], positions[-2:]) if batch]
        for batch in found:
            try:
                collate([self._dataset[position] for position in batch])
            except (RuntimeError, TypeError) as error:
                skip(f"torch cannot collate the samples: {error}")
        return found

    def _check_loader(self, where: str, kind: Callable[..., Iterable[Any]], **settings: Any) -> None:
        batches = self._collatable()
        loader = iter(kind(self._dataset, batches, **settings))
        for number, positions in enumerate(batches):
            expected = collate([self._dataset[position] for position in positions])
            require_same(next(loader, None), expected, where=f"batch {number} of {where}")
        require(next(loader, None) is None, f"{len(batches)} batches from {where}", "more")


def _uncached(config: Any) -> Any:
    changed = copy.copy(config)
    for name, value in {"path_to_cache": None, "fast_cache_load": False, "defer_npy_index_mmap": False}.items():
        object.__setattr__(changed, name, value)
    return changed
