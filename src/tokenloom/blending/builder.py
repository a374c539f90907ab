"""Building the splits that a configuration describes, once for all ranks."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from importlib.metadata import version
from typing import Any, ClassVar, TypeVar

import numpy as np

from tokenloom.blending.blended import BlendedDataset
from tokenloom.blending.plan import remedy_for, smallest_surplus
from tokenloom.blending.quota import Quota, Sizes, quotas, three_sizes
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.data_match import check_tokenizer
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.pair_samples import PairSamples, local_index_folder
from tokenloom.datasets.protocols import pair_of
from tokenloom.datasets.splits import Split, split_indices, split_range
from tokenloom.distributed.building import Build, Builders, Description
from tokenloom.errors import ConfigError, OversampledError
from tokenloom.indexed.manifests import index_start_crc32
from tokenloom.order.arrays import NotBuiltError, nothing_is_built, short_together
from tokenloom.order.keys import describe
from tokenloom.overrides import Overrides, Uncalled, overrides
from tokenloom.progress import task
from tokenloom.storage.addresses import is_remote

Result = TypeVar("Result")

_STEPS = (
    "_build_blended_dataset_splits",
    "_build_megatron_datasets_parallel",
    "_build_megatron_dataset_splits",
    "build_generic_dataset",
)
_REMEDY = "override `numel_low_level_dataset`, `build_low_level_dataset` or `__init__` of the dataset class, or `build`"

_MAY_DIFFER = {
    "allow_ambiguous_pad_tokens",
    "allow_tokenizer_mismatch",
    "defer_npy_index_mmap",
    "fast_cache_load",
    "mmap_bin_files",
    "num_dataset_builder_threads",
    "object_storage",
    "object_storage_cache_path",
    "sequences_per_dataset",
    "split_matrix",  # follows from `split`
    "tokenizer_warnings",
}
"""Settings that say how a rank comes to its samples, not which they are."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class BlendedMegatronDatasetBuilder:
    """Builds the train, valid and test datasets of a run.

    For each split, from `blend` and `split`, or from `blend_per_split`:

    | prefixes | weights | size | result |
    |---|---|---|---|
    | one | none | given or not | the dataset, of at least `size` samples, or of one epoch |
    | several | given | given | a blend by weight, of `size` samples and up to one more per dataset |
    | any | given | none | an error: weights say nothing without a size |
    | several | none | given | a blend in proportion to the datasets' lengths, of at most one epoch of each |
    | several | none | none | all samples of one epoch of each, mixed |

    Under `blend_per_split`, the weight of a single prefix is ignored, and `multiple_validation_sets` gives a list of
    datasets for valid. Under `torch.distributed`, call `build` on every rank: one rank builds, the others load.

    Args:
        cls: the dataset class, such as `GPTDataset`.
        sizes: samples wanted at least from train, valid and test; None for one epoch. One number is that of train, and
            the others are one epoch.
        is_built_on_rank: whether this process needs the datasets; None where every process does.
        config: the settings.
        builders: who builds under `torch.distributed`, see `Build`.

    Raises:
        ConfigError: an argument is of another type, weights come without a size, or a subclass overrides what nothing
            calls.
    """

    blend_class: ClassVar[type[BlendedDataset]] = BlendedDataset
    """What several datasets become."""

    uncalled_hooks: ClassVar[Mapping[str, Uncalled]] = dict.fromkeys(_STEPS, Uncalled(_REMEDY, unless=("build",)))
    """Methods of the reference that nothing calls here: a class that overrides one is refused."""

    def __init__(
        self,
        cls: type[MegatronDataset],
        sizes: Sizes | int | None = None,
        is_built_on_rank: Callable[[], bool] | None = None,
        config: BlendedMegatronDatasetConfig | None = None,
        *,
        builders: Builders = "auto",
    ) -> None:
        Overrides.of(self, ("build", *self.uncalled_hooks)).refuse_uncalled(self.uncalled_hooks)
        if not isinstance(cls, type):
            message = f"expected a dataset class as `cls`, found {cls!r}"
            raise ConfigError(message, hint="such as `GPTDataset`")
        if isinstance(config, (dict, type, str)):
            message = f"expected settings as `config`, found {config!r}"
            raise ConfigError(message, hint="such as `GPTDatasetConfig(…)`")
        if isinstance(is_built_on_rank, BlendedMegatronDatasetConfig):
            message = "expected a function as `is_built_on_rank`, found the settings"
            raise ConfigError(message, hint="write `config=…`, or `lambda: True` before them")
        if config is None:
            message = "expected settings as `config`, found none"
            raise ConfigError(message, hint="such as a `GPTDatasetConfig`")
        if is_built_on_rank is not None and not callable(is_built_on_rank):
            message = f"expected a function as `is_built_on_rank`, found {is_built_on_rank!r}"
            raise ConfigError(
                message, hint="leave it out, or write `lambda: True`, where every process needs the datasets"
            )
        sizes = three_sizes(sizes)
        self.cls = cls
        self.quotas: list[Quota | None] = quotas(config, sizes)
        self.sizes: list[int | None] = list(sizes)
        self.is_built_on_rank: Callable[[], bool] = is_built_on_rank or (lambda: True)
        self.config = config
        self.builders: Builders = builders
        self._data: dict[str | None, str] = {}
        """What was found under each prefix while looking for what is built."""
        # A constructor of a user's own gets an array, as the reference gives it; ours need none.
        self._select = split_indices if overrides(cls, "__init__") else split_range

    def build(self) -> list[Any]:
        """Returns the datasets of train, valid and test; None where the split is empty or not built on this rank.

        Raises:
            BuildError: a rank failed, died or was silent; all ranks raise.
            DivergenceError: the ranks have other settings or data; nothing was built.
            TokenizerError: another tokenizer made the data, as the manifest beside them says.
            OversampledError: a blend takes more samples of a dataset than it has.
            IndexCacheError: the index cache cannot be written, or was to exist and does not.
        """
        if self.config.fast_cache_load:  # all caches exist: nothing to wait for
            return self._build() if self.is_built_on_rank() else [None] * len(Split)
        build = Build(
            work=self._build,
            look=self._look if self._looks_first else None,
            is_built_on_rank=self.is_built_on_rank,
            folder=self._folder(),
            builders=self._who_builds(),
            describe=self._describe,
        )
        datasets = build.together()
        return [None] * len(Split) if datasets is None else datasets

    @property
    def _looks_first(self) -> bool:
        """Whether all ranks look for what is built before one of them builds.

        A class that keeps its indices in its own way may count on one rank being the first.
        """
        return issubclass(self.cls, PairSamples)

    def _folder(self) -> str | None:
        """Returns where the indices go, for the ranks to find out whether they see the same place."""
        if self.config.mock or self.config.path_to_cache is not None:
            return self.config.path_to_cache
        prefix = next((quota.prefixes[0] for quota in self.quotas if quota is not None), None)
        if prefix is not None and is_remote(prefix):
            return local_index_folder(self.config)
        return None if prefix is None else os.path.dirname(os.path.abspath(prefix))

    def _who_builds(self) -> Builders:
        """Returns who builds: of indices in a bucket, which all hosts see, one rank for all."""
        folder = self.config.path_to_cache
        return "rank0" if self.builders == "auto" and folder is not None and is_remote(folder) else self.builders

    @property
    def _prefixes(self) -> list[str | None]:
        return list(dict.fromkeys(prefix for quota in filter(None, self.quotas) for prefix in quota.prefixes))

    def _describe(self, needs_data: bool) -> Description:  # noqa: FBT001  the only argument of a callback
        """Returns what must be the same on all ranks that need the data, after looking for what is built."""
        if not needs_data:
            return {}
        description: dict[str, dict[str, str]] = {"settings": describe_settings(self.cls, self.sizes, self.config)}
        if self._data:
            description["data"] = {
                f"data {number} (`{name_of_data(prefix)}`)": self._data[prefix]
                for number, prefix in enumerate(self._prefixes)
            }
        return description

    def _look(self) -> list[Any] | None:
        """Returns the splits if all their indices are built; all data are opened, and remembered by what they are."""
        self._data = {}
        with nothing_is_built():
            try:
                return self._build()
            except NotBuiltError:
                if len(self._data) < len(self._prefixes):  # conversations that are not tokenized: nothing to compare
                    self._data = {}
                return None

    def _open(self, prefix: str | None) -> Any:
        low_level: Any = self.cls.build_low_level_dataset(prefix, self.config)  # type: ignore[arg-type]
        if not self.config.fast_cache_load:  # with which ranks are not compared
            self._data[prefix] = describe_data(low_level)
            check_tokenizer(low_level, self.config, name=f"`{prefix}`")
        return low_level

    def _build(self) -> list[Any]:
        """Returns the splits; each low-level dataset is opened once, for all of them, before any is built."""
        wanted: dict[str | None, list[tuple[Quota, int]]] = {}
        for quota in filter(None, self.quotas):
            for number, prefix in enumerate(quota.prefixes):
                wanted.setdefault(prefix, []).append((quota, number))
        built: dict[tuple[Split, int], Any] = {}
        with short_together(unless=NotBuiltError):
            low_levels = list(self._in_threads(self._open, wanted))
            with task("datasets", unit="datasets", total=len(wanted)) as advance:
                for made in self._in_threads(self._build_datasets, low_levels, wanted, wanted.values()):
                    built.update(made)
                    advance()
            return [None if quota is None else self._join(quota, built) for quota in self.quotas]

    def _in_threads(self, call: Callable[..., Result], *arguments: Iterable[Any]) -> Iterator[Result]:
        """Yields what `map` does, worked out by as many threads as the settings say."""
        if (num_threads := self.config.num_dataset_builder_threads) == 1:
            yield from map(call, *arguments)
            return
        with ThreadPoolExecutor(max_workers=num_threads) as executor:
            futures = [executor.submit(copy_context().run, call, *each) for each in zip(*arguments, strict=True)]
            for future in futures:
                yield future.result()

    def _build_datasets(
        self, low_level: Any, prefix: str | None, places: Sequence[tuple[Quota, int]]
    ) -> dict[tuple[Split, int], MegatronDataset]:
        """Returns the datasets of one prefix, by split and number in it."""
        num_elements = self.cls.numel_low_level_dataset(low_level)
        return {
            (quota.split, number): self.cls(
                low_level,
                prefix,
                self._select(quota.bounds, num_elements),
                quota.num_samples[number],
                quota.split,
                self.config,
            )
            for quota, number in places
        }

    def _join(self, quota: Quota, built: Mapping[tuple[Split, int], Any]) -> Any:
        """Returns a split, made of its datasets."""
        datasets = [built[quota.split, number] for number in range(len(quota.prefixes))]
        if not quota.is_blend:
            return datasets[0] if quota.kind == "single" else datasets
        # A length opens the data of a dataset that would wait for its first sample.
        weights, size = quota.blend_arguments([] if quota.kind == "weighted" else [len(each) for each in datasets])
        if quota.kind == "weighted" and self.config.extend_short_datasets:
            datasets = self._extend(datasets, quota)
        try:
            return self.blend_class(datasets, weights, size, self.config)
        except OversampledError as error:
            remedy = remedy_for(self._sufficient_surplus(quota, datasets))
            raise OversampledError(error.message, hint=remedy) from error

    def _sufficient_surplus(self, quota: Quota, datasets: list[Any]) -> float | None:
        """Returns the smallest surplus with which all datasets have what a weighted blend takes of them."""
        needed = []
        owed = quota.owed([len(dataset) for dataset in datasets])
        for dataset, target, count in zip(datasets, quota.targets(), owed, strict=True):
            if count > len(dataset):
                # A dataset of another class has as many samples as are asked of it, or more.
                samples_of: Callable[[int], int] = int
                if isinstance(dataset, GPTDataset):
                    samples_of = dataset.epochs.num_samples
                needed.append(smallest_surplus(target, count, samples_of))
        return max((surplus for surplus in needed if surplus is not None), default=None)

    def _extend(self, datasets: list[Any], quota: Quota) -> list[Any]:
        """Returns the datasets, with those of which the blend takes too many samples built for as many as it takes."""
        return [
            dataset
            if count <= len(dataset)
            else self.cls(
                dataset.dataset, dataset.dataset_path, dataset.indices, count, dataset.index_split, self.config
            )
            for dataset, count in zip(datasets, quota.owed([len(dataset) for dataset in datasets]), strict=True)
        ]


