"""Samples by number from one `.bin`/`.idx` pair: what all classes that read one share."""

from __future__ import annotations

import operator
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.data_match import Kind, check_kind
from tokenloom.datasets.protocols import Int64s, Positions, pair_of
from tokenloom.datasets.shortcuts import as_arrays, is_within_item, makes_batches, stack
from tokenloom.datasets.tensors import Sample, sample_batch
from tokenloom.errors import ConfigError, IndexCacheError
from tokenloom.forks import cached_property
from tokenloom.indexed.dataset import IndexedDataset, ReadSpans, dataset_identity, span_reader
from tokenloom.indexed.joined import JoinedPairs
from tokenloom.indexed.verify import Verification, check_columns, check_index, verification
from tokenloom.order.arrays import ArrayStore, DataOrigin
from tokenloom.order.cache import index_cache
from tokenloom.order.documents import Documents
from tokenloom.order.protocols import Order
from tokenloom.order.windows import SpanBatch, Spans
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.objects import object_storage, own_folder


def verification_of(config: BlendedMegatronDatasetConfig) -> Verification | None:
    """Returns the check that runs in the background of datasets with `verify="full"`; None with "quick".

    `wait()` waits until all that was built is checked, and raises what was found. Every sample that is asked for raises
    it too, in this process and in workers that are forked from it.

    Args:
        config: the settings.
    """
    if config.verify != "full" or config.mock:
        return None
    if config.path_to_cache is not None and not is_remote(config.path_to_cache):
        return verification(os.path.join(config.path_to_cache, "verified"))
    path = os.path.join(config.storage_settings.folder, f"verified-{os.geteuid()}")
    return verification(own_folder(path, hint="name a folder for indices with `path_to_cache`"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOrigin:
    """A low-level dataset as the `DataOrigin` of index arrays.

    Attributes:
        dataset: the data; made-up ones are sound, and need no identity.
        further: what else the arrays depend on and the key of their cache does not say.
        tell: tells the data from others; None for `dataset_identity` of a pair.
    """

    dataset: Any
    further: Mapping[str, Any] = field(default_factory=dict)
    tell: Callable[[], dict[str, Any]] | None = None

    def check(self) -> None:
        """Checks every row of the index, and all roles, once per opened pair; compares with its manifest."""
        if (pair := pair_of(self.dataset)) is not None:
            check_index(pair, compares=not pair.is_remote)  # its local copy has a checksum of its own
            if not pair.is_remote:
                check_columns(pair, names=("roles",))

    @property
    def identity(self) -> Callable[[], dict[str, Any]] | None:
        """Returns what tells the data from others; None for made-up ones."""
        if self.tell is None and pair_of(self.dataset) is None:
            return None
        tell = self.tell or partial(dataset_identity, self.dataset)
        return lambda: {**tell(), **self.further}


class PairSamples(MegatronDataset):
    """What datasets over one pair have beside `MegatronDataset`: an order, samples in batches, and announcements.

    A class says which order it has, and how it makes samples in `_batch`.

    A position may count from the end. None gives a sample with an all-zero `loss_mask`, for filling up a batch.

    `dataset[k]` shows what samples are: of a class that overrides `__getitem__` or `sample`, all methods that give
    samples, and all loaders, ask that.
    """

    _reads: ClassVar[Kind] = "documents"
    """What sequences are taken for."""

    def _check_pair(self) -> None:
        """Checks what is open, and begins to verify it where the settings ask for that; part of making a dataset."""
        if self.num_samples is not None and self.num_samples < 0:
            message = f"{self._name()}: expected num_samples of at least 0, found {self.num_samples}"
            raise ConfigError(message)
        if isinstance(self.dataset, IndexedDataset) and self.dataset.dtype.kind not in "iu":
            message = f"{self._name()}: expected tokens of an integer dtype, found {self.dataset.dtype}"
            raise ConfigError(message)
        self._verification = verification_of(self.config)
        if self._verification is not None and (pair := pair_of(self.dataset)) is not None:
            self._verification.add(pair.path_prefix, pair.object_storage)
        name = f"`{self.dataset_path or type(self).__name__}`"
        check_kind(self.dataset, self.config, name=name, reads=self._reads)

    order: Order
    """Which tokens are sample i."""

    _asks_items: ClassVar[bool] = False
    """Whether a low-level dataset of a user's own may give sequences by `dataset[k]` too."""

    @cached_property
    def _read_spans(self) -> ReadSpans:
        return span_reader(self.dataset, whole=self._asks_items)

    @abstractmethod
    def _batch(self, rows: Int64s) -> Sample:
        """Returns the samples at positions that are known to exist: int64[count]."""

    def verify_indices(self) -> list[str]:
        """Works the order out again and returns one sentence for each difference from the one in use.

        Finds what opening does not: a permutation that is none, any flipped bit. As costly as the first build.
        """
        return self.order.verify()

    def __getitems__(self, positions: Sequence[int | None]) -> list[Sample]:
        """Returns many samples as torch tensors, made as one batch where they can be; torch's DataLoader calls this."""
        if makes_batches(self) or is_within_item(self):
            return sample_batch(self.batch(positions), len(positions))
        return self._items(positions)

    def sample(self, idx: int | None) -> Sample:
        """Returns a sample as NumPy arrays, see the class; None gives one with an all-zero loss mask."""
        if self._must_ask("sample"):
            return as_arrays(self._items((idx,))[0])
        return self._sample(idx)

    def _sample_for_item(self, idx: int | None) -> Sample:
        """Returns the arrays that `__getitem__` makes tensors of: those of a `sample` of the user's own, or ours."""
        return self.sample(idx) if "sample" in self._overrides.found else self._sample(idx)

    def _sample(self, idx: int | None) -> Sample:
        """Returns a sample as NumPy arrays, made here."""
        if idx is None:
            batch = self._rows_or_fillers((None,))
        else:
            batch = self._batch(np.array([self._position(idx)], dtype=np.int64))
            self.order.check()
        return {name: array[0] for name, array in batch.items()}

    def batch(self, positions: Positions) -> Sample:
        """Returns many samples as NumPy arrays with a leading batch axis, by one kernel call.

        Args:
            positions: positions of the samples, in any order, repeats allowed; None for a sample without loss.

        Raises:
            IndexError: there is no such sample.
            ConfigError: a class of a user's own gives samples that differ in names or shapes.
        """
        if self._must_ask("batch"):
            return stack(self._items(positions), name=type(self).__name__)
        return self._rows_or_fillers(positions)

    def _rows_or_fillers(self, positions: Positions) -> Sample:
        rows, fillers = self._rows(positions)
        batch = self._batch(rows)
        self.order.check()
        if fillers:
            batch["loss_mask"][fillers] = 0
        return batch

    def _name(self) -> str:
        return f"`{self.dataset_path or type(self).__name__}` ({self.index_split.name})"

    def _damaged(self, error: IndexError) -> IndexCacheError:
        """Not an `IndexError`, which would end a loop over the dataset as if nothing had happened."""
        self.order.check()
        message = f"the indices of {self._name()} do not fit the data: {error}"
        return IndexCacheError(message, hint="remove them from the index cache, and they are built again")

    def _position(self, idx: int) -> int:
        """Returns the non-negative position for one that may count from the end."""
        if self._verification is not None:
            self._verification.check()
        num_samples = len(self)
        position = operator.index(idx)
        if not -num_samples <= position < num_samples:
            message = f"sample {position} of {self._name()} was asked for, but it has {num_samples}"
            raise IndexError(message)
        return position if position >= 0 else position + num_samples

    def _rows(self, positions: Positions) -> tuple[Int64s, list[int]]:
        """Returns non-negative positions, int64[count], and the rows that stand for None."""
        if self._verification is not None:
            self._verification.check()
        rows, fillers = positions_and_fillers(positions)
        num_samples = len(self)
        if rows.size and not _all_within(rows, num_samples):
            rows = np.array([self._position(position) for position in rows.tolist()], dtype=np.int64)
        return rows, fillers

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self.rows.consecutive is not None:  # 4 bytes per document otherwise
            state.pop("_indices", None)
        return state

    def spans(self, idx: int) -> Spans:
        """Returns the pieces of sequences that make up a sample: all that it reads, one beyond its end included."""
        return self.span_batch((idx,))[0]

    @abstractmethod
    def span_batch(self, positions: Positions) -> SpanBatch:
        """Returns the spans of many samples."""

    @property
    def remote_paths(self) -> list[str]:
        """The addresses of the objects that tokens are read from; empty for local data."""
        return [] if (source := self._pairs) is None else source.remote_paths

    @property
    def _pairs(self) -> JoinedPairs | IndexedDataset | None:
        return self.dataset if type(self.dataset) is JoinedPairs else pair_of(self.dataset)

    def will_need(self, positions: Sequence[int | None]) -> None:
        """Announces samples that will be read, in this order, so that their bytes are fetched from object storage."""
        if (source := self._pairs) is not None and source.remote_paths:
            rows, _ = self._rows(positions)
            spans = self.span_batch(rows)
            read = spans.documents >= 0  # not denied
            chosen = (spans.documents[read], spans.starts[read], spans.lengths[read])
            blocks = getattr(self.config, "block_shuffle", None)  # that samples stay in for a while
            source.will_need(*chosen, block_bytes=None if blocks is None else blocks.block_bytes)

    @property
    def documents(self) -> Documents:
        """The sequences that this split exposes, with their lengths."""
        return Documents(self.dataset, self.rows)

    def _sample_facts(self) -> dict[str, Any]:
        is_built = self.order.is_built
        return {
            "samples" if is_built else "samples, at least": len(self) if is_built else self.num_samples,
            "documents exposed": f"{len(self.rows):,} of {len(self.dataset):,}",
        }

    def _array_store(self, origin: DataOrigin, *, base: str | None = None) -> ArrayStore:
        """Returns where arrays of the order are kept: in the index cache; in memory only for made-up data without one.

        Args:
            origin: what they are built from.
            base: what the names of their files begin with; None for that of a split.
        """
        config = self.config
        is_kept = config.path_to_cache is not None or not config.mock
        base = base or f"{self.unique_description_hash}-{type(self).__name__}-{self.index_split.name}"
        cache = None
        if is_kept:
            is_full = config.verify == "full"
            cache = index_cache(self._index_folder(), base, config.storage_settings, compares_all=is_full)
        return ArrayStore(
            cache=cache,
            description=self.unique_description,
            name=self._name(),
            origin=origin,
            must_exist=config.fast_cache_load or config.defer_npy_index_mmap,
            deferred=config.defer_npy_index_mmap,
            may_stay_unwritten=config.path_to_cache is None,
        )

    def _index_folder(self) -> str:
        """Returns the folder of the index cache: the one that is named, else one beside the data, or of this node."""
        if self.config.path_to_cache is not None:
            folder: str = self.config.path_to_cache
            return folder
        if self.remote_paths:
            return local_index_folder(self.config)
        return os.path.join(self.dataset.path_prefix, "cache", f"{type(self).__name__}_indices")


def local_index_folder(config: BlendedMegatronDatasetConfig) -> str:
    """Returns the folder of this node for indices of data in object storage, where no other is named."""
    return os.path.join(object_storage(config.storage_settings).folder, "indices")


def has_own_lengths(source: Any) -> bool:
    """Whether a low-level dataset has lengths of a user's own, or is no pair."""
    kind = type(source)  # a wrapper may say that it is another class
    return not issubclass(kind, IndexedDataset) or kind.sequence_lengths is not IndexedDataset.sequence_lengths


def positions_and_fillers(positions: Positions) -> tuple[Int64s, list[int]]:
    """Returns positions as they are given, int64[count], with 0 in the rows that stand for None, and these rows."""
    fillers: list[int] = []
    if not isinstance(positions, np.ndarray) and None in positions:
        fillers = [row for row, position in enumerate(positions) if position is None]
        positions = [0 if position is None else position for position in positions]
    given = np.asarray(positions)
    if given.dtype.kind not in "iu" and given.size:
        message = f"expected integers as positions of samples, found {given.dtype}"
        raise TypeError(message)
    return np.ascontiguousarray(given, dtype=np.int64), fillers


def _all_within(rows: Int64s, count: int) -> bool:
    """Whether all positions are in [0, count)."""
    if rows.size <= _FEW and rows.ndim == 1:  # a call of NumPy takes longer than looking at so few
        numbers = rows.tolist()
        return bool(min(numbers) >= 0 and max(numbers) < count)
    return bool(rows.min() >= 0 and rows.max() < count)


_FEW = 64
