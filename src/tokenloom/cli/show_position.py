"""`tokenloom show --run`: what stands at a position of a run."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from tokenloom.cli.drawing import look_of, print_shown
from tokenloom.cli.json_output import print_json
from tokenloom.errors import TokenizerError
from tokenloom.inspect.run_sample import run_pieces
from tokenloom.inspect.shown_samples import shown_sample
from tokenloom.inspect.token_texts import Detokenizer
from tokenloom.run.run import Run
from tokenloom.tokenizers.load import load_tokenizer


def show_position(options: argparse.Namespace) -> int:
    """Prints stage, source and pass of a position, and the documents that its sample is made of."""
    opened = Run.open(options.run_path)
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer is not None else tokenizer_of(opened)
    dataset = opened.holdout() if options.holdout else opened.dataset()
    try:
        if options.json:
            place = dataset.place(options.position) if options.holdout else opened.place(options.position)
            found = [dataclasses.asdict(piece) for piece in run_pieces(dataset, options.position, tokenizer)]
            print_json({"place": dataclasses.asdict(place), "pieces": found})
            return 0
        shown = shown_sample(dataset, options.position, tokenizer, lock=opened.lock)
    except IndexError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    name = f"position {options.position:,} of {'what is held out' if options.holdout else 'the run'}"
    print_shown(dataclasses.replace(shown, heading=name), look_of(options))
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