def describe_settings(
    cls: type[MegatronDataset], sizes: Sequence[int | None], config: BlendedMegatronDatasetConfig
) -> dict[str, str]:
    """Returns the settings that decide which samples there are, by name.

    Settings of a user's own configuration count where the class makes them part of the cache key. Where the data lie
    may differ between hosts: prefixes are told by their last part, and what they hold by `describe_data`.
    """
    ours = {name for base in type(config).__mro__ if base.__module__.startswith("tokenloom.") for name in _names(base)}
    attributes = sorted((ours | set(cls._key_config_attributes())) - _MAY_DIFFER)
    values = {name: getattr(config, name) for name in attributes}
    values["blend"] = None if config.blend is None else _describe_blend(config.blend)
    if config.blend_per_split is not None:
        blends = config.blend_per_split
        values["blend_per_split"] = [None if blend is None else _describe_blend(blend) for blend in blends]
    values["path_to_cache"] = "beside the data" if config.path_to_cache is None else "a folder"
    described = {name: _in_words(value) for name, value in values.items()}
    return described | {"class": cls.__name__, "sizes": str(list(sizes)), "version of tokenloom": version("tokenloom")}


def describe_data(low_level: Any) -> str:
    """Returns what of a low-level dataset is in memory once it is open, and tells it from others."""
    pair = pair_of(low_level)
    if pair is None:
        return type(low_level).__name__
    header = pair.index.header
    return (
        f"{header.num_sequences} sequences and {header.num_boundaries} boundaries of {_name_of(header.dtype)}, "
        f"{pair.byte_source.num_bytes} bytes, lengths {index_start_crc32(header, pair.index.sequence_lengths):08x}"
    )


def name_of_data(prefix: str | None) -> str:
    """Returns how data are called on all hosts, wherever they lie."""
    if prefix is None:
        return "made-up data"
    return prefix if is_remote(prefix) else os.path.basename(prefix)


def _describe_blend(blend: Any) -> list[str]:
    prefixes, weights = blend  # as settings hold it
    names = [name_of_data(prefix) for prefix in prefixes]
    return names if weights is None else [f"{name} x {weight!r}" for name, weight in zip(names, weights, strict=True)]


def _names(base: type) -> list[str]:
    return [field.name for field in dataclasses.fields(base)] if dataclasses.is_dataclass(base) else []


def _in_words(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    try:
        return " ".join(describe({"": value})[0][len('{\n    "": ') : -2].split())
    except ConfigError:
        return _ADDRESS.sub("", repr(value))


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return dtype.name  # worked out each time, and asked for thousands of prefixes
