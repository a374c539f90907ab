"""`tokenloom prepare-cache`: build the indices of a run before it starts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.cli.run_options import add_run_options, run_settings, wanted_sizes
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.chat_config import SFTDatasetConfig
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.fim import GPTFIMDataset, GPTFIMDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.sft import SFTDataset
from tokenloom.datasets.splits import Split
from tokenloom.preprocess.tokenizers import load_tokenizer


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "prepare-cache",
        help="build the indices of a run before it starts",
        description="Build the indices of a run before it starts, on a machine without accelerators. They do not "
        "depend on the number of ranks: name the samples that the run will ask for (its steps times its global batch "
        "size), and the settings it will have.",
    )
    add_run_options(parser)
    parser.add_argument("--path-to-cache", required=True, metavar="FOLDER", help="folder of the index cache")
    parser.add_argument("--tokenizer", required=True, metavar="PATH", help="tokenizer.json or its folder")
    parser.add_argument("--eod-token", metavar="TEXT", help="the token that ends a document, if it cannot be told")
    parser.add_argument("--seed", type=int, default=1234, help="default 1234")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="datasets built at once; default 1")
    parser.add_argument(
        "--no-extra-token", action="store_true", help="the run sets add_extra_token_to_sequence to False"
    )
    parser.add_argument(
        "--keep-partial-validation",
        action="store_true",
        help="the run sets drop_last_partial_validation_sequence to False",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--fim", action="store_true", help="the run reads a GPTFIMDataset")
    kind.add_argument("--sft", action="store_true", help="the run reads an SFTDataset")
    parser.add_argument(
        "--context-parallel-size", type=int, metavar="N", help="of the run; conversations are padded for it"
    )
    parser.add_argument("--verify", action="store_true", help="build all indices again and compare")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Builds, and prints one line per dataset; 1 if verifying found a difference."""
    dataset_class: type[MegatronDataset] = GPTDataset
    make_config: Callable[..., GPTDatasetConfig] = GPTDatasetConfig
    if options.sft:
        dataset_class, make_config = SFTDataset, SFTDatasetConfig
    elif options.fim:  # how documents are rearranged has no part in the indices, so any such settings will do
        dataset_class = GPTFIMDataset
        tokens = {"prefix": 0, "middle": 1, "suffix": 2}
        make_config = partial(GPTFIMDatasetConfig, fim_rate=0.0, fim_spm_rate=0.0, fim_extra_tokens=tokens)
    config = make_config(
        random_seed=options.seed,
        path_to_cache=options.path_to_cache,
        num_dataset_builder_threads=options.threads,
        tokenizer=load_tokenizer(options.tokenizer, eod_token=options.eod_token),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        add_extra_token_to_sequence=not options.no_extra_token,
        drop_last_partial_validation_sequence=not options.keep_partial_validation,
        window_policy=options.window_policy,
        context_parallel_size=options.context_parallel_size,
        **run_settings(options),
    )
    built = BlendedMegatronDatasetBuilder(dataset_class, wanted_sizes(options), lambda: True, config).build()
    problems = []
    for split, entry in zip(Split, built, strict=True):
        for dataset in entry if isinstance(entry, list) else [entry]:
            if dataset is None:
                continue
            print(f"{split.name}: {len(dataset)} samples of {config.sequence_length} tokens ({type(dataset).__name__})")
            if options.verify:
                problems += dataset.verify_indices()
    for problem in problems:
        print(f"problem: {problem}")
    print(f"indices in {options.path_to_cache}" + (", verified" if options.verify and not problems else ""))
    return 1 if problems else 0
