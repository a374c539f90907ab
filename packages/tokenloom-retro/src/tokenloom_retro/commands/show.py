"""`tokenloom retro show`: a sample with the neighbors of its chunks, decoded."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

from tokenloom.cli.options import Written
from tokenloom.cli.output import look_of, print_json, print_lines
from tokenloom.datasets.splits import Split
from tokenloom.setting_types import Count


@dataclass(frozen=True, kw_only=True)
class Options:
    """Decode a training sample of a project chunk by chunk, and below each chunk its neighbors, with the document that
    each is of. A project that was made by Megatron needs --tokenizer.

    Attributes:
        project: the project folder.
        sample: show sample K of a split.
        split: split to show.
        neighbors: neighbors of each chunk to show.
        retrieved_chunks: chunks of each neighbor: itself, and those that follow it (default 1; Megatron trains with 2).
        tokenizer: tokenizer of the data (default: what the project names).
        json: print one JSON object: split, sample, num_samples, documents, num_retrieved, and in chunks start, stop,
            text and neighbors of each; a neighbor is a list of chunks with chunk, data, document, start, stop and text,
            empty where there is none.
    """

    project: Annotated[str, Written(metavar="PROJECT", is_positional=True)]
    sample: Annotated[int, Written(metavar="K")]
    split: Annotated[str, Written(choices=tuple(Split.__members__))] = "train"
    neighbors: Count = 2
    retrieved_chunks: Count = 1
    tokenizer: Annotated[str | None, Written(metavar="PATH")] = None
    json: bool = False


def run(options: Options) -> int:
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
    print_lines(retro_lines(shown, look_of()))
    return 0
