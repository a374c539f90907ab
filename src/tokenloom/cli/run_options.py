"""Options shared by the commands about blends and runs."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from tokenloom.blending.spec import BlendSettings, parse_blend
from tokenloom.cli.options import JsonOption, Step, Written, arguments_of, refuse, refuse_usage, split_weights
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
_WINDOW = "how documents fill samples: cut their stream into windows (concat), or pack whole documents (best_fit)"
_Window = Annotated[str, Written(choices=tuple(policy_names()), help=_WINDOW)]
_Schedule = Written(names=("--batch-size-schedule", "--step-batch-size-schedule"), metavar="SCHEDULE")

_ALL_SPLITS = ("data_path", "data_args_path", "per_split_data_args_path")
_ONE_SPLIT = tuple(f"{split.name}_data_path" for split in Split)

NO_STEPS = "steps need --global-batch-size or --batch-size-schedule"


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options that name the datasets of a blend.

    Attributes:
        data_path: prefixes, globs or folders, optionally with a weight before each.
        data_args_path: a text file with the entries of --data-path.
        per_split_data_args_path: a JSON file with a list of entries for each of train, valid and test.
        train_data_path, valid_data_path, test_data_path: entries as in --data-path, for this split only.
    """

    GROUP = "data (one of these)"
    EITHER: ClassVar[Any] = (_ALL_SPLITS,)
    ONE_OF: ClassVar[Any] = {"--data-path ENTRY… (or --data-args-path FILE)": (*_ALL_SPLITS, *_ONE_SPLIT)}

    data_path: _Entries = None
    data_args_path: _File = None
    per_split_data_args_path: _File = None
    train_data_path: _Entries = None
    valid_data_path: _Entries = None
    test_data_path: _Entries = None

    def __post_init__(self) -> None:
        if any(getattr(self, name) for name in _ALL_SPLITS) and any(getattr(self, name) for name in _ONE_SPLIT):
            refuse_usage("options for one split (--train-data-path, …) exclude options for all splits (--data-path, …)")

    def data_settings(self) -> BlendSettings:
        """Returns the blend as settings of a dataset configuration."""
        if any(getattr(self, name) for name in _ONE_SPLIT):
            return parse_blend(per_split={split.name: getattr(self, f"{split.name}_data_path") for split in Split})
        return parse_blend(self.data_path, args_file=self.data_args_path, per_split=self.per_split_data_args_path)


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """Options that define the samples of a pair.

    Attributes:
        sequence_length: tokens per sample.
        seed: seed of the shuffle.
    """

    GROUP = "samples of a pair (use the values of the training run)"

    window_policy: _Window = "concat"
    sequence_length: Annotated[Count, Written(metavar="S")] = 2048
    seed: Number = 1234


@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """Minimum sample counts per split.

    Attributes:
        train_samples, valid_samples, test_samples: minimum number of samples of this split (default: one epoch).
    """

    GROUP = "minimum number of samples"

    train_samples: Number | None = None
    valid_samples: Number | None = None
    test_samples: Number | None = None

    def wanted_sizes(self) -> list[int | None]:
        """Returns the requested sample counts of train, valid and test; None for one epoch."""
        return [self.train_samples, self.valid_samples, self.test_samples]


