"""`tokenloom show --run`: what stands at a position of a run."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from tokenloom.cli.pieces import print_pieces
from tokenloom.errors import TokenizerError
from tokenloom.inspect.run_sample import run_pieces
from tokenloom.inspect.show import Detokenizer
from tokenloom.rendering.words import counted
from tokenloom.run.run import Run
from tokenloom.tokenizers.load import load_tokenizer


def show_position(options: argparse.Namespace) -> int:
    """Prints stage, source and pass of a position, and the documents that its sample is made of."""
    opened = Run.open(options.run_path)
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer is not None else tokenizer_of(opened)
    dataset = opened.holdout() if options.holdout else opened.dataset()
    try:
        place = dataset.place(options.position) if options.holdout else opened.place(options.position)
        pieces = run_pieces(dataset, options.position, tokenizer)
    except IndexError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json:
        found = [dataclasses.asdict(piece) for piece in pieces]
        print(json.dumps({"place": dataclasses.asdict(place), "pieces": found}))
        return 0
    print(
        f"position {place.position:,} of {'what is held out' if options.holdout else 'the run'}: stage {place.stage}, "
        f"source {place.source}, pass {place.pass_number}\nsample {place.window:,} of walk {place.walk}: "
        f"{counted(len(pieces), 'piece')}, {place.sequence_length:,} tokens and the label of the last"
    )
    print_pieces(pieces)
    return 0


def tokenizer_of(opened: Run) -> Detokenizer | None:
    """Returns the tokenizer of the run; None if it names none, or that cannot be loaded."""
    if opened.lock.tokenizer is None:
        return None
    try:
        tokenizer: Detokenizer = opened.tokenizer.loaded
    except TokenizerError as error:
        print(f"the tokenizer of the run cannot be used: {error.message}", file=sys.stderr)
        return None
    return tokenizer
