"""Configuration and builder as overviews of Megatron's data pipeline write them, more loosely than its code takes them.

    config = BlendedMegatronDatasetConfig(datasets=[{"name": "books", "weight": 0.7}, {"name": "web", "weight": 0.3}])
    dataset = BlendedMegatronDatasetBuilder(config=config).build()

Nothing else is required, and one dataset comes out: all of the data, for training. `install` puts none of this into
Megatron's place, as the reference knows neither. The other names are those of the same overviews, for our classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenloom.blending.blended import BlendedDataset as BlendableDataset  # noqa: F401
from tokenloom.blending.builder import BlendedMegatronDatasetBuilder as _Builder
from tokenloom.blending.plan import sizes_read_once
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.blends import Blend, checked_blend
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.masked import BERTMaskedWordPieceDataset as BertDataset  # noqa: F401
from tokenloom.datasets.masked import MaskedWordPieceDataset as MaskedDataset  # noqa: F401
from tokenloom.datasets.masked import T5MaskedWordPieceDataset as T5Dataset  # noqa: F401
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.indexed.dataset import IndexedDataset as MMapIndexedDataset  # noqa: F401
from tokenloom.indexed.layout import prefix_of
from tokenloom.indexed.manifests import read_manifest
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.secrets import redacted
from tokenloom.tokenizers.load import recorded_tokenizer


class _IdsAlone:
    """Stands for the tokenizer of data of which only ids are known: no id means anything."""

    vocab_size = None
    unique_identifiers: Mapping[str, Any] = {"class": "ids alone"}

    @property
    def eod(self) -> int:
        message = "expected a tokenizer that says which token ends a document, found none"
        raise TokenizerError(message, hint="give the configuration a `tokenizer`")


@dataclass
class BlendedMegatronDatasetConfig(GPTDatasetConfig):
    """A `GPTDatasetConfig` in which everything but the data has a value.

    Attributes:
        random_seed: seed of all shuffles; 1234 as in Megatron's program.
        sequence_length: tokens per sample.
        datasets: the blend as [{"name": prefix, "weight": weight}, …], weights in all of them or in none; pairs
            [weight, prefix], or prefixes alone. The weight of a single one is ignored.
        retries: most times that a read of object storage is tried again; None for the setting of `object_storage`.
        split: "1,0,0" unless data are given per split.
        tokenizer: by default what the manifest of the data names, if it is still the same; else ids alone.
        create_attention_mask: False; masks of a whole batch are large, and kernels of attention need none.

    Raises:
        ConfigError: a value is out of range, two settings contradict each other, or an entry names no data.
    """

    random_seed: int = 1234
    sequence_length: int = 1024
    create_attention_mask: bool = False
    datasets: Sequence[Any] | None = None
    retries: int | None = None

    def __post_init__(self) -> None:
        if self.datasets is not None:
            if self.blend is not None or self.blend_per_split is not None:
                message = "`datasets` and `blend` exclude each other, found both"
                raise ConfigError(message)
            self.blend = blend_of(self.datasets)
        if self.blend is not None and self.split is None:
            self.split = "1,0,0"
        if self.tokenizer is None:
            self.tokenizer = _tokenizer_of(self)
        if self.retries is not None:
            self.object_storage = replace(self.storage_settings, retries=self.retries)
        super().__post_init__()

    @staticmethod
    def _checked_blend(blend: Any, where: str) -> Blend:
        prefixes, weights = checked_blend(blend, where)
        return prefixes, None if len(prefixes) == 1 else weights  # the only dataset has all of it, whatever its weight


def blend_of(datasets: Any) -> Blend:
    """Returns (prefixes, weights or None) of the entries of a blend.

    Example:
        >>> blend_of([{"name": "books", "weight": 0.7}, {"name": "web", "weight": 0.3}])
        (['books', 'web'], [0.7, 0.3])
        >>> blend_of([[0.7, "books"], [0.3, "web"]])
        (['books', 'web'], [0.7, 0.3])

    Raises:
        ConfigError: an entry is none, or weights are given to some of them only.
    """
    if not isinstance(datasets, (list, tuple)) or not all(isinstance(each, Mapping) for each in datasets):
        return checked_blend(datasets, "`datasets`")
    if not datasets or not all({"name"} <= set(each) <= {"name", "weight"} for each in datasets):
        message = f"expected datasets as {{'name': …, 'weight': …}}, found {redacted(repr(datasets))}"
        raise ConfigError(message)
    weights = [each["weight"] for each in datasets if "weight" in each]
    if weights and len(weights) != len(datasets):
        message = f"expected a weight for each of {len(datasets)} datasets or for none, found {len(weights)}"
        raise ConfigError(message)
    return checked_blend(([each["name"] for each in datasets], weights or None), "`datasets`")


class BlendedMegatronDatasetBuilder(_Builder):
    """Builds what a configuration names; with it alone, one dataset for training.

    Args:
        cls: the dataset class; your own class of a task, where it is one. (There is no registry.)
        sizes: samples wanted at least from train, valid and test; None for one epoch. In a blend by weight, an epoch
            ends with the dataset that would be read twice first.
        is_built_on_rank: whether this process needs the datasets.
        config: the settings.
        arguments: further ones of `tokenloom.BlendedMegatronDatasetBuilder`.

    Raises:
        ConfigError: there is no configuration, or it does not fit the sizes.
    """

    def __init__(
        self,
        cls: type[MegatronDataset] = GPTDataset,
        sizes: Sequence[int | None] | None = None,
        is_built_on_rank: Any = None,
        config: Any = None,
        **arguments: Any,
    ) -> None:
        self._gives_one = sizes is None
        if sizes is None and config is not None:
            sizes = [_one_epoch(cls, config), None, None]
        super().__init__(cls, sizes, is_built_on_rank, config, **arguments)

    def build(self) -> Any:
        """Returns the dataset for training; with `sizes`, those of train, valid and test.

        Raises:
            BuildError, DivergenceError, TokenizerError, OversampledError, IndexCacheError: see the builder of
                `tokenloom`.
        """
        datasets = super().build()
        return datasets[Split.train.value] if self._gives_one else datasets


def _one_epoch(cls: type[MegatronDataset], config: Any) -> int | None:
    """Returns the samples of a blend by weight, until a dataset would be read twice; None for other data."""
    (blend,) = config.blends if config.blend is not None else (None,)
    if blend is None or blend[1] is None:
        return None
    if not issubclass(cls, GPTDataset):
        message = f"expected `sizes` for a blend by weight of {cls.__name__}, found none"
        raise ConfigError(message, hint="such as sizes=[100_000, 0, 0]")
    return sizes_read_once(config)[Split.train.value]


def _tokenizer_of(config: BlendedMegatronDatasetConfig) -> Any:
    """Returns the tokenizer that the manifest of the first local data names, if it is the same; else ids alone."""
    prefixes = [prefix for blend in config.blends if blend is not None for prefix in checked_blend(blend, "`blend`")[0]]
    manifest = None if not prefixes or is_remote(prefixes[0]) else read_manifest(prefix_of(prefixes[0]))
    if manifest is None or manifest.tokenizer.path is None:
        return _IdsAlone()
    return recorded_tokenizer(manifest.tokenizer, prefix=prefixes[0])
