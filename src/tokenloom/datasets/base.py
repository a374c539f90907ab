"""The base class of all datasets that give a sample by number."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections import OrderedDict
from enum import Enum
from typing import Any, ClassVar

from numpy.typing import NDArray

from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.data_match import check_tokenizer
from tokenloom.datasets.protocols import KnowsOrder, pair_of
from tokenloom.datasets.shortcuts import HasHooks
from tokenloom.datasets.splits import Split
from tokenloom.datasets.tokenizer import pad_token_id
from tokenloom.errors import ConfigError
from tokenloom.order.documents import Rows
from tokenloom.order.keys import describe
from tokenloom.rendering.card import HasFacts


class MegatronDataset(HasFacts, HasHooks, ABC):
    """A split of one low-level dataset, as samples.

    Works as a map-style dataset of torch without inheriting from it, so that importing needs no torch.

    A class of your own needs the four methods below; `BlendedMegatronDatasetBuilder` and `BlendedDataset` then split,
    size and blend it. It must have `num_samples` samples or more. Settings of its own go into a subclass of the config.

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
        dataset_path: its path, for cache keys and messages; None for made-up data.
        indices: integers[num_elements], the elements of it that this split exposes; or a range of them.
        num_samples: how many samples to offer at least; None for one epoch.
        index_split: which split this is.
        config: the settings.

    Raises:
        ConfigError: the class overrides a method that nothing calls, or one that gives samples other than `dataset[k]`.
    """

    run_order: KnowsOrder | None = None
    """What knows the order, where this is all of a run."""

    in_place_of: ClassVar[type | None] = None
    """Of a class of made-up data, which needs a config that names none: the class that reads data."""

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
        if self.in_place_of is not None and not config.mock:
            message = "expected a config without `blend` for made-up data, found one that names data"
            raise ConfigError(message, hint=f"use {self.in_place_of.__name__}")
        if not isinstance(index_split, Enum):
            message = f"expected a `Split` as `index_split`, found {index_split!r}"
            raise ConfigError(message, hint="such as `Split.train`")
        self.dataset = dataset
        self.dataset_path = dataset_path
        self.rows: Rows = Rows.of(indices)
        """The elements that this split exposes, without an array of them."""
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
        """Whether the data are opened, and the tokenizer compared with them, when a sample is first asked for."""
        return False

    @property
    def indices(self) -> NDArray[Any]:
        """integers[num_elements], the elements that this split exposes."""
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
        """Returns how many elements of the low-level dataset the splits divide."""

    @staticmethod
    @abstractmethod
    def build_low_level_dataset(dataset_path: str, config: BlendedMegatronDatasetConfig) -> Any:
        """Returns the low-level dataset of a path."""

    @staticmethod
    def _key_config_attributes() -> list[str]:
        """Returns the settings that are part of the cache key."""
        return ["random_seed", "sequence_length", "split", "split_matrix", "tokenizer"]

    def _further_identifiers(self) -> dict[str, Any]:
        """Returns what else is part of the cache key: settings that the reference lacks, where they matter."""
        return {}

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    @abstractmethod
    def __getitem__(self, idx: int) -> dict[str, Any]:
        """Returns a sample."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dataset_path!r}, {self.index_split.name}, num_samples={len(self)})"

    def facts(self) -> dict[str, Any]:
        """Returns what is known of the samples and their pair; see `HasFacts`."""
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
