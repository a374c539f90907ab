"""`tokenloom explain`: what an error or a warning means, and what to do."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import textwrap
from typing import Any

from tokenloom.cli.json_output import add_json, print_json
from tokenloom.explanations import explanation_of, explanations

_WIDEST = 100


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "explain",
        description="Say what an error or a warning means, why it usually comes, and what to do. Without a name, all "
        "are listed.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="an error or a warning, such as OutputExistsError")
    add_json(parser, "name, bases, meaning, example, causes, remedy; without NAME, such objects by name")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints one explanation, or the first sentences of all."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    if options.name is None:
        known = explanations()
        if options.json:
            print_json(known)
            return 0
        for name, each in known.items():
            print(textwrap.fill(f"{name}: {each.meaning}", width, subsequent_indent="    "))
        return 0
    explanation = explanation_of(options.name)
    if options.json:
        print_json(dataclasses.asdict(explanation))
        return 0
    print(explanation.name + (f" (also {', '.join(explanation.bases)})" if explanation.bases else ""))
    for paragraph in explanation.paragraphs:
        print("\n" + textwrap.fill(paragraph, width, break_long_words=False, break_on_hyphens=False))
    return 0
