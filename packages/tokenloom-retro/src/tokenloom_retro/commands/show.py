"""`tokenloom retro show`: decodes a sample with the neighbors of its chunks."""

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
    """Decode a sample chunk by chunk; after each chunk, show its neighbors and the document of each neighbor. A project
    made by Megatron needs --tokenizer.

    Attributes:
        project: the project folder.
        sample: index of the sample.
        split: split of the sample.
        neighbors: number of neighbors to show per chunk.
        retrieved_chunks: chunks per neighbor: the neighbor and the chunks that follow it (default 1; Megatron trains
            with 2).
        tokenizer: tokenizer of the data (default: the recorded one).
        json: print one JSON object: split, sample, num_samples, documents, num_retrieved, and chunks, a list of objects
            with start, stop, text and neighbors. Each neighbor is a list of objects with chunk, data, document, start,
            stop and text; an empty list if the neighbor is missing.
    """

    project: Annotated[str, Written(metavar="PROJECT", is_positional=True)]
    sample: Annotated[int, Written(metavar="K")]
    split: Annotated[str, Written(choices=tuple(Split.__members__))] = "train"
    neighbors: Count = 2
    retrieved_chunks: Count = 1
    tokenizer: Annotated[str | None, Written(metavar="PATH")] = None
    json: bool = False


def run(options: Options) -> int:
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
