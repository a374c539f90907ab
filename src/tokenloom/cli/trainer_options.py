"""The options of Megatron's trainer that decide which indices a run reads, on the command that prepares them."""

from __future__ import annotations

import argparse
from typing import Any

from tokenloom.cli.options import add_without_effect
from tokenloom.cli.values import count, whole_number
from tokenloom.errors import ConfigError

_EVAL_ITERS = 100
_COUNTS = (
    *("train_iters", "eval_iters", "eval_interval", "global_batch_size", "micro_batch_size"),
    *("step_batch_size_schedule", "phase_transition_iterations"),
)
"""Options that say that samples are to be counted as the trainer does."""


def add_trainer_options(parser: argparse.ArgumentParser) -> None:
    """Declares them; `trainer_sizes` and `trainer_settings` read them."""
    group = parser.add_argument_group("samples wanted, as Megatron's trainer counts them")
    numbers = {
        "train-iters": "steps of training",
        "eval-iters": f"steps of each validation (default {_EVAL_ITERS})",
        "eval-interval": "steps of training between two validations",
        "global-batch-size": "samples of a step (default a micro-batch of each data-parallel rank)",
        "micro-batch-size": "samples of a rank and micro-batch",
        "eval-global-batch-size": "samples of a step of validation (default those of training)",
        "tensor-model-parallel-size": "ranks that share a layer",
        "pipeline-model-parallel-size": "ranks that share the layers",
        "context-parallel-size": "ranks that share a sample",
    }
    for name, meaning in numbers.items():
        group.add_argument(f"--{name}", type=count, metavar="N", help=meaning)
    group.add_argument("--start-eval-at-iter", type=whole_number, metavar="N", help="step before which none validates")
    group.add_argument("--skip-train", action="store_true", help="validate once, and train nothing")
    group.add_argument(
        "--prepare-cache-world-size",
        "--world-size",
        type=count,
        metavar="N",
        dest="world_size",
        help="ranks of the run",
    )
    group.add_argument("--step-batch-size-schedule", metavar="TEXT", help="batch sizes by tokens: 0:768 250B:1536")
    group.add_argument(
        "--phase-transition-iterations", metavar="N,…", help="steps at which data change: the samples up to the next"
    )
    group.add_argument("--iteration", type=whole_number, default=0, metavar="N", help="step that the phase holds")
    group = parser.add_argument_group("settings, as Megatron's trainer calls them")
    for name, dataset in (("--sft", "sft"), ("--fim-data", "fim")):
        group.add_argument(
            name, dest="dataset", action="store_const", const=dataset, help=f"the same as --dataset {dataset}"
        )
    group.add_argument("--mock-data", action="store_true", help=argparse.SUPPRESS)
    for name in ("--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss", "--allow-ambiguous-pad-tokens"):
        group.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    group.add_argument(
        "--no-mmap-bin-files", dest="mmap_bin_files", action="store_false", help="read .bin files by position"
    )
    group.add_argument("--object-storage-cache-path", metavar="FOLDER", help="folder of copies of .idx files")
    group.add_argument(
        "--per-dataset-sequences-path", metavar="FILE", help="counts of the datasets, see sequences-per-dataset"
    )
    for name in ("--dataloader-fast-cache-load", "--dataloader-defer-npy-index-mmap"):
        add_without_effect(group, name, nargs=0, reason="it is for runs that read the indices")
    for name in ("--no-create-attention-mask-in-dataloader", "--dataloader-inter-document-masking"):
        add_without_effect(group, name, nargs=0, reason="no index depends on it")
    add_without_effect(group, "--num-workers", reason="nothing is loaded")


def trainer_sizes(options: argparse.Namespace) -> list[int | None] | None:
    """Returns the samples of train, valid and test that the trainer asks for; None where nothing says so.

    Raises:
        ConfigError: they are named in another way too, or an option that counts is missing.
    """
    named = [name for name in _COUNTS if vars(options)[name] is not None]
    if not named:
        return None
    others = [name for name in ("sizes", "valid_samples", "test_samples") if vars(options)[name] is not None]
    if others:
        message = f"--{others[0].replace('_', '-')} and --{named[0].replace('_', '-')} both say how many samples"
        raise ConfigError(message, hint="leave one out")
    from tokenloom.megatron.sample_counts import train_valid_test_num_samples

    values = vars(options) | {
        "seq_length": options.sequence_length,
        "eval_iters": options.eval_iters or _EVAL_ITERS,
        "_is_global_batch_size_explicitly_specified": options.global_batch_size is not None,
    }
    return list(train_valid_test_num_samples(values))


def trainer_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of a configuration that these options name.

    Raises:
        ConfigError: data are to be made up, or counts cannot be read.
    """
    if options.mock_data:
        message = "--mock-data makes up samples, which have no indices"
        raise ConfigError(message, hint="name data with --data-path")
    from tokenloom.megatron.arg_blends import sequences_from_args

    flags = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "allow_ambiguous_pad_tokens")
    settings: dict[str, Any] = {name: True for name in flags if vars(options)[name]}
    if not options.mmap_bin_files:
        settings["mmap_bin_files"] = False
    if options.object_storage_cache_path is not None:
        settings["object_storage_cache_path"] = options.object_storage_cache_path
    if (counts := sequences_from_args(options)) is not None:
        settings["sequences_per_dataset"] = counts
    return settings
