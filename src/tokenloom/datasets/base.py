"""Base classes of datasets: `MegatronDataset`, and `PairSamples` for datasets over `.bin`/`.idx` pairs."""

from __future__ import annotations

import operator
import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.data_match import Kind, check_kind, check_tokenizer
from tokenloom.datasets.protocols import Int64s, KnowsOrder, Positions, pair_of
from tokenloom.datasets.shortcuts import HasHooks, as_arrays, called_from_item, makes_batches, stack
from tokenloom.datasets.splits import Split
from tokenloom.datasets.tensors import Sample, sample_batch
from tokenloom.datasets.tokenizer import pad_token_id
from tokenloom.errors import ConfigError, IndexCacheError
from tokenloom.forks import cached_property
from tokenloom.indexed.dataset import IndexedDataset, ReadSpans, dataset_identity, span_reader
from tokenloom.indexed.joined import JoinedPairs
from tokenloom.indexed.verify import Verification, check_columns, check_index, verification
from tokenloom.order.array_store import ArrayStore, DataOrigin
from tokenloom.order.cache import index_cache
from tokenloom.order.documents import Documents, Rows
from tokenloom.order.keys import describe
from tokenloom.order.protocols import Order
from tokenloom.order.windows import SpanBatch, Spans
from tokenloom.rendering.card import HasFacts
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.objects import object_storage, own_folder


