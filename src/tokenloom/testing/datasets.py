"""Checks that a dataset gives the same samples by every interface."""

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

_MOST_OF_A_BLEND = 8
_BLENDED_WITH = ("index_split", "unique_identifiers", "dataset_path", "config")
_ASKED_OF_MEMBERS = ("spans", "lengths", "padded_lengths")


def check_dataset(dataset: Any, *, num_samples: int = 8, num_workers: int = 2) -> CheckReport:
    """Checks that a dataset fulfils what loaders and blends require; interfaces that it lacks are skipped.

    `dataset[k]` defines sample k. It must be the same each time, and by every other interface: `sample`, `batch`,
    arrays of the caller, worker processes, threads, blends, a pickled copy.

    Example:
        >>> class Squares:
        ...     def __len__(self):
        ...         return 10
        ...     def __getitem__(self, position):
        ...         if not 0 <= position < len(self):
        ...             raise IndexError(position)
        ...         return {"square": np.array([position**2])}
        >>> report = check_dataset(Squares(), num_workers=0)
        >>> report.passed[:2]
        ('it has samples', 'a sample is the same whenever it is asked for')

    Args:
        dataset: an object with `__len__` and `__getitem__`, and at least one sample.
        num_samples: number of samples to compare, spread over the dataset.
        num_workers: worker processes of torch's DataLoader; 0 skips that check.

    Raises:
        ConformanceError: an interface gives other samples, or there are none.
    """
    return run_checks(type(dataset).__name__, _DatasetChecks(dataset, num_samples, num_workers))


