"""`tokenloom retro show`: a sample with the neighbors of its chunks, decoded."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tokenloom.cli.drawing import add_look, look_of, print_lines
from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.values import count, signed_number
from tokenloom.datasets.splits import Split


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "show",
        description="Decode a training sample of a project chunk by chunk, and below each chunk its neighbors, with "
        "the document that each is of. A project that was made by Megatron needs --tokenizer.",
    )
    parser.add_argument("project", metavar="PROJECT", help="the project folder")
    parser.add_argument("--sample", type=signed_number, required=True, metavar="K", help="show sample K of a split")
    parser.add_argument(
        "--split", choices=[split.name for split in Split], default="train", help="split to show (default train)"
    )
    parser.add_argument(
        "--neighbors", type=count, default=2, metavar="N", help="neighbors of each chunk to show (default 2)"
    )
    parser.add_argument(
        "--retrieved-chunks",
        type=count,
        default=1,
        metavar="N",
        help="chunks of each neighbor: itself, and those that follow it (default 1; Megatron trains with 2)",
    )
    parser.add_argument("--tokenizer", metavar="PATH", help="tokenizer of the data (default: what the project names)")
    add_json(
        parser,
        "split, sample, num_samples, documents, num_retrieved, and in chunks start, stop, text and neighbors of each; "
        "a neighbor is a list of chunks with chunk, data, document, start, stop and text, empty where there is none",
    )
    add_look(parser, has_ids=False)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the sample."""
    from tokenloom_retro.sample import retro_lines, retro_sample

    try:
        shown = retro_sample(
            options.project,
            options.sample,
            split=options.split,
            tokenizer=options.tokenizer,
            num_neighbors=options.neighbors,
            num_retrieved=options.retrieved_chunks,
        )
    except IndexError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json:
        print_json(shown)
        return 0
    print_lines(retro_lines(shown, look_of(options)))
    return 0