class MegatronDataset(HasFacts, HasHooks, ABC):
    """The base class of datasets: the samples of one split of a low-level dataset.

    Works as a map-style dataset of torch, but does not inherit from torch: importing tokenloom needs no torch.

    A subclass implements the four methods of the example. `BlendedMegatronDatasetBuilder` can then divide the data into
    splits, choose `num_samples`, and blend the datasets. Each dataset must have at least `num_samples` samples. To add
    settings, derive a class from `BlendedMegatronDatasetConfig`.

    Example:
        >>> import os, tempfile
        >>> from dataclasses import dataclass
        >>> from tokenloom import BlendedMegatronDatasetBuilder, BlendedMegatronDatasetConfig
        >>> @dataclass
        ... class LinesConfig(BlendedMegatronDatasetConfig):
        ...     uppercase: bool = False
        >>> class LinesDataset(MegatronDataset):
        ...     @staticmethod
        ...     def build_low_level_dataset(dataset_path, config):
        ...         with open(dataset_path) as stream:
        ...             return stream.read().splitlines()
        ...     @staticmethod
        ...     def numel_low_level_dataset(low_level_dataset):
        ...         return len(low_level_dataset)
        ...     def __len__(self):
        ...         return len(self.indices) if self.num_samples is None else self.num_samples
        ...     def __getitem__(self, idx):
        ...         line = self.dataset[self.indices[range(len(self))[idx] % len(self.indices)]]
        ...         return {"line": line.upper() if self.config.uppercase else line}
        >>> paths = [os.path.join(tempfile.mkdtemp(), name) for name in ("prose", "verse")]
        >>> for path in paths:
        ...     with open(path, "w") as stream:
        ...         _ = stream.write("".join(f"{os.path.basename(path)} {i}\\n" for i in range(4)))
        >>> config = LinesConfig(
        ...     random_seed=1, sequence_length=8, blend=(paths, [3.0, 1.0]), split="3,1", uppercase=True
        ... )
        >>> train, valid, _ = BlendedMegatronDatasetBuilder(LinesDataset, [8, 2, 0], lambda: True, config).build()
        >>> [train[k]["line"] for k in range(len(train))]
        ['PROSE 0', 'VERSE 0', 'PROSE 1', 'PROSE 2', 'PROSE 0', 'VERSE 1', 'PROSE 1', 'PROSE 2']
        >>> valid[1]
        {'dataset_id': np.int16(1), 'line': 'VERSE 3'}

    Args:
        dataset: the low-level dataset, for example an `IndexedDataset`.
        dataset_path: path of the low-level dataset, for cache keys and messages; None for mock data.
        indices: integers[num_elements] or a range: the elements of the low-level dataset in this split, as indices.
        num_samples: minimum number of samples; None for one epoch.
        index_split: the split that these samples belong to.
        config: the settings.

    Raises:
        ConfigError: the class overrides a method that is never called, or only a fast method such as `batch`.
    """

    run_order: KnowsOrder | None = None
    """The order of the run if this dataset is the only part of a run; else None."""

    mock_of: ClassVar[type | None] = None
    """In a class of mock data: the class that reads real data."""

    _indices: NDArray[Any] | None = None

    def __init__(
        self,
        dataset: Any,
        dataset_path: str | None,
        indices: NDArray[Any] | range,
        num_samples: int | None,
        index_split: Split,
        config: Any,
    ) -> None:
        self._check_overrides()
        if self.mock_of is not None and not config.mock:
            message = f"{type(self).__name__}: reads mock data only, got a config with `blend`"
            raise ConfigError(message, hint=f"use {self.mock_of.__name__}, or remove `blend` from the config")
        if not isinstance(index_split, Enum):
            raise ConfigError(f"`index_split`: must be a `Split`, got {index_split!r}", hint="pass `Split.train`")
        self.dataset = dataset
        self.dataset_path = dataset_path
        self.rows: Rows = Rows.of(indices)
        """The elements of this split; a range if they are consecutive."""
        self.num_samples: int | None = None if num_samples is None else operator.index(num_samples)
        self.index_split = index_split
        self.config = config
        self.unique_identifiers: OrderedDict[str, Any] = OrderedDict()
        self.unique_identifiers["class"] = type(self).__name__
        self.unique_identifiers["dataset_path"] = dataset_path
        self.unique_identifiers["num_samples"] = self.num_samples
        self.unique_identifiers["index_split"] = index_split.name
        for attribute in self._key_config_attributes():
            self.unique_identifiers[attribute] = getattr(config, attribute)
        self.unique_identifiers.update(self._further_identifiers())
        self.unique_description: str
        self.unique_description_hash: str
        self.unique_description, self.unique_description_hash = describe(self.unique_identifiers)
        if not self._opens_later:
            check_tokenizer(dataset, config, name=f"`{dataset_path or type(self).__name__}`")
        self._pad_token_id = pad_token_id(config.tokenizer, allow_ambiguous=bool(config.allow_ambiguous_pad_tokens))

    @property
    def _opens_later(self) -> bool:
        """Whether the data are opened, and the tokenizer is checked, only when the first sample is read."""
        return False

    @property
    def indices(self) -> NDArray[Any]:
        """integers[num_elements], the elements of the low-level dataset in this split, as indices."""
        if self._indices is None:
            self._indices = self.rows.array()
        return self._indices

    @indices.setter
    def indices(self, indices: NDArray[Any]) -> None:
        self.rows = Rows.of(indices)
        self._indices = indices

    @staticmethod
    @abstractmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        """Returns the number of elements; the split weights divide these elements among the splits."""

    @staticmethod
    @abstractmethod
    def build_low_level_dataset(dataset_path: str, config: BlendedMegatronDatasetConfig) -> Any:
        """Opens the low-level dataset at a path."""

    @staticmethod
    def _key_config_attributes() -> list[str]:
        """Returns the names of the settings in the cache key."""
        return ["random_seed", "sequence_length", "split", "split_matrix", "tokenizer"]

    def _further_identifiers(self) -> dict[str, Any]:
        """Returns {name: value} for settings in the cache key that the reference's cache key does not contain."""
        return {}

    @abstractmethod
    def __len__(self) -> int:
        """Returns the number of samples."""

    @abstractmethod
    def __getitem__(self, idx: int) -> dict[str, Any]:
        """Returns a sample."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dataset_path!r}, {self.index_split.name}, num_samples={len(self)})"

    def facts(self) -> dict[str, Any]:
        """Returns values for display, see `HasFacts`: path, split, samples, settings, and the facts of the pair."""
        pair = pair_of(self.dataset)
        return {
            "path": self.dataset_path,
            "split": self.index_split.name,
            **self._sample_facts(),
            "sequence length": self.config.sequence_length,
            "seed": self.config.random_seed,
            **({} if pair is None else {f"{name} of the pair": each for name, each in pair.facts().items()}),
        }

    def _sample_facts(self) -> dict[str, Any]:
        return {"samples": len(self)}


def verification_of(config: BlendedMegatronDatasetConfig) -> Verification | None:
    """Returns the background verification of the data if `verify="full"`; None if `verify="quick"` or for mock data.

    The result's `wait()` blocks until the verification ends, and raises an error for the first damage found. After
    damage was found, reading any sample raises too, in this process and in the workers that this process forks.
    """
    if config.verify != "full" or config.mock:
        return None
    if config.path_to_cache is not None and not is_remote(config.path_to_cache):
        return verification(os.path.join(config.path_to_cache, "verified"))
    path = os.path.join(config.storage_settings.folder, f"verified-{os.geteuid()}")
    return verification(own_folder(path, hint="set `path_to_cache` to a folder of your own"))


def open_pair(path: str, config: BlendedMegatronDatasetConfig, **options: Any) -> IndexedDataset:
    """Opens the pair at a path; the settings for reading come from the config."""
    return IndexedDataset(
        path,
        mmap=config.mmap_bin_files,
        fast_cache_load=config.fast_cache_load,
        object_storage=config.storage_settings,
        **options,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOrigin:
    """The `DataOrigin` of index arrays that are built from one low-level dataset.

    `further` has settings that determine the arrays but are not in the cache key. `identify`, if given, computes the
    identity of the data; otherwise, `dataset_identity` does.
    """

    dataset: Any
    further: Mapping[str, Any] = field(default_factory=dict)
    identify: Callable[[], dict[str, Any]] | None = None

    def check(self) -> None:
        """Raises if `.idx` rows are damaged; for local data, also if the `.idx` checksum or the roles are wrong."""
        if (pair := pair_of(self.dataset)) is not None:
            check_index(pair, compares=not pair.is_remote)  # the local copy of a remote index has its own checksum
            if not pair.is_remote:
                check_columns(pair, names=("roles",))

    @property
    def identity(self) -> Callable[[], dict[str, Any]] | None:
        """A function that returns a dict of values to identify the data; None for mock data."""
        if self.identify is None and pair_of(self.dataset) is None:
            return None
        identify = self.identify or partial(dataset_identity, self.dataset)
        return lambda: {**identify(), **self.further}


class PairSamples(MegatronDataset):
    """The base class of datasets over one pair; adds batches and prefetching. Subclasses set `order`.

    Negative positions count from the end. The position None gives a sample with an all-zero `loss_mask`; such samples
    complete a batch that has too few positions.

    `dataset[k]` defines the samples. If a subclass overrides `__getitem__` or `sample`, the override is called by every
    loader and by every method that returns samples.
    """

    _reads: ClassVar[Kind] = "documents"
    """The kind of data that the class reads."""

    def _check_pair(self) -> None:
        """Validates the open pair; starts its background verification if `verify="full"`."""
        if self.num_samples is not None and self.num_samples < 0:
            raise ConfigError(f"{self._name()}: `num_samples` must be 0 or more, got {self.num_samples}")
        if isinstance(self.dataset, IndexedDataset) and self.dataset.dtype.kind not in "iu":
            raise ConfigError(f"{self._name()}: tokens must be integers, got {self.dataset.dtype}")
        self._verification = verification_of(self.config)
        if self._verification is not None and (pair := pair_of(self.dataset)) is not None:
            self._verification.add(pair.path_prefix, pair.object_storage)
        name = f"`{self.dataset_path or type(self).__name__}`"
        check_kind(self.dataset, self.config, name=name, reads=self._reads)

    order: Order
    """Maps positions to the token spans of samples."""

    _reads_items: ClassVar[bool] = False
    """Whether all spans start at token 0 of a sequence, so that a low-level dataset's `__getitem__` can read them."""

    @cached_property
    def _read_spans(self) -> ReadSpans:
        return span_reader(self.dataset, whole=self._reads_items)

    @abstractmethod
    def _batch(self, rows: Int64s) -> Sample:
        """Returns the samples at validated positions, int64[count], as arrays with a batch axis."""

    def verify_indices(self) -> list[str]:
        """Rebuilds the order; returns one sentence for each difference from the order in use."""
        return self.order.verify()

    def __getitems__(self, positions: Sequence[int | None]) -> list[Sample]:
        """Returns many samples as torch tensors, for torch's DataLoader; calls `dataset[k]` if `batch` is unusable."""
        if makes_batches(self) or called_from_item(self):
            return sample_batch(self.batch(positions), len(positions))
        return self._items(positions)

    def sample(self, idx: int | None) -> Sample:
        """Returns a sample as NumPy arrays; for None, a sample with an all-zero loss mask."""
        if self._needs_items("sample"):
            return as_arrays(self._items((idx,))[0])
        return self._sample(idx)

    def _sample_for_item(self, idx: int | None) -> Sample:
        """Returns the arrays for `__getitem__`, from `sample` if a user's class overrides `sample`."""
        return self.sample(idx) if "sample" in self._overrides.found else self._sample(idx)

    def _sample(self, idx: int | None) -> Sample:
        if idx is None:
            batch = self._masked_batch((None,))
        else:
            batch = self._batch(np.array([self._position(idx)], dtype=np.int64))
            self.order.check()
        return {name: array[0] for name, array in batch.items()}

    def batch(self, positions: Positions) -> Sample:
        """Returns many samples as NumPy arrays with a leading batch axis, filled by one kernel call.

        Args:
            positions: positions in any order, repeats allowed; an element None gives a sample without loss.

        Raises:
            IndexError: a position is out of range.
            ConfigError: the samples of a user's class differ in the names or shapes of their arrays.
        """
        if self._needs_items("batch"):
            return stack(self._items(positions), name=type(self).__name__)
        return self._masked_batch(positions)

    def _masked_batch(self, positions: Positions) -> Sample:
        """Returns a batch; its loss mask is 0 in each row whose position is None."""
        rows, fillers = self._rows(positions)
        batch = self._batch(rows)
        self.order.check()
        if fillers:
            batch["loss_mask"][fillers] = 0
        return batch

    def _name(self) -> str:
        return f"`{self.dataset_path or type(self).__name__}` ({self.index_split.name})"

    def _damaged(self, error: IndexError) -> IndexCacheError:
        # Not an `IndexError`, which would end a loop over the dataset silently.
        self.order.check()
        message = f"the indices of {self._name()} do not match the data: {error}"
        return IndexCacheError(message, hint="delete these indices from the cache; the next start builds them again")

    def _position(self, idx: int) -> int:
        """Converts an index (negative: from the end) to a position of 0 or more; raises IndexError if out of range."""
        if self._verification is not None:
            self._verification.check()
        num_samples = len(self)
        position = operator.index(idx)
        if not -num_samples <= position < num_samples:
            raise IndexError(f"sample {position} out of range: {self._name()} has {num_samples} samples")
        return position if position >= 0 else position + num_samples

    def _rows(self, positions: Positions) -> tuple[Int64s, list[int]]:
        if self._verification is not None:
            self._verification.check()
        rows, fillers = positions_and_fillers(positions)
        num_samples = len(self)
        if rows.size and not _all_within(rows, num_samples):
            rows = np.array([self._position(position) for position in rows.tolist()], dtype=np.int64)
        return rows, fillers

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self.rows.consecutive is not None:  # `rows` is a range, so the pickle needs no array of all rows
            state.pop("_indices", None)
        return state

    def spans(self, idx: int) -> Spans:
        """Returns the spans of sequences that a sample reads, including the extra token for the last label."""
        return self.span_batch((idx,))[0]

    @abstractmethod
    def span_batch(self, positions: Positions) -> SpanBatch:
        """Returns the spans of many samples."""

    @property
    def remote_paths(self) -> list[str]:
        """The addresses of the objects that contain the tokens; empty for local data."""
        return [] if (source := self._pairs) is None else source.remote_paths

    @property
    def _pairs(self) -> JoinedPairs | IndexedDataset | None:
        return self.dataset if type(self.dataset) is JoinedPairs else pair_of(self.dataset)

    def will_need(self, positions: Sequence[int | None]) -> None:
        """Starts to prefetch samples from object storage, in the given order; does nothing for local data."""
        if (source := self._pairs) is not None and source.remote_paths:
            rows, _ = self._rows(positions)
            spans = self.span_batch(rows)
            read = spans.documents >= 0  # denied documents have a negative index
            chosen = (spans.documents[read], spans.starts[read], spans.lengths[read])
            blocks = getattr(self.config, "block_shuffle", None)
            source.will_need(*chosen, block_bytes=None if blocks is None else blocks.block_bytes)

    @property
    def documents(self) -> Documents:
        """The sequences of this split, with their lengths."""
        return Documents(self.dataset, self.rows)

    def _sample_facts(self) -> dict[str, Any]:
        is_built = self.order.is_built
        return {
            "samples" if is_built else "samples, at least": len(self) if is_built else self.num_samples,
            "documents exposed": f"{len(self.rows):,} of {len(self.dataset):,}",
        }

    def _array_store(self, origin: DataOrigin, *, base: str | None = None) -> ArrayStore:
        """Returns the place for index arrays: the cache (in files whose names begin with `base`) or memory."""
        config, cache = self.config, None
        base = base or f"{self.unique_description_hash}-{type(self).__name__}-{self.index_split.name}"
        if config.path_to_cache is not None or not config.mock:
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
        """Returns the folder of the index cache: `path_to_cache`, or a local folder if `path_to_cache` is not set."""
        if self.config.path_to_cache is not None:
            folder: str = self.config.path_to_cache
            return folder
        if self.remote_paths:
            return local_index_folder(self.config)
        return os.path.join(self.dataset.path_prefix, "cache", f"{type(self).__name__}_indices")


