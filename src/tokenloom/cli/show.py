"""`tokenloom show`: a document, a training sample, or what stands at a position of a run, decoded."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from tokenloom.cli.drawing import add_look, look_of, print_shown
from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.run_common import refuse_usage
from tokenloom.cli.run_options import add_window_policy
from tokenloom.cli.stopping import say
from tokenloom.cli.values import count, signed_number, split_weights, whole_number
from tokenloom.datasets.chat_config import SFTDatasetConfig
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.sft import SFTDataset
from tokenloom.datasets.splits import Split, split_indices
from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.indexed.layout import prefix_of
from tokenloom.inspect.shown import Shown
from tokenloom.inspect.shown_data import OpenPair, shown_document, shown_sample
from tokenloom.loading.from_data import tokenizer_of_data
from tokenloom.run.run import Run
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "show",
        description="Decode a document, or a training sample: a heading per document in it, end of document and other "
        "special tokens, padding, prompt and answer, and which tokens are labels with loss. Without a tokenizer, "
        "named or found by the manifest, a document is shown as token ids.",
    )
    parser.add_argument("prefix", nargs="?", metavar="PREFIX", help="path of the pair without .bin or .idx")
    parser.add_argument("--run", dest="run_path", metavar="RUN", help="run.toml of a run, for --position")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--document", type=signed_number, metavar="I", help="show document I")
    what.add_argument("--sample", type=signed_number, metavar="K", help="show sample K of a split")
    what.add_argument("--position", type=whole_number, metavar="N", help="show what stands at position N of a run")
    parser.add_argument("--holdout", action="store_true", help="of a run: show what is held out instead")
    add_json(
        parser,
        "heading, facts, notes, spans, first, num_tokens, and in tokens id, text, kind, part, loss and span of each",
    )
    parser.add_argument("--tokenizer", metavar="PATH", help="tokenizer.json or its folder (default: that of the data)")
    group = parser.add_argument_group("which samples (as in the training run)")
    group.add_argument(
        "--sequence-length", type=count, default=2048, metavar="S", help="tokens per sample (default %(default)s)"
    )
    add_window_policy(group)
    group.add_argument("--seed", type=whole_number, default=1234, help="seed of the run (default %(default)s)")
    group.add_argument(
        "--split", type=split_weights, default="969,30,1", help="98,1,1 or train=0.99,valid=0.01 (default 969,30,1)"
    )
    names = [split.name for split in Split]
    group.add_argument("--from", dest="split_name", choices=names, default="train", help="split (default train)")
    group.add_argument("--num-samples", type=whole_number, metavar="N", help="samples asked for (default one epoch)")
    group.add_argument("--path-to-cache", metavar="FOLDER", help="folder of the index cache")
    add_look(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints what is asked for, a heading per document."""
    if (options.run_path is None) == (options.prefix is None):
        refuse_usage(options, "name a PREFIX or --run, one of both")
    if (options.run_path is None) != (options.position is None):
        refuse_usage(options, "--run and --position belong together")
    if options.holdout and options.run_path is None:
        refuse_usage(options, "--holdout is about positions of a run")
    try:
        shown = _of_pair(options) if options.run_path is None else _of_run(options)
    except IndexError as error:
        say(f"error: {error}")
        return 1
    if options.json:
        print_json(shown)
    else:
        print_shown(shown, look_of(options))
    return 0


def _of_run(options: argparse.Namespace) -> Shown:
    opened = Run.open(options.run_path)
    tokenizer = tokenizer_of(opened) if options.tokenizer is None else load_tokenizer(options.tokenizer)
    dataset = opened.holdout() if options.holdout else opened.dataset()
    name = f"position {options.position:,} of {'what is held out' if options.holdout else 'the run'}"
    shown = shown_sample(dataset, options.position, tokenizer, run=None if options.holdout else opened)
    return dataclasses.replace(shown, heading=name)


def tokenizer_of(opened: Run) -> TextTokenizer | None:
    """Returns the tokenizer of a run; None if it names none, or one that cannot be loaded, which is said."""
    try:
        return None if opened.lock.tokenizer is None else opened.tokenizer.loaded
    except TokenizerError as error:
        say(f"the tokenizer of the run cannot be used: {error.message}")
        return None


def _of_pair(options: argparse.Namespace) -> Shown:
    pair, tokenizer = OpenPair(prefix_of(options.prefix)), None
    try:
        tokenizer = tokenizer_of_data(options.tokenizer, [pair.prefix])
    except TokenizerError as error:
        if options.tokenizer is not None or options.document is None:
            raise
        say(f"{error.message}: ids are shown")
    if options.document is not None:
        return shown_document(pair, options.document, tokenizer)
    if pair.data.multimodal:
        message = f"expected text in `{pair.prefix}`, found text and images"
        raise ConfigError(message, hint="samples are of text: show a document with --document")
    samples = _samples(options, pair, tokenizer)
    name = f"sample {options.sample:,} of {len(samples):,} ({options.split_name})"
    return dataclasses.replace(shown_sample(samples, options.sample, tokenizer), heading=name)


def _samples(options: argparse.Namespace, pair: OpenPair, tokenizer: Any) -> GPTDataset | SFTDataset:
    """Returns the samples of a split alone, of conversations if the pair knows prompts from answers."""
    split = Split[options.split_name]
    is_chat = pair.roles is not None
    config_class, dataset_class = (SFTDatasetConfig, SFTDataset) if is_chat else (GPTDatasetConfig, GPTDataset)
    config = config_class(
        random_seed=options.seed,
        sequence_length=options.sequence_length,
        blend=([pair.prefix], None),
        split=options.split,
        path_to_cache=options.path_to_cache,
        tokenizer=tokenizer,
        window_policy=options.window_policy,
    )
    assert config.split_matrix is not None
    if (bounds := config.split_matrix[split.value]) is None:
        message = f"the split {options.split!r} leaves nothing for {split.name}"
        raise ConfigError(message)
    data: Any = dataset_class.build_low_level_dataset(pair.prefix, config)
    indices = split_indices(bounds, dataset_class.numel_low_level_dataset(data))
    return dataset_class(data, pair.prefix, indices, options.num_samples, split, config)
