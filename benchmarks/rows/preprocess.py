"""Text into tokens on disk."""

from __future__ import annotations

import os
from pathlib import Path

from harness.row import LIMIT, OURS, Row, Scale, Side

from rows.data import write_text
from rows.fairness import WARM

PEER, MOSAIC = "megatron-core", "mosaicml-streaming"
COMMAND = "tokenloom preprocess"
LIMIT_MEANING = (
    "`gigatoken`, the fastest tokenizer that gives the same ids, on the same text in memory with one new engine per "
    "core, nothing read, parsed or written; setting engines up is not counted"
)
FAIRNESS = (
    f"Same text, tokenizer and end-of-document tokens; as many processes or threads as there are cores. {WARM} Ours "
    "is the whole command with its start-up and imports; imports of the peers are not counted, starting their "
    "workers is. Memory is the most that all processes held together, pages of files not counted"
)


def command_side(megabytes: int, workers: int) -> Side:
    arguments = {"megabytes": megabytes, "workers": workers}
    return Side(name=COMMAND, library=OURS, script="tokenise_command.py", arguments=arguments)


def memory_side(name: str, library: str, engine: str, megabytes: int, workers: int) -> Side:
    arguments = {"megabytes": megabytes, "engine": engine, "workers": workers}
    return Side(name=name, library=library, script="tokenise_memory.py", arguments=arguments)


def peers_row(megabytes: int, workers: int, rounds: int) -> Row:
    """Returns the row in which all sides get the same text, small enough for the slow ones."""
    several = {"megabytes": megabytes, "workers": workers}
    sides = (
        command_side(megabytes, workers),
        Side(name="tokenizers + megatron builder", library=PEER, script="tokenise_megatron.py", fresh=True,
             arguments={"megabytes": megabytes, "workers": 0}),
        Side(name="tokenizers + megatron builder, pool", library=PEER, script="tokenise_megatron.py", fresh=True,
             arguments=several),
        Side(name="datatrove", library="datatrove", script="tokenise_datatrove.py", fresh=True,
             arguments=several, environment="datatrove"),
        Side(name="litdata optimize", library="litdata", script="tokenise_litdata.py", fresh=True,
             arguments=several, environment="litdata"),
        Side(name="tokenizers + MDSWriter", library=MOSAIC, script="tokenise_mosaic.py", fresh=True,
             arguments={"megabytes": megabytes}, environment=MOSAIC),
        memory_side("tokenizers in memory", "tokenizers", "tokenizers", megabytes, workers),
        memory_side("gigatoken in memory", LIMIT, "gigatoken", megabytes, workers),
    )  # fmt: skip
    return Row(
        job="preprocess",
        name=f"text to tokens, {megabytes} MB",
        compares="JSON lines into tokenised files, as each library does it",
        fairness=f"{FAIRNESS}. The tokens that every side wrote are compared, in order; empty documents are left "
        "out. The tool of the reference is not on PyPI: it is `json.loads`, `tokenizers` line by line and "
        "megatron-core's builder, as that does it, in one process and in a pool. MDSWriter writes in one process. "
        "`tokenizers in memory` is what none of the peers, all of which use it, can be faster than.",
        limit=LIMIT_MEANING,
        unit="MB",
        rounds=rounds,
        sides=sides,
        prepare=lambda folder: write_text(Path(folder), megabytes, workers),
        same=tuple(side.name for side in sides if "memory" not in side.name),
    )


def large_row(megabytes: int, workers: int, rounds: int) -> Row:
    """Returns the row of an input so large that start-up does not matter."""
    return Row(
        job="preprocess",
        name=f"text to tokens, {megabytes} MB, tokenloom alone",
        compares="JSON lines into a file pair: the whole command beside the tokenizer's own speed",
        fairness=f"{FAIRNESS}. The peers would take minutes for it; their rates are in the row above.",
        limit=LIMIT_MEANING,
        unit="MB",
        rounds=rounds,
        sides=(
            command_side(megabytes, workers),
            memory_side("gigatoken in memory", LIMIT, "gigatoken", megabytes, workers),
        ),
        prepare=lambda folder: write_text(Path(folder), megabytes, workers),
    )


def rows(scale: Scale) -> list[Row]:
    """Returns the rows of a mode."""
    small, large = scale.text_megabytes
    workers = len(os.sched_getaffinity(0))
    rounds = min(scale.rounds, 3)
    return [peers_row(small, workers, rounds), large_row(large, workers, rounds)]