class _DatasetChecks:
    """The checks of one dataset; later ones rely on earlier ones."""

    def __init__(self, dataset: Any, num_samples: int, num_workers: int) -> None:
        self._dataset, self._num_workers, self._num_chosen = dataset, num_workers, num_samples
        self._samples: dict[int, Any] = {}

    def has_samples(self) -> None:
        """it has samples"""
        count = len(self._dataset)
        require(count > 0, "one sample at least", count)
        chosen = spread_evenly(count, max(self._num_chosen, 1))
        self._samples = {position: _copied(self._dataset[position]) for position in chosen.tolist()}

    def repeats(self) -> None:
        """a sample is the same whenever it is asked for"""
        self._require_samples(self._dataset.__getitem__, "dataset[{}]", reversed(self._samples))

    def counts_from_the_end(self) -> None:
        """positions below 0 count from the end, or are refused"""
        try:
            found = self._dataset[-1]
        except IndexError:
            skip("they are refused")
        require_same(found, self._samples[max(self._samples)], where="dataset[-1]")

    def refuses_positions_beyond_the_end(self) -> None:
        """positions beyond the end are refused"""
        count = len(self._dataset)
        try:
            self._dataset[count]
        except IndexError:
            return
        hint = "without it, a loop over the dataset never ends, and wrong positions stay unnoticed"
        expected = f"an `IndexError` of `dataset[{count}]`, as there are {count} samples"
        raise deviation(expected, "a sample", hint=hint)

    def fills_up(self) -> None:
        """None gives a sample without loss"""
        sample = next(iter(self._samples.values()))
        if not isinstance(sample, Mapping) or "loss_mask" not in sample:
            skip("samples have no `loss_mask`")
        try:
            found = self._dataset[None]
        except (TypeError, IndexError, KeyError, ValueError):
            skip("`dataset[None]` is refused")
        require_same(list(found), list(sample), where="list(dataset[None])")
        mask = as_array(found["loss_mask"])
        require(not mask.any(), "zeros as `dataset[None]['loss_mask']`", f"{np.count_nonzero(mask)} others")

    def gives_arrays(self) -> None:
        """`sample` gives the sample, as arrays"""
        self._need("sample")
        self._require_samples(self._dataset.sample, "dataset.sample({})", self._samples)

    def gives_batches(self) -> None:
        """`batch` gives the samples, stacked"""
        positions = self._shuffled()
        self._require_batch(self._batch(positions), where="dataset.batch(positions)")
        self._require_batch(self._batch(np.array(positions)), where="dataset.batch(numpy.array(positions))")

    def fills_given_arrays(self) -> None:
        """`batch` fills given arrays"""
        self._need("allocate_batch")
        positions = self._shuffled()
        sample = self._samples[positions[0]]
        for integers in (np.int64, np.int32):
            try:
                arrays = self._dataset.allocate_batch(len(positions), integer_dtype=integers)
                found = self._dataset.batch(positions, out=arrays)
            except ConfigError as error:
                skip(error.message)
            require(found is arrays, "`out` back from `dataset.batch(positions, out=arrays)`", "other arrays")
            wide = {name: array.astype(as_array(sample[name]).dtype) for name, array in arrays.items()}
            self._require_batch(wide, where="dataset.batch(positions, out=arrays)")
        for rows in (len(positions) + 1, len(positions) - 1):
            expected = f"a `ConfigError` for {len(positions)} positions and `out` of {rows} rows"
            with suppress(ConfigError):
                self._dataset.batch(positions, out=self._dataset.allocate_batch(rows))
                raise deviation(expected, "a batch")

    def gives_many(self) -> None:
        """`__getitems__` gives the samples"""
        self._need("__getitems__")
        positions = self._shuffled()
        expected = [self._samples[position] for position in positions]
        require_same(list(self._dataset.__getitems__(positions)), expected, where="dataset.__getitems__(positions)")

    def gives_spans(self) -> None:
        """`spans` and `span_batch` agree, and lie within documents"""
        self._need("spans")
        lengths = self._dataset.documents.lengths if isinstance(self._dataset, PairSamples) else None
        for position in self._samples:
            spans = self._dataset.spans(position)
            where = f"dataset.spans({position})"
            require(np.all(spans.lengths > 0), f"spans with tokens in `{where}`", spans.lengths.tolist())
            require(np.all(spans.starts >= 0), f"starts from 0 on in `{where}`", spans.starts.tolist())
            if lengths is not None:
                stops, limits = spans.starts + spans.lengths, np.asarray(lengths)[spans.documents]
                require(np.all(stops <= limits), f"ends up to {limits.tolist()} in `{where}`", stops.tolist())
        if self._without("span_batch") is not None:
            return
        positions = self._shuffled()
        for row, found in enumerate(self._dataset.span_batch(positions)):
            where = f"dataset.span_batch(positions)[{row}]"
            require_same(columns_of(found), columns_of(self._dataset.spans(positions[row])), where=where)

    def knows_lengths(self) -> None:
        """`lengths` and `padded_lengths` are those of the samples"""
        self._need("lengths", "padded_lengths")
        samples = [self._samples[position] for position in self._shuffled()]
        for name, said in (("lengths", "original_seq_len"), ("padded_lengths", "padded_seq_len")):
            found = getattr(self._dataset, name)(np.array(self._shuffled()))
            expected = [int(as_array(each[said]).item()) if said in each else len(each["tokens"]) for each in samples]
            require_same(found, np.array(expected, dtype=np.int64), where=f"dataset.{name}(positions)")

    def takes_announcements(self) -> None:
        """`will_need` changes nothing"""
        self._need("will_need")
        self._dataset.will_need(list(self._samples))
        self.repeats()

    def is_pickled(self) -> None:
        """a pickled copy gives the samples"""
        found = pickled_copy(self._dataset)
        require(len(found) == len(self._dataset), f"{len(self._dataset)} samples in a pickled copy", len(found))
        self._require_samples(found.__getitem__, "pickle.loads(pickle.dumps(dataset))[{}]", self._samples)

    def works_with_data_loader(self) -> None:
        """torch's DataLoader gives the samples"""
        self._check_loader("DataLoader", build_dataloader)

    def works_with_workers(self) -> None:
        """worker processes give the samples"""
        if not self._num_workers:
            skip("`num_workers` is 0")
        name = f"DataLoader with {self._num_workers} workers"
        self._check_loader(name, build_dataloader, num_workers=self._num_workers)

    def works_with_threads(self) -> None:
        """ThreadLoader gives the samples"""
        if self._without("batch") is None:
            self._batch(self._shuffled()[:2])
        self._check_loader("ThreadLoader", ThreadLoader, num_threads=2)

    def works_with_buffers(self) -> None:
        """ThreadLoader gives the samples from buffers that it uses again"""
        try:
            self._check_loader("ThreadLoader(reuse_after=1)", ThreadLoader, reuse_after=1, read_ahead=1)
        except ConfigError as error:
            skip(error.message)

    def works_in_a_blend(self) -> None:
        """a blend gives the samples"""
        self._need(*_BLENDED_WITH)
        if not isinstance(next(iter(self._samples.values())), Mapping):
            skip("its samples have no names")
        size = min(len(self._dataset), _MOST_OF_A_BLEND)
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
        """Returns the class that lacks an attribute; for a blend, that of a member."""
        is_asked_on = attribute in _ASKED_OF_MEMBERS and isinstance(self._dataset, BlendedDataset)
        holders = self._dataset.datasets if is_asked_on else [self._dataset]
        return next((type(holder).__name__ for holder in holders if not hasattr(holder, attribute)), None)

    def _shuffled(self) -> list[int]:
        """Returns the chosen positions backwards, and one of them twice."""
        backwards = list(reversed(self._samples))
        return [*backwards, backwards[0]]

    def _require_samples(self, ask: Callable[[int], Any], where: str, positions: Iterable[int]) -> None:
        for position in positions:
            require_same(ask(position), self._samples[position], where=where.format(position))

    def _require_batch(self, found: Any, *, where: str) -> None:
        samples = [self._samples[position] for position in self._shuffled()]
        kind = type(samples[0])
        require(isinstance(samples[0], Mapping), "samples with names from a dataset with `batch`", kind.__name__)
        stacked = {name: np.stack([as_array(sample[name]) for sample in samples]) for name in samples[0]}
        require_same(found, stacked, where=where)

    def _batch(self, positions: Any) -> Any:
        self._need("batch")
        try:
            return self._dataset.batch(positions)
        except ConfigError as error:  # samples of different lengths
            skip(error.message)

    def _collatable(self, batches: Sequence[Sequence[int]] | None = None) -> list[list[int]]:
        """Returns batches of positions; skips the check if torch cannot collate them."""
        if not is_installed("torch"):
            skip("torch is not installed")
        positions = self._shuffled()
        found = [list(batch) for batch in batches or (positions[:2], positions[2:], positions[-2:]) if batch]
        for batch in found:
            try:
                collate([self._dataset[position] for position in batch])
            except (RuntimeError, TypeError) as error:
                skip(f"torch makes no batch of its samples: {error}")
        return found

    def _check_loader(self, where: str, kind: Callable[..., Iterable[Any]], **settings: Any) -> None:
        batches = self._collatable()
        number = 0
        for number, batch in enumerate(kind(self._dataset, batches, **settings), 1):
            require(number <= len(batches), f"{len(batches)} batches of {where}", "more")
            expected = collate([self._dataset[position] for position in batches[number - 1]])
            require_same(batch, expected, where=f"batch {number - 1} of {where}")
        require(number == len(batches), f"{len(batches)} batches of {where}", number)


def _copied(sample: Any) -> Any:
    """Returns a deep copy of a sample, as arrays."""
    if isinstance(sample, Mapping):
        return {name: _copied(value) for name, value in sample.items()}
    if isinstance(sample, (tuple, list)):
        return [_copied(value) for value in sample]
    return as_array(sample).copy()


def _uncached(config: Any) -> Any:
    """Returns a configuration with which a blend does not use the user's cache."""
    found = copy.copy(config)
    for name, value in {"path_to_cache": None, "fast_cache_load": False, "defer_npy_index_mmap": False}.items():
        object.__setattr__(found, name, value)
    return found
