"""Builds the train, valid and test datasets of a config, once for all ranks."""

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
from tokenloom.blending.quota import Quota, Sizes, quotas, remedy_for, sufficient_surplus, three_sizes
from tokenloom.datasets.base import MegatronDataset, PairSamples, local_index_folder
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.data_match import check_tokenizer
from tokenloom.datasets.protocols import pair_of
from tokenloom.datasets.splits import Split, split_indices, split_range
from tokenloom.distributed.building import Build, Builders, Description
from tokenloom.errors import ConfigError, OversampledError
from tokenloom.indexed.manifests import index_start_crc32
from tokenloom.order.array_store import NotBuiltError, forbid_building, join_short_warnings
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
    "split_matrix",  # computed from `split`
    "tokenizer_warnings",
}
"""Settings that may differ between ranks, as they do not affect samples."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class BlendedMegatronDatasetBuilder:
    """A builder of the train, valid and test datasets of a config.

    The result for each split depends on `blend` and `split`, or on `blend_per_split`:

    | prefixes | weights | size | result |
    |---|---|---|---|
    | one | none | any | a dataset of at least `size` samples; if `size` is None, of one epoch |
    | any | given | given | a blend by weight, of `size` samples plus up to one more per dataset |
    | any | given | None | an error, as a blend by weight needs a size |
    | several | none | given | a blend in proportion to the datasets' lengths, of at most one epoch of each |
    | several | none | None | a blend of all samples of one epoch of each dataset |

    With `blend_per_split`, the weight of a single prefix has no effect, and `multiple_validation_sets` gives several
    valid datasets as a list. With `torch.distributed`, call `build` on every rank: one rank builds, all others load.

    Args:
        cls: the dataset class, such as `GPTDataset`.
        sizes: minimum numbers of samples of train, valid and test, None for one epoch; a single number is for train.
        is_built_on_rank: function that returns whether this process needs the datasets; None if all processes do.
        config: the settings.
        builders: which ranks build under `torch.distributed`, see `Build`.

    Raises:
        ConfigError: an argument has a wrong type, a weighted blend has no size, or a subclass overrides a method that
            is never called.
    """

    blend_class: ClassVar[type[BlendedDataset]] = BlendedDataset
    """The class of blends."""

    uncalled_hooks: ClassVar[Mapping[str, Uncalled]] = dict.fromkeys(_STEPS, Uncalled(_REMEDY, unless=("build",)))
    """Methods that only the reference calls; `__init__` raises if a subclass overrides one without `build`."""

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
            raise ConfigError(f"`cls`: must be a dataset class, got {cls!r}", hint="pass a class such as `GPTDataset`")
        if is_built_on_rank is not None and not callable(is_built_on_rank):
            hint = "pass `lambda: True` or nothing if every process needs the datasets; pass settings as `config=…`"
            message = f"`is_built_on_rank`: must be a function, got {type(is_built_on_rank).__name__}"
            raise ConfigError(message, hint=hint)
        if config is None or isinstance(config, (dict, type, str)):
            raise ConfigError(f"`config`: must be a config, got {config!r}", hint="pass `GPTDatasetConfig(…)`")
        sizes = three_sizes(sizes)
        self.cls = cls
        self.quotas: list[Quota | None] = quotas(config, sizes)
        self.sizes: list[int | None] = list(sizes)
        self.is_built_on_rank: Callable[[], bool] = is_built_on_rank or (lambda: True)
        self.config = config
        self.builders: Builders = builders
        self._data: dict[str | None, str] = {}
        """{prefix: description} of the opened data."""
        # A user's `__init__` receives indices as an array, as in the reference.
        self._select = split_indices if overrides(cls, "__init__") else split_range

    def build(self) -> list[Any]:
        """Returns the datasets of train, valid and test; None for empty splits and on ranks that need no datasets.

        Raises:
            BuildError: a rank failed, died or did not respond; raised on all ranks.
            DivergenceError: settings or data differ between ranks; nothing was built.
            TokenizerError: according to the manifest, another tokenizer tokenized the data.
            OversampledError: a dataset has fewer samples than a blend takes from it.
            IndexCacheError: the index cache cannot be written, or is missing although the config requires the cache.
        """
        if self.config.fast_cache_load:  # assumes that all caches exist
            return self._build() if self.is_built_on_rank() else [None] * len(Split)
        build = Build(
            work=self._build,
            look=self._load if self._loads_first else None,
            is_built_on_rank=self.is_built_on_rank,
            folder=self._folder(),
            builders=self._who_builds(),
            describe=self._describe,
        )
        datasets = build.together()
        return [None] * len(Split) if datasets is None else datasets

    @property
    def _loads_first(self) -> bool:
        """Whether all ranks try to load before one builds; False for users' classes, which may build as they load."""
        return issubclass(self.cls, PairSamples)

    def _folder(self) -> str | None:
        """Returns the folder of the indices; None if the indices have no folder."""
        if self.config.mock or self.config.path_to_cache is not None:
            return self.config.path_to_cache
        prefix = next((quota.prefixes[0] for quota in self.quotas if quota is not None), None)
        if prefix is not None and is_remote(prefix):
            return local_index_folder(self.config)
        return None if prefix is None else os.path.dirname(os.path.abspath(prefix))

    def _who_builds(self) -> Builders:
        """Returns the value of `builders`; if the indices are in a bucket, "auto" becomes "rank0"."""
        folder = self.config.path_to_cache
        return "rank0" if self.builders == "auto" and folder is not None and is_remote(folder) else self.builders

    @property
    def _prefixes(self) -> list[str | None]:
        return list(dict.fromkeys(prefix for quota in filter(None, self.quotas) for prefix in quota.prefixes))

    def _describe(self, needs_data: bool) -> Description:  # noqa: FBT001  the only argument of a callback
        """Returns the settings and data that must be equal on all ranks that need data."""
        if not needs_data:
            return {}
        description: dict[str, dict[str, str]] = {"settings": describe_settings(self.cls, self.sizes, self.config)}
        if self._data:
            description["data"] = {
                f"data {number} (`{name_of_data(prefix)}`)": self._data[prefix]
                for number, prefix in enumerate(self._prefixes)
            }
        return description

    def _load(self) -> list[Any] | None:
        """Returns the datasets of the splits, or None if an index is missing; opens and describes all data."""
        self._data = {}
        with forbid_building():
            try:
                return self._build()
            except NotBuiltError:
                if len(self._data) < len(self._prefixes):  # raw conversations are not tokenized yet
                    self._data = {}
                return None

    def _open(self, prefix: str | None) -> Any:
        low_level: Any = self.cls.build_low_level_dataset(prefix, self.config)  # type: ignore[arg-type]
        if not self.config.fast_cache_load:  # `fast_cache_load` does not compare ranks
            self._data[prefix] = describe_data(low_level)
            check_tokenizer(low_level, self.config, name=f"`{prefix}`")
        return low_level

    def _build(self) -> list[Any]:
        """Builds the splits; opens all low-level datasets first, each once."""
        uses: dict[str | None, list[tuple[Quota, int]]] = {}
        for quota in filter(None, self.quotas):
            for number, prefix in enumerate(quota.prefixes):
                uses.setdefault(prefix, []).append((quota, number))
        built: dict[tuple[Split, int], Any] = {}
        with join_short_warnings(unless=NotBuiltError):
            low_levels = list(self._in_threads(self._open, uses))
            with task("datasets", unit="datasets", total=len(uses)) as advance:
                for made in self._in_threads(self._build_datasets, low_levels, uses, uses.values()):
                    built.update(made)
                    advance()
            return [None if quota is None else self._join(quota, built) for quota in self.quotas]

    def _in_threads(self, call: Callable[..., Result], *arguments: Iterable[Any]) -> Iterator[Result]:
        """Yields the results of `map(call, *arguments)`, computed by `num_dataset_builder_threads` threads."""
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
        num_elements = self.cls.numel_low_level_dataset(low_level)
        made: dict[tuple[Split, int], MegatronDataset] = {}
        for quota, number in places:
            rows, count = self._select(quota.bounds, num_elements), quota.num_samples[number]
            made[quota.split, number] = self.cls(low_level, prefix, rows, count, quota.split, self.config)
        return made

    def _join(self, quota: Quota, built: Mapping[tuple[Split, int], Any]) -> Any:
        datasets = [built[quota.split, number] for number in range(len(quota.prefixes))]
        if not quota.is_blend:
            return datasets[0] if quota.kind == "single" else datasets
        # No `len` for weighted blends: `len` would open data that can stay closed until the first sample.
        weights, size = quota.blend_arguments([] if quota.kind == "weighted" else [len(each) for each in datasets])
        if quota.kind == "weighted" and self.config.extend_short_datasets:
            datasets = self._extend(datasets, quota)
        try:
            return self.blend_class(datasets, weights, size, self.config)
        except OversampledError as error:
            owed = zip(datasets, quota.targets(), quota.owed([len(each) for each in datasets]), strict=True)
            needed = [sufficient_surplus(target, count) for each, target, count in owed if count > len(each)]
            raise OversampledError(error.message, hint=remedy_for(max(needed, default=None))) from error

    def _extend(self, datasets: list[Any], quota: Quota) -> list[Any]:
        """Returns the datasets; those with too few samples for the blend are built again with enough samples."""
        extended = list(datasets)
        for number, count in enumerate(quota.owed([len(each) for each in datasets])):
            if count > len(short := datasets[number]):
                arguments = short.dataset, short.dataset_path, short.indices, count, short.index_split
                extended[number] = self.cls(*arguments, self.config)
        return extended


