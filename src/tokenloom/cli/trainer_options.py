"""The options of Megatron's trainer that decide which indices a run reads, on the command that prepares them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from tokenloom.cli.options import WithoutEffect, Written
from tokenloom.cli.run_options import RunOptions
from tokenloom.errors import ConfigError
from tokenloom.setting_types import Count, Number

_EVAL_ITERS = 100
_COUNTS = (
    *("train_iters", "eval_iters", "eval_interval", "global_batch_size", "micro_batch_size"),
    *("step_batch_size_schedule", "phase_transition_iterations"),
)
"""Options that say that samples are to be counted as the trainer does."""

_HIDDEN = Written(is_hidden=True)


@dataclass(frozen=True, kw_only=True)
class TrainerOptions(RunOptions):
    """The samples and settings of a run, as Megatron's trainer calls them.

    Attributes:
        train_iters: steps of training.
        eval_iters: steps of each validation (default 100).
        eval_interval: steps of training between two validations.
        global_batch_size: samples of a step (default a micro-batch of each data-parallel rank).
        micro_batch_size: samples of a rank and micro-batch.
        eval_global_batch_size: samples of a step of validation (default those of training).
        tensor_model_parallel_size: ranks that share a layer.
        pipeline_model_parallel_size: ranks that share the layers.
        context_parallel_size: ranks that share a sample.
        start_eval_at_iter: step before which none validates.
        skip_train: validate once, and train nothing.
        world_size: ranks of the run.
        step_batch_size_schedule: batch sizes by tokens: 0:768 250B:1536.
        phase_transition_iterations: steps at which data change: the samples up to the next.
        iteration: step that the phase holds.
        sft: the same as --dataset sft.
        fim_data: the same as --dataset fim.
        mmap_bin_files: read .bin files by position.
        object_storage_cache_path: folder of copies of .idx files.
        per_dataset_sequences_path: counts of the datasets, see sequences-per-dataset.
    """

    GROUP: ClassVar[str] = "samples wanted, and settings, as Megatron's trainer calls them"
    WITHOUT_EFFECT: ClassVar[tuple[WithoutEffect, ...]] = (
        WithoutEffect(
            ("--dataloader-fast-cache-load", "--dataloader-defer-npy-index-mmap"),
            "it is for runs that read the indices",
            nargs=0,
        ),
        WithoutEffect(
            ("--no-create-attention-mask-in-dataloader", "--dataloader-inter-document-masking"),
            "no index depends on it",
            nargs=0,
        ),
        WithoutEffect(("--num-workers",), "nothing is loaded"),
    )

    train_iters: Count | None = None
    eval_iters: Count | None = None
    eval_interval: Count | None = None
    global_batch_size: Count | None = None
    micro_batch_size: Count | None = None
    eval_global_batch_size: Count | None = None
    tensor_model_parallel_size: Count | None = None
    pipeline_model_parallel_size: Count | None = None
    context_parallel_size: Count | None = None
    start_eval_at_iter: Number | None = None
    skip_train: bool = False
    world_size: Annotated[Count | None, Written(names=("--prepare-cache-world-size", "--world-size"))] = None
    step_batch_size_schedule: Annotated[str | None, Written(metavar="TEXT")] = None
    phase_transition_iterations: Annotated[str | None, Written(metavar="N,…")] = None
    iteration: Number = 0
    sft: bool = False
    fim_data: bool = False
    mock_data: Annotated[bool, _HIDDEN] = False
    reset_position_ids: Annotated[bool, _HIDDEN] = False
    reset_attention_mask: Annotated[bool, _HIDDEN] = False
    eod_mask_loss: Annotated[bool, _HIDDEN] = False
    allow_ambiguous_pad_tokens: Annotated[bool, _HIDDEN] = False
    mmap_bin_files: bool = True
    object_storage_cache_path: Annotated[str | None, Written(metavar="FOLDER")] = None
    per_dataset_sequences_path: Annotated[str | None, Written(metavar="FILE")] = None

    def wanted_sizes(self) -> list[int | None]:
        """Returns the samples of train, valid and test that the trainer asks for, else those that are wanted.

        Raises:
            ConfigError: they are named in another way too, or an option that counts is missing.
        """
        named = [name for name in _COUNTS if getattr(self, name) is not None]
        if not named:
            return super().wanted_sizes()
        others = [name for name in ("sizes", "valid_samples", "test_samples") if getattr(self, name) is not None]
        if others:
            message = f"--{others[0].replace('_', '-')} and --{named[0].replace('_', '-')} both say how many samples"
            raise ConfigError(message, hint="leave one out")
        from tokenloom.megatron.sample_counts import train_valid_test_num_samples

        values = vars(self) | {
            "seq_length": self.sequence_length,
            "eval_iters": self.eval_iters or _EVAL_ITERS,
            "_is_global_batch_size_explicitly_specified": self.global_batch_size is not None,
        }
        return list(train_valid_test_num_samples(values))

    def trainer_settings(self) -> dict[str, Any]:
        """Returns the settings of a configuration that these options name.

        Raises:
            ConfigError: data are to be made up, or counts cannot be read.
        """
        if self.mock_data:
            message = "--mock-data makes up samples, which have no indices"
            raise ConfigError(message, hint="name data with --data-path")
        from tokenloom.megatron.arg_blends import sequences_from_args

        names = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "object_storage_cache_path")
        settings: dict[str, Any] = {name: vars(self)[name] for name in names if vars(self)[name] not in (None, False)}
        if (counts := sequences_from_args(self)) is not None:
            settings["sequences_per_dataset"] = counts
        return settings
