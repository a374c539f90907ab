"""`tokenloom prepare-cache`: build the indices of a run before it starts."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from typing import Any

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.options import say_without_effect
from tokenloom.cli.run_options import add_run_options, run_settings, wanted_sizes
from tokenloom.cli.tokenising_options import add_tokenizer_options, tokenizer_of
from tokenloom.cli.trainer_options import add_trainer_options, trainer_settings, trainer_sizes
from tokenloom.cli.values import count, whole_number
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.bert import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig
from tokenloom.datasets.chat_config import SFTDatasetConfig, VarlenDatasetConfig
from tokenloom.datasets.config import BlendedMegatronDatasetConfig, GPTDatasetConfig
from tokenloom.datasets.fim import GPTFIMDataset, GPTFIMDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.sft import SFTDataset
from tokenloom.datasets.splits import Split
from tokenloom.datasets.t5 import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig
from tokenloom.datasets.varlen import VarlenDataset
from tokenloom.datasets.verified import verification_of
from tokenloom.errors import ConfigError
from tokenloom.order.index_packs import unpack_indices
from tokenloom.progress import if_stopped
from tokenloom.storage.json_files import parse_json


@dataclasses.dataclass(frozen=True)
class _Kind:
    """A dataset class, its configuration, and what its indices do not depend on but the configuration asks for."""

    dataset: type[MegatronDataset]
    config: type[BlendedMegatronDatasetConfig]
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)


_RESETS = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
_FIM = {"fim_rate": 0.0, "fim_spm_rate": 0.0, "fim_extra_tokens": {"prefix": 0, "middle": 1, "suffix": 2}}

_KINDS = {
    "gpt": _Kind(GPTDataset, GPTDatasetConfig, _RESETS),
    "fim": _Kind(GPTFIMDataset, GPTFIMDatasetConfig, {**_RESETS, **_FIM}),
    "bert": _Kind(BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig),
    "t5": _Kind(T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig),
    "sft": _Kind(SFTDataset, SFTDatasetConfig),
    "varlen": _Kind(VarlenDataset, VarlenDatasetConfig),
}

_KEPT = "indices that are complete are kept: run the same command again to go on"


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "prepare-cache",
        description="Build the indices of a run before it starts, on a machine without accelerators. They do not "
        "depend on the number of ranks: name the samples that the run will ask for (its steps times its global batch "
        "size), and the settings it will have.",
    )
    add_run_options(parser)
    parser.add_argument(
        "--dataset", choices=_KINDS, default="gpt", help="kind of dataset that the run reads (default gpt)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        dest="settings",
        help="a further setting of the run's configuration, its value as JSON or plain text, such as "
        "masking_probability=0.15 or add_extra_token_to_sequence=false; may be repeated",
    )
    parser.add_argument(
        "--path-to-cache",
        "--data-cache-path",
        required=True,
        metavar="FOLDER",
        help="folder of the index cache, here or in a bucket",
    )
    add_tokenizer_options(parser)
    parser.add_argument("--seed", type=whole_number, default=1234, help="seed of the run (default 1234)")
    parser.add_argument(
        "--threads",
        "--num-dataset-builder-threads",
        type=count,
        default=1,
        metavar="N",
        help="number of datasets built at once (default 1)",
    )
    parser.add_argument(
        "--packed",
        action="store_true",
        help="write the indices of small datasets into one file, which is much faster for hundreds of them",
    )
    parser.add_argument(
        "--unpack", action="store_true", help="make files of their own of all that is in such files, as Megatron reads"
    )
    parser.add_argument("--verify", action="store_true", help="build all indices again and compare")
    parser.add_argument(
        "--verify-data",
        action="store_true",
        help="also read all data and compare them with their manifests; remembered, so that a run on this node with "
        'verify="full" has nothing to read',
    )
    add_trainer_options(parser)
    add_json(parser, "path, verified, problems, sequence_length, and in datasets split, kind and num_samples of each")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Builds, and prints one line per dataset; 1 if verifying indices found a difference."""
    say_without_effect(options)
    kind = _KINDS[options.dataset]
    sizes = trainer_sizes(options) or wanted_sizes(options)
    settings = {
        **kind.defaults,
        **run_settings(options),
        **trainer_settings(options),
        "random_seed": options.seed,
        "path_to_cache": options.path_to_cache,
        "num_dataset_builder_threads": options.threads,
        "verify": "full" if options.verify_data else "quick",
        **({"packed_cache": True} if options.packed else {}),
        **dict(options.settings),
    }
    known = {field.name: field.init for field in dataclasses.fields(kind.config)}
    if options.window_policy != "concat":
        settings["window_policy"] = options.window_policy
    for name in settings:
        if not known.get(name):
            message = f"{kind.config.__name__} has no setting `{name}`"
            near = difflib.get_close_matches(name, [each for each, settable in known.items() if settable], n=3)
            raise ConfigError(message, hint=f"did you mean {' or '.join(near)}?" if near else None)
    config = kind.config(tokenizer=_tokenizer(options), **settings)
    with if_stopped(lambda: _KEPT):
        built = BlendedMegatronDatasetBuilder(kind.dataset, sizes, lambda: True, config).build()
        if options.unpack:
            unpack_indices(options.path_to_cache)
    problems, datasets = [], []
    for split, entry in zip(Split, built, strict=True):
        for dataset in entry if isinstance(entry, list) else [entry]:
            if dataset is None:
                continue
            kind_name = type(dataset).__name__
            datasets.append({"split": split.name, "kind": kind_name, "num_samples": len(dataset)})
            if not options.json:
                print(f"{split.name}: {len(dataset)} samples of {config.sequence_length} tokens ({kind_name})")
            if options.verify:
                problems += dataset.verify_indices()
    if (verification := verification_of(config)) is not None:
        verification.wait()
    if options.json:
        print_json(
            {
                "path": options.path_to_cache,
                "verified": options.verify and not problems,
                "problems": problems,
                "sequence_length": config.sequence_length,
                "datasets": datasets,
            }
        )
        return 1 if problems else 0
    for problem in problems:
        print(f"problem: {problem}")
    print(f"indices in {options.path_to_cache}" + (", verified" if options.verify and not problems else ""))
    return 1 if problems else 0


def _tokenizer(options: argparse.Namespace) -> Any:
    """Returns the tokenizer; of Megatron's options Megatron's own where it is installed, for a run has that one."""
    if options.tokenizer_type is None:
        return tokenizer_of(options)
    from tokenloom.megatron.args import tokenizer_from_args

    return tokenizer_from_args(options)


def _setting(text: str) -> tuple[str, Any]:
    """Returns the name and the value of NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        message = f"expected NAME=VALUE, found {text!r}"
        raise argparse.ArgumentTypeError(message)
    try:
        return name, parse_json(value)
    except ValueError:
        return name, value
