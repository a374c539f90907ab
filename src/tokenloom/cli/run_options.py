"""The options by which commands learn what a run reads: data, split, sample length and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from tokenloom.blending.spec import BlendSettings, parse_blend
from tokenloom.cli.options import Either, OneOf, UsageError, Written, arguments_of
from tokenloom.cli.values import size, sizes, split_weights
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.order.policies import policy_names
from tokenloom.setting_types import Count, Number

_SURPLUS = BlendedMegatronDatasetConfig.mid_level_dataset_surplus
_Entries = Annotated[tuple[str, ...] | None, Written(metavar="ENTRY")]
_File = Annotated[str | None, Written(metavar="FILE")]
_Size = Annotated[int | None, Written(parse=size)]

CACHE = Written(names=("--path-to-cache", "--data-cache-path"), metavar="FOLDER")
"""A folder of the index cache."""

_WHOLE = ("data_path", "data_args_path", "per_split_data_args_path")
_SINGLE = tuple(f"{split.name}_data_path" for split in Split)


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """How the data is named.

    Attributes:
        data_path: prefixes, globs or folders; or a weight before each.
        data_args_path: a text file with such entries.
        per_split_data_args_path: a JSON file with such a list for train, valid and test each.
        train_data_path, valid_data_path, test_data_path: such entries for the split alone.
    """

    GROUP: ClassVar[str] = "data, named in one of these ways"
    EITHER: ClassVar[Either] = (_WHOLE,)
    ONE_OF: ClassVar[OneOf] = {"--data-path ENTRY… (or a file of them)": (*_WHOLE, *_SINGLE)}

    data_path: _Entries = None
    data_args_path: _File = None
    per_split_data_args_path: _File = None
    train_data_path: _Entries = None
    valid_data_path: _Entries = None
    test_data_path: _Entries = None

    def __post_init__(self) -> None:
        """Refuses data that are named in several ways."""
        if any(getattr(self, name) for name in _WHOLE) and any(getattr(self, name) for name in _SINGLE):
            message = "data of single splits, and of all of them: name data in one of these ways"
            raise UsageError(message)

    def data_settings(self) -> BlendSettings:
        """Returns the setting of a configuration that names these data.

        Raises:
            ConfigError, DatasetNotFoundError: it cannot be meant, or is not there.
        """
        if any(getattr(self, name) for name in _SINGLE):
            return parse_blend(per_split={split.name: getattr(self, f"{split.name}_data_path") for split in Split})
        return parse_blend(self.data_path, args_file=self.data_args_path, per_split=self.per_split_data_args_path)


@dataclass(frozen=True, kw_only=True)
class WindowOptions:
    """How samples are made of documents.

    Attributes:
        window_policy: cut the stream of documents into windows (concat), or pack whole documents (best_fit).
    """

    window_policy: Annotated[str, Written(choices=tuple(policy_names()))] = "concat"


@dataclass(frozen=True, kw_only=True)
class SampleOptions(WindowOptions):
    """How samples are made of a pair, which does not say that itself.

    Attributes:
        sequence_length: tokens of a sample.
        seed: seed of the run.
    """

    GROUP: ClassVar[str] = "samples of a pair (as in the training run)"

    sequence_length: Annotated[Count, Written(metavar="S")] = 2048
    seed: Number = 1234


@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """How many samples are wanted.

    Attributes:
        train_samples, valid_samples, test_samples: number of samples of the split.
        sizes: all three numbers at once, such as "100000,1000,none".
    """

    GROUP: ClassVar[str] = "samples wanted at least"

    train_samples: _Size = None
    valid_samples: _Size = None
    test_samples: _Size = None
    sizes: Annotated[Sequence[int | None] | None, Written(metavar="A,B,C", parse=sizes)] = None

    def wanted_sizes(self) -> list[int | None]:
        """Returns the samples wanted from train, valid and test.

        Raises:
            ConfigError: they are named twice.
        """
        single = [self.train_samples, self.valid_samples, self.test_samples]
        if self.sizes is None:
            return single
        if any(size is not None for size in single):
            message = "--sizes and the samples of single splits exclude each other, found both"
            raise ConfigError(message)
        return list(self.sizes)


@dataclass(frozen=True, kw_only=True)
class RunOptions(WindowOptions, SizeOptions, DataOptions):
    """What decides the number of samples.

    Attributes:
        split: 98,1,1 or train=0.99,valid=0.01 (default 969,30,1).
        sequence_length: tokens per sample.
        sizes: all three numbers at once, such as "100000,1000,none" (default one epoch each).
        full_validation: validate on one whole epoch.
        multiple_validation_sets: one validation dataset per prefix, not a blend.
        mid_level_dataset_surplus: share of samples built beyond what is needed of each dataset.
        extend_short_datasets: take further epochs of datasets that run short.
    """

    split: Annotated[str | None, Written(parse=split_weights)] = None
    sequence_length: Annotated[Count, Written(names=("--sequence-length", "--seq-length"))]
    full_validation: bool = False
    multiple_validation_sets: bool = False
    mid_level_dataset_surplus: Annotated[float, Written(metavar="SHARE")] = (
        BlendedMegatronDatasetConfig.mid_level_dataset_surplus
    )
    extend_short_datasets: bool = False

    def wanted_sizes(self) -> list[int | None]:
        """Returns the samples wanted from train, valid and test.

        Raises:
            ConfigError: they are named twice.
        """
        wanted = super().wanted_sizes()
        if self.full_validation and wanted[1] is not None:
            message = f"--full-validation and a size for valid exclude each other, found {wanted[1]}"
            raise ConfigError(message)
        return wanted

    def run_settings(self) -> dict[str, Any]:
        """Returns those of these options that are settings of all configurations, by name."""
        data = self.data_settings()
        split = self.split or (None if "blend_per_split" in data else "969,30,1")
        return arguments_of(self, BlendedMegatronDatasetConfig, split=split, **data)
