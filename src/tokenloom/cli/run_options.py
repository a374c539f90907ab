"""The options by which commands learn what a run reads: data, split, sample length and counts."""

from __future__ import annotations

import argparse
from typing import Any

from tokenloom.blending.spec import BlendSettings, parse_blend
from tokenloom.cli.parser import CommandParser
from tokenloom.cli.values import count, default_of, number, size, sizes, split_weights
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.order.policies import policy_names


def add_data_options(parser: CommandParser) -> None:
    """Declares how the data is named."""
    data = parser.add_mutually_exclusive_group()
    data.add_argument(
        "--data-path",
        nargs="+",
        metavar="ENTRY",
        help="prefixes, globs or folders; or a weight before each",
    )
    data.add_argument("--data-args-path", metavar="FILE", help="a text file with such entries")
    data.add_argument(
        "--per-split-data-args-path", metavar="FILE", help="a JSON file with such a list for train, valid and test each"
    )
    for split in Split:
        parser.add_argument(
            f"--{split.name}-data-path", nargs="+", metavar="ENTRY", help=f"such entries for {split.name} alone"
        )
    single = (f"{split.name}_data_path" for split in Split)
    named = ("data_path", "data_args_path", "per_split_data_args_path")
    parser.require_any(*named, *single, words="--data-path ENTRY… (or a file of them)")


def add_run_options(parser: CommandParser) -> None:
    """Declares what decides the number of samples."""
    add_data_options(parser)
    parser.add_argument(
        "--split", type=split_weights, metavar="SPLIT", help="98,1,1 or train=0.99,valid=0.01 (default 969,30,1)"
    )
    parser.add_argument(
        "--sequence-length", "--seq-length", type=count, required=True, metavar="S", help="tokens per sample"
    )
    add_window_policy(parser)
    group = parser.add_argument_group("samples wanted at least (default one epoch)")
    add_sizes(group)
    group.add_argument("--full-validation", action="store_true", help="validate on one whole epoch")
    group.add_argument(
        "--multiple-validation-sets", action="store_true", help="one validation dataset per prefix, not a blend"
    )
    group = parser.add_argument_group("what happens to datasets that run short")
    group.add_argument(
        "--mid-level-dataset-surplus",
        type=number,
        default=default_of(GPTDatasetConfig, "mid_level_dataset_surplus"),
        metavar="SHARE",
        help="share of samples built beyond what is needed of each dataset (default %(default)s)",
    )
    group.add_argument("--extend-short-datasets", action="store_true", help="take further epochs of them")


def add_sizes(group: Any) -> None:
    """Declares numbers of samples; `wanted_sizes` reads them."""
    for split in Split:
        group.add_argument(f"--{split.name}-samples", type=size, metavar="N", help=f"number of {split.name} samples")
    group.add_argument(
        "--sizes", type=sizes, metavar="A,B,C", help='all three numbers at once, such as "100000,1000,none"'
    )


def add_window_policy(parser: Any) -> None:
    """Declares how samples are made of documents."""
    parser.add_argument(
        "--window-policy",
        choices=policy_names(),
        default="concat",
        help="cut the stream of documents into windows (concat), or pack whole documents (best_fit) (default concat)",
    )


def data_settings(options: argparse.Namespace) -> BlendSettings:
    """Returns the setting of a configuration that the data options name; exits with the usage if they do not."""
    per_split = {split.name: vars(options)[f"{split.name}_data_path"] for split in Split}
    whole = [options.data_path, options.data_args_path, options.per_split_data_args_path]
    if not any(per_split.values()):
        return parse_blend(
            options.data_path, args_file=options.data_args_path, per_split=options.per_split_data_args_path
        )
    if whole != [None, None, None]:
        options.parser.error("data of single splits, and of all of them: name data in one of these ways")
    return parse_blend(per_split=per_split)


def run_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of a configuration that the run options name."""
    data = data_settings(options)
    return {
        "sequence_length": options.sequence_length,
        "split": options.split or (None if "blend_per_split" in data else "969,30,1"),
        "full_validation": options.full_validation,
        "multiple_validation_sets": options.multiple_validation_sets,
        "mid_level_dataset_surplus": options.mid_level_dataset_surplus,
        "extend_short_datasets": options.extend_short_datasets,
        **data,
    }


def wanted_sizes(options: argparse.Namespace) -> list[int | None]:
    """Returns the samples wanted from train, valid and test."""
    single = [options.train_samples, options.valid_samples, options.test_samples]
    if options.sizes is not None and any(size is not None for size in single):
        message = "--sizes and the samples of single splits exclude each other, found both"
        raise ConfigError(message)
    sizes: list[int | None] = options.sizes or single
    if vars(options).get("full_validation") and sizes[1] is not None:
        message = f"--full-validation and a size for valid exclude each other, found {sizes[1]}"
        raise ConfigError(message)
    return sizes
