"""`tokenloom run init`: the first run.toml."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.run_common import refuse_usage
from tokenloom.cli.values import count, share, token_count, whole_number
from tokenloom.errors import ConfigError
from tokenloom.megatron.run_arguments import TakenArguments, read_arguments, take_arguments
from tokenloom.run.init import RunDraft, draft_text, weighted_entries
from tokenloom.storage.publishing import make_folder_of
from tokenloom.storage.resolve import open_pending

_DEFAULT_LENGTH = 4096


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "init",
        description="Write a run.toml with comments: from a blend as Megatron has it, from the arguments of a Megatron "
        "run, or from folders, each of which becomes a source. Data without weights are read in proportion to their "
        "tokens: once, if no size is given. --json prints path, data, not_taken and others.",
    )
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="folders, globs or prefixes, a source each")
    parser.add_argument(
        "--data-path", nargs="+", metavar="ENTRY", help="prefixes, globs or folders; or a weight before each"
    )
    parser.add_argument(
        "--args-file", metavar="FILE", help="arguments of a Megatron run: a script, a list of arguments, or YAML"
    )
    parser.add_argument("-o", "--output", default="run.toml", metavar="FILE", help="file to write (default run.toml)")
    parser.add_argument("--overwrite", "--force", action="store_true", help="replace a file that is there")
    group = parser.add_argument_group("what the run says; before what an arguments file says")
    group.add_argument(
        "--sequence-length", type=count, metavar="S", help=f"tokens per sample (default {_DEFAULT_LENGTH})"
    )
    size = group.add_mutually_exclusive_group()
    size.add_argument("--tokens", type=token_count, metavar="N", help="tokens of the run, such as 900B")
    size.add_argument("--samples", type=token_count, metavar="N", help="samples of the run")
    group.add_argument("--seed", type=whole_number, metavar="N", help="seed of the order (default 1234)")
    group.add_argument("--tokenizer", metavar="PATH", help="the tokenizer that made the data")
    group.add_argument("--holdout", type=share, metavar="SHARE", help='share of each to hold out, such as "0.1%%"')
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the file, and says what was not taken over."""
    taken = TakenArguments() if options.args_file is None else take_arguments(read_arguments(options.args_file))
    if options.folders and options.data_path:
        refuse_usage(options, "name data by --data-path or as folders, not by both")
    entries = options.data_path or options.folders or taken.entries
    if not entries:
        if options.args_file is None:
            refuse_usage(options, "name the data: --data-path, --args-file, or folders")
        message = f"`{options.args_file}`: expected `--data-path`, found none"
        raise ConfigError(message, hint="give `--data-path` yourself")
    data, weights = weighted_entries(entries)
    is_sized = options.tokens is not None or options.samples is not None
    draft = RunDraft(
        data=data,
        weights=weights,
        sequence_length=options.sequence_length or taken.sequence_length or _DEFAULT_LENGTH,
        tokens=options.tokens,
        samples=options.samples if is_sized else taken.samples,
        seed=next((seed for seed in (options.seed, taken.seed) if seed is not None), 1234),
        tokenizer=options.tokenizer or taken.tokenizer,
        holdout=options.holdout,
        settings=taken.settings,
    )
    text = draft_text(draft, path=options.output)
    if os.path.lexists(options.output) and not options.overwrite:
        message = f"expected no file `{options.output}`, found one"
        raise ConfigError(message, hint="give another name with --output, or --overwrite to replace it")
    make_folder_of(options.output)
    with open_pending(options.output) as file:
        file.write(text.encode())
    if options.json:
        print_json(
            {
                "path": options.output,
                "data": data,
                "not_taken": [{"argument": name, "reason": reason} for name, reason in taken.not_taken],
                "others": taken.others,
            }
        )
        return 0
    for name, reason in taken.not_taken:
        print(f"not taken over: --{name}: {reason}", file=sys.stderr)
    if taken.others:
        print(f"not about data: {', '.join(f'--{name}' for name in taken.others)}", file=sys.stderr)
    print(f"wrote {options.output}: look at it, then run `tokenloom run lock {options.output}`")
    return 0
