"""`tokenloom show`: a document or a training sample, decoded."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from tokenloom.cli.drawing import add_look, look_of, print_shown
from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.run_common import refuse_usage
from tokenloom.cli.run_options import add_window_policy
from tokenloom.cli.show_position import show_position
from tokenloom.cli.values import count, signed_number, split_weights, whole_number
from tokenloom.datasets.chat_config import SFTDatasetConfig
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.sft import SFTDataset
from tokenloom.datasets.splits import Split, split_indices
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import prefix_of
from tokenloom.inspect.open_pairs import OpenPairs, tokenizer_for
from tokenloom.inspect.shown import Shown
from tokenloom.inspect.shown_documents import shown_document
from tokenloom.inspect.shown_samples import shown_sample
from tokenloom.inspect.token_texts import Detokenizer


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
        "heading, facts, notes, spans, first, num_tokens, and lists with an item per token: ids, texts, kinds, "
        "spans_of, parts, loss; of a run place and pieces",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json or its folder (default: what the manifest of the data names)",
    )
    parser.add_argument("--sft", action="store_true", help="samples of packed conversations: say what has loss")
    parser.add_argument("--multimodal", action="store_true", help="the index holds sequence modes")
    group = parser.add_argument_group("which samples (as in the training run)")
    group.add_argument(
        "--sequence-length",
        type=count,
        default=2048,
        metavar="S",
        help="tokens per sample (default %(default)s)",
    )
    add_window_policy(group)
    group.add_argument("--seed", type=whole_number, default=1234, help="seed of the run (default %(default)s)")
    group.add_argument(
        "--split",
        type=split_weights,
        default="969,30,1",
        metavar="SPLIT",
        help="98,1,1 or train=0.99,valid=0.01 (default 969,30,1)",
    )
    group.add_argument(
        "--from",
        dest="split_name",
        choices=[split.name for split in Split],
        default="train",
        help="split to show (default train)",
    )
    group.add_argument(
        "--num-samples", type=whole_number, metavar="N", help="number of samples asked for (default one epoch)"
    )
    group.add_argument("--path-to-cache", metavar="FOLDER", help="folder of the index cache")
    add_look(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints what is asked for, a heading per document."""
    if (options.run_path is None) == (options.prefix is None):
        refuse_usage(options, "name a PREFIX or --run, one of both")
    if (options.run_path is None) != (options.position is None):
        refuse_usage(options, "--run and --position belong together")
    if options.run_path is not None:
        return show_position(options)
    if options.holdout:
        refuse_usage(options, "--holdout is about positions of a run")
    options.prefix = prefix_of(options.prefix)
    pairs = OpenPairs()
    try:
        shown = _document(options, pairs) if options.document is not None else _sample(options, pairs)
    except IndexError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json:
        print_json(shown.as_json())
    else:
        print_shown(shown, look_of(options))
    return 0


def _document(options: argparse.Namespace, pairs: OpenPairs) -> Shown:
    if options.multimodal:
        IndexedDataset(options.prefix, multimodal=True)  # which says what is wrong with an index without modes
    pair = pairs.get(options.prefix)
    if pair.data.multimodal and not options.multimodal:
        message = f"expected text in `{options.prefix}`, found text and images"
        raise ConfigError(message, hint="add --multimodal")
    return shown_document(pair, options.document, _tokenizer(options, pairs))


def _sample(options: argparse.Namespace, pairs: OpenPairs) -> Shown:
    if pairs.get(options.prefix).data.multimodal:
        message = f"expected text in `{options.prefix}`, found text and images"
        raise ConfigError(message, hint="samples are of text: show a document with --document and --multimodal")
    tokenizer = _tokenizer(options, pairs)
    samples = _samples(options, tokenizer)
    shown = shown_sample(samples, options.sample, tokenizer, pairs=pairs)
    name = f"sample {options.sample:,} of {len(samples):,} ({options.split_name})"
    return dataclasses.replace(shown, heading=name)


def _tokenizer(options: argparse.Namespace, pairs: OpenPairs) -> Detokenizer | None:
    """Returns the tokenizer that is named, else that of the manifest; says why there is none of a manifest."""
    tokenizer, notes = tokenizer_for(pairs, [options.prefix], options.tokenizer)
    if pairs.get(options.prefix).manifest is not None:
        for note in notes:
            print(note if options.document is not None else note.removesuffix(": ids are shown"), file=sys.stderr)
    return tokenizer


def _samples(options: argparse.Namespace, tokenizer: Any) -> GPTDataset | SFTDataset:
    if tokenizer is None:
        message = "samples need a tokenizer, found none"
        raise ConfigError(message, hint="name it with --tokenizer")
    split = Split[options.split_name]
    config_class, dataset_class = (SFTDatasetConfig, SFTDataset) if options.sft else (GPTDatasetConfig, GPTDataset)
    config = config_class(
        random_seed=options.seed,
        sequence_length=options.sequence_length,
        blend=([options.prefix], None),
        split=options.split,
        path_to_cache=options.path_to_cache,
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        window_policy=options.window_policy,
    )
    assert config.split_matrix is not None
    if (bounds := config.split_matrix[split.value]) is None:
        message = f"the split {options.split!r} leaves nothing for {options.split_name}"
        raise ConfigError(message)
    data: Any = dataset_class.build_low_level_dataset(options.prefix, config)
    indices = split_indices(bounds, dataset_class.numel_low_level_dataset(data))
    return dataset_class(data, options.prefix, indices, options.num_samples, split, config)