@dataclass(frozen=True, kw_only=True)
class RunOptions(SizeOptions, DataOptions):
    """The settings of a blend that determine its sample counts.

    Attributes:
        split: weights or shares of train, valid and test, such as 98,1,1 or train=0.99,valid=0.01 (default 969,30,1).
        sequence_length: tokens per sample.
        full_validation: validate on exactly one epoch.
        multiple_validation_sets: build one validation dataset per prefix instead of a blend.
        mid_level_dataset_surplus: extra samples to build per dataset, as a share of the needed samples.
        extend_short_datasets: repeat a dataset that has too few samples.
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
        wanted = super().wanted_sizes()
        if self.full_validation and wanted[1] is not None:
            refuse(f"--full-validation excludes --valid-samples, got --valid-samples {wanted[1]}")
        return wanted

    def run_settings(self, kind: type[BlendedMegatronDatasetConfig] = BlendedMegatronDatasetConfig) -> dict[str, Any]:
        """Returns {name: value} of the options that are settings of the configuration class `kind`."""
        data = self.data_settings()
        split = self.split or (None if "blend_per_split" in data else "969,30,1")
        return arguments_of(self, kind, split=split, **data)


@dataclass(frozen=True, kw_only=True)
class RunPath(JsonOption):
    """The run that a command works on.

    Attributes:
        run_path: path of the run's run.toml.
    """

    run_path: Annotated[str, Written(metavar="RUN", is_positional=True)] = "run.toml"


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """Global batch sizes of training, which map steps to positions.

    Attributes:
        global_batch_size: samples per step, over all ranks.
        batch_size_schedule: sizes by consumed tokens: "0:768 250B:1536" is 768 samples, then 1536 from 250B tokens on.
    """

    GROUP = "batches (use the values of training)"
    EITHER: ClassVar[Any] = (("global_batch_size", "batch_size_schedule"),)

    global_batch_size: Annotated[Count | None, Written(metavar="G")] = None
    batch_size_schedule: Annotated[str | None, _Schedule] = None

    @property
    def has_batch_sizes(self) -> bool:
        """Whether the user gave batch sizes."""
        return self.global_batch_size is not None or self.batch_size_schedule is not None

    def batch_sizes(self, lock: RunLock | None) -> BatchSizeSchedule | None:
        """Returns the batch sizes; None if not given. A schedule by tokens needs the sequence lengths in `lock`."""
        if self.batch_size_schedule is not None:
            lengths = [(segment.start, segment.sequence_length) for segment in lock.segments] if lock else []
            return BatchSizeSchedule.parse(self.batch_size_schedule, sequence_length=lengths or None)
        return None if self.global_batch_size is None else BatchSizeSchedule.constant(self.global_batch_size)

    def position_of(self, position: int | None, lock: RunLock | None) -> int | None:
        """Returns the first position of the step if `position` is a `Step`, else `position` unchanged."""
        if not isinstance(position, Step):
            return position
        if (sizes := self.batch_sizes(lock)) is None:
            refuse_usage(NO_STEPS)
        return sizes.position_of_step(position)


@dataclass(frozen=True, kw_only=True)
class RankOptions(BatchSizes):
    """Batch sizes and data-parallel ranks of training.

    Attributes:
        micro_batch_size: samples per microbatch of a rank.
        data_parallel_size: number of data-parallel ranks.
    """

    GROUP = BatchSizes.GROUP

    micro_batch_size: Annotated[Count | None, Written(metavar="B")] = None
    data_parallel_size: Annotated[Count | None, Written(metavar="D")] = None

    def __post_init__(self) -> None:
        if (self.micro_batch_size is None) != (self.data_parallel_size is None):
            refuse_usage("--micro-batch-size and --data-parallel-size must be given together")
        if self.micro_batch_size is not None and not self.has_batch_sizes:
            refuse_usage("--micro-batch-size needs --global-batch-size or --batch-size-schedule")

    def topology(self, lock: RunLock) -> Topology | None:
        """Returns the map from positions to steps and ranks; None if the user gave no batch sizes."""
        if (sizes := self.batch_sizes(lock)) is None:
            return None
        ranks = {"micro_batch_size": self.micro_batch_size, "data_parallel_size": self.data_parallel_size}
        return Topology(batch_sizes=sizes, **ranks)


def lock_at(path: str) -> RunLock:
    """Reads a lock: the lock beside `path` if `path` ends with `.toml`, else the lock file `path` itself."""
    return Run.open(path).lock if path.endswith(".toml") else read_lock(path)


def stage_of(name: str) -> str:
    """Returns a heading for a stage, such as "stage warmup"."""
    return name_of(name) if name.startswith("stage ") else f"stage {name_of(name)}"


def difference(path: str, amended: Amended, *, after: str = "after") -> list[str]:
    """Returns the lines of a unified diff of `run.toml` before and after an amendment; `after` labels the new text."""
    texts = amended.before.splitlines(), amended.after.splitlines()
    return list(difflib.unified_diff(*texts, f"{path} before", f"{path} {after}", n=1, lineterm=""))
