"""The options by which commands learn of a run, what it reads and how its positions are dealt; and its words."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from tokenloom.blending.spec import BlendSettings, parse_blend
from tokenloom.cli.options import (
    JsonOption,
    Step,
    Written,
    arguments_of,
    refuse,
    refuse_usage,
    split_weights,
)
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.splits import Split
from tokenloom.loading.batch_sizes import BatchSizeSchedule, Topology
from tokenloom.order.policies import policy_names
from tokenloom.rendering.words import name_of
from tokenloom.run.amend import Amended
from tokenloom.run.lock import RunLock, read_lock
from tokenloom.run.run import Run
from tokenloom.setting_types import Count, Number

_Entries = Annotated[tuple[str, ...] | None, Written(metavar="ENTRY")]
_File = Annotated[str | None, Written(metavar="FILE")]
_WINDOW = "cut the stream of documents into windows (concat), or pack whole documents (best_fit)"
_Window = Annotated[str, Written(choices=tuple(policy_names()), help=_WINDOW)]

_WHOLE = ("data_path", "data_args_path", "per_split_data_args_path")
_SINGLE = tuple(f"{split.name}_data_path" for split in Split)

NO_STEPS = "a step needs --global-batch-size or --batch-size-schedule"


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """How the data is named.

    Attributes:
        data_path: prefixes, globs or folders; or a weight before each.
        data_args_path: a text file with such entries.
        per_split_data_args_path: a JSON file with such a list for train, valid and test each.
        train_data_path, valid_data_path, test_data_path: such entries for the split alone.
    """

    GROUP = "data, named in one of these ways"
    EITHER: ClassVar[Any] = (_WHOLE,)
    ONE_OF: ClassVar[Any] = {"--data-path ENTRY… (or a file of them)": (*_WHOLE, *_SINGLE)}

    data_path: _Entries = None
    data_args_path: _File = None
    per_split_data_args_path: _File = None
    train_data_path: _Entries = None
    valid_data_path: _Entries = None
    test_data_path: _Entries = None

    def __post_init__(self) -> None:
        if any(getattr(self, name) for name in _WHOLE) and any(getattr(self, name) for name in _SINGLE):
            refuse_usage("data of single splits, and of all of them: name data in one of these ways")

    def data_settings(self) -> BlendSettings:
        """Returns the setting of a configuration that names these data."""
        if any(getattr(self, name) for name in _SINGLE):
            return parse_blend(per_split={split.name: getattr(self, f"{split.name}_data_path") for split in Split})
        return parse_blend(self.data_path, args_file=self.data_args_path, per_split=self.per_split_data_args_path)


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """How samples are made of a pair, which does not say that itself.

    Attributes:
        sequence_length: tokens of a sample.
        seed: seed of the run.
    """

    GROUP = "samples of a pair (as in the training run)"

    window_policy: _Window = "concat"
    sequence_length: Annotated[Count, Written(metavar="S")] = 2048
    seed: Number = 1234


@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """How many samples are wanted.

    Attributes:
        train_samples, valid_samples, test_samples: number of samples of the split (default one epoch).
    """

    GROUP = "samples wanted at least"

    train_samples: Number | None = None
    valid_samples: Number | None = None
    test_samples: Number | None = None

    def wanted_sizes(self) -> list[int | None]:
        """Returns the samples wanted from train, valid and test."""
        return [self.train_samples, self.valid_samples, self.test_samples]


@dataclass(frozen=True, kw_only=True)
class RunOptions(SizeOptions, DataOptions):
    """What decides the number of samples.

    Attributes:
        split: 98,1,1 or train=0.99,valid=0.01 (default 969,30,1).
        sequence_length: tokens per sample.
        full_validation: validate on one whole epoch.
        multiple_validation_sets: one validation dataset per prefix, not a blend.
        mid_level_dataset_surplus: share of samples built beyond what is needed of each dataset.
        extend_short_datasets: take further epochs of datasets that run short.
    """

    window_policy: _Window = "concat"
    split: Annotated[str | None, Written(parse=split_weights)] = None
    sequence_length: Annotated[Count, Written(names=("--sequence-length", "--seq-length"))]
    full_validation: bool = False
    multiple_validation_sets: bool = False
    mid_level_dataset_surplus: Annotated[float, Written(metavar="SHARE")] = (
        BlendedMegatronDatasetConfig.mid_level_dataset_surplus
    )
    extend_short_datasets: bool = False

    def wanted_sizes(self) -> list[int | None]:
        """Returns the samples wanted from train, valid and test."""
        wanted = super().wanted_sizes()
        if self.full_validation and wanted[1] is not None:
            refuse(f"--full-validation and a size for valid exclude each other, found {wanted[1]}")
        return wanted

    def run_settings(self, kind: type[BlendedMegatronDatasetConfig] = BlendedMegatronDatasetConfig) -> dict[str, Any]:
        """Returns those of these options that are settings of a kind of configuration, by name."""
        data = self.data_settings()
        split = self.split or (None if "blend_per_split" in data else "969,30,1")
        return arguments_of(self, kind, split=split, **data)


@dataclass(frozen=True, kw_only=True)
class RunPath(JsonOption):
    """Which run.

    Attributes:
        run_path: its run.toml.
    """

    run_path: Annotated[str, Written(metavar="RUN", is_positional=True)] = "run.toml"


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """How positions were dealt to steps.

    Attributes:
        global_batch_size: samples of a step, of all ranks.
        batch_size_schedule: sizes that change, such as "0:768 250B:1536": tokens, and samples of a step from there on.
    """

    GROUP = "how positions were dealt (as in the training run)"
    EITHER: ClassVar[Any] = (("global_batch_size", "batch_size_schedule"),)

    global_batch_size: Annotated[Count | None, Written(metavar="G")] = None
    batch_size_schedule: Annotated[
        str | None, Written(names=("--batch-size-schedule", "--step-batch-size-schedule"), metavar="SCHEDULE")
    ] = None

    @property
    def has_batch_sizes(self) -> bool:
        """Whether the options tell batch sizes."""
        return self.global_batch_size is not None or self.batch_size_schedule is not None

    def batch_sizes(self, lock: RunLock | None) -> BatchSizeSchedule | None:
        """Returns the batch sizes that the options tell, if any; without a lock, nothing is known of lengths."""
        if self.batch_size_schedule is not None:
            lengths = [(segment.start, segment.sequence_length) for segment in lock.segments] if lock else []
            return BatchSizeSchedule.parse(self.batch_size_schedule, sequence_length=lengths or None)
        return None if self.global_batch_size is None else BatchSizeSchedule.constant(self.global_batch_size)

    def position_of(self, position: int | None, lock: RunLock | None) -> int | None:
        """Returns a position, or the first one of a step; None where neither is given."""
        if not isinstance(position, Step):
            return position
        if (sizes := self.batch_sizes(lock)) is None:
            refuse_usage(NO_STEPS)
        return sizes.position_of_step(position)


@dataclass(frozen=True, kw_only=True)
class Dealing(BatchSizes):
    """How positions were dealt to steps and ranks.

    Attributes:
        micro_batch_size: samples of a rank and micro-batch.
        data_parallel_size: data-parallel ranks.
    """

    GROUP = BatchSizes.GROUP

    micro_batch_size: Annotated[Count | None, Written(metavar="B")] = None
    data_parallel_size: Annotated[Count | None, Written(metavar="D")] = None

    def __post_init__(self) -> None:
        if (self.micro_batch_size is None) != (self.data_parallel_size is None):
            refuse_usage("--micro-batch-size and --data-parallel-size belong together")
        if self.micro_batch_size is not None and not self.has_batch_sizes:
            refuse_usage("ranks need --global-batch-size or --batch-size-schedule")

    def topology(self, lock: RunLock) -> Topology | None:
        """Returns how positions are dealt; None if the options do not tell."""
        if (sizes := self.batch_sizes(lock)) is None:
            return None
        ranks = {"micro_batch_size": self.micro_batch_size, "data_parallel_size": self.data_parallel_size}
        return Topology(batch_sizes=sizes, **ranks)


def lock_at(path: str) -> RunLock:
    """Returns the lock of a run, named by its run.toml, or by a lock of any name."""
    return Run.open(path).lock if path.endswith(".toml") else read_lock(path)


def stage_of(name: str) -> str:
    """Returns a stage in words."""
    return name_of(name) if name.startswith("stage ") else f"stage {name_of(name)}"


def difference(path: str, amended: Amended, *, after: str = "after") -> list[str]:
    """Returns how `run.toml` was edited, as a unified diff."""
    texts = amended.before.splitlines(), amended.after.splitlines()
    return list(difflib.unified_diff(*texts, f"{path} before", f"{path} {after}", n=1, lineterm=""))