def local_index_folder(config: BlendedMegatronDatasetConfig) -> str:
    """Returns the local folder that stores the indices of data in object storage if `path_to_cache` is not set."""
    return os.path.join(object_storage(config.storage_settings).folder, "indices")


def has_own_lengths(source: Any) -> bool:
    """Returns whether a low-level dataset is not a pair, or its class overrides `sequence_lengths`."""
    kind = type(source)  # a wrapper may change `__class__`
    return not issubclass(kind, IndexedDataset) or kind.sequence_lengths is not IndexedDataset.sequence_lengths


def positions_and_fillers(positions: Positions) -> tuple[Int64s, list[int]]:
    """Returns the positions, int64[count], with 0 in place of None, and the indices of the elements that were None."""
    fillers: list[int] = []
    if not isinstance(positions, np.ndarray) and None in positions:
        fillers = [row for row, position in enumerate(positions) if position is None]
        positions = [0 if position is None else position for position in positions]
    given = np.asarray(positions)
    if given.dtype.kind not in "iu" and given.size:
        raise TypeError(f"sample positions must be integers, got {given.dtype}")
    return np.ascontiguousarray(given, dtype=np.int64), fillers


def _all_within(rows: Int64s, count: int) -> bool:
    if rows.size <= 64 and rows.ndim == 1:  # faster than NumPy for few numbers
        numbers = rows.tolist()
        return bool(min(numbers) >= 0 and max(numbers) < count)
    return bool(rows.min() >= 0 and rows.max() < count)