def describe_settings(
    cls: type[MegatronDataset], sizes: Sequence[int | None], config: BlendedMegatronDatasetConfig
) -> dict[str, str]:
    """Returns {name: description} of the settings that determine the samples.

    Includes settings that a user's config class adds to the cache key. Folders may differ between hosts, so prefixes
    are described by their last part only; `describe_data` describes the data.
    """
    bases = [base for base in type(config).__mro__ if base.__module__.startswith("tokenloom.")]
    ours = {each.name for base in bases if dataclasses.is_dataclass(base) for each in dataclasses.fields(base)}
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
    """Describes an open low-level dataset by its counts, its sizes and a checksum; reads no files."""
    pair = pair_of(low_level)
    if pair is None:
        return type(low_level).__name__
    header = pair.index.header
    return (
        f"{header.num_sequences} sequences and {header.num_boundaries} boundaries of {_name_of(header.dtype)}, "
        f"{pair.byte_source.num_bytes} bytes, lengths {index_start_crc32(header, pair.index.sequence_lengths):08x}"
    )


def name_of_data(prefix: str | None) -> str:
    """Returns a name for the data; the name is the same on all hosts."""
    if prefix is None:
        return "mock data"
    return prefix if is_remote(prefix) else os.path.basename(prefix)


def _describe_blend(blend: Any) -> list[str]:
    prefixes, weights = blend
    names = [name_of_data(prefix) for prefix in prefixes]
    return names if weights is None else [f"{name} x {weight!r}" for name, weight in zip(names, weights, strict=True)]


def _in_words(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    try:
        return " ".join(describe({"": value})[0][len('{\n    "": ') : -2].split())
    except ConfigError:
        return _ADDRESS.sub("", repr(value))


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return dtype.name  # cached, as NumPy computes a name at each access
