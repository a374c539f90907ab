"""All commands in groups, each with the module that it is in, and what it is for."""

from __future__ import annotations

from typing import Any

Groups = dict[str, dict[str, tuple[str, str]]]
"""By title of a group, its commands: the module of each (of this room, or by its whole name), or in brackets the extra
that installs it; and its help.

The help stands nowhere else and fits a line of 80 columns.
"""

COMMANDS: Groups = {
    "make data": {
        "preprocess": ("preprocess", "turn text into tokenized datasets"),
        "preprocess-chat": ("preprocess", "turn conversations into tokenized datasets with roles"),
        "preprocess-multimodal": ("preprocess", "turn pairs of text and image into a dataset"),
        "retro": ("[retro]", "find neighbors of samples to train with retrieval"),
        "merge": ("datasets", "join datasets into one"),
        "catalogue": ("datasets", "make many datasets one without copying tokens"),
        "column": ("datasets", "add weights, masks or other values beside tokens"),
        "export": ("datasets", "write documents or samples as Parquet or Arrow"),
    },
    "look at data": {
        "info": ("datasets", "documents, tokens and lengths of a dataset"),
        "show": ("reading", "decode a document or a training sample"),
        "verify": ("datasets", "check every row and token of a dataset"),
        "contamination": ("[check]", "find benchmarks in data, and the steps that read them"),
        "report": ("[look]", "what data, a run or a job are like, as one page"),
        "explore": ("[look]", "look at data, a run or a job in the browser"),
    },
    "train": {
        "plan": ("blends", "tokens, samples and epochs of each dataset of a blend"),
        "run": ("commands", "a training run as two files, run.toml and run.lock"),
        "prepare-cache": ("blends", "build the indices of a run before it starts"),
        "sequences-per-dataset": ("blends", "record the counts of a blend's datasets"),
        "pack-report": ("[check]", "fill, padding and imbalance of packed microbatches"),
        "stream": ("blends", "read the batches of a blend, and say how fast it was"),
        "verify-resume": ("[check]", "kill and resume any loader; compare what it gives"),
        "check-isolation": ("[check]", "whether packed documents are apart in a model"),
    },
    "what a run reads": {
        "trace": ("reading", "which rows of input files stood at a step of a run"),
        "when": ("reading", "at which steps of a run documents or texts are read"),
        "ledger": ("run", "where the tokens of a run went up to a step"),
        "replay": ("reading", "read positions again; compare with what was read"),
        "deny": ("reading", "take documents out of a run from a step on"),
    },
    "this program": {
        "doctor": ("[check]", "whether this machine, its disks and buckets are fit"),
        "demo": ("demo", "text to batches, on the sources of Python's library"),
    },
}

RUN_COMMANDS: Groups = {
    "the two files": {
        "init": ("run", "write a run.toml"),
        "lock": ("run", "write run.lock: which data the run reads"),
        "amend": ("run", "change weights, sources or lengths from a position on"),
        "check": ("run", "compare the data with run.lock"),
    },
    "what it reads": {
        "plan": ("run", "what the run will read of each source, and when"),
        "stream": ("run", "read the batches of a run, and say how fast it was"),
        "diff": ("run", "where two runs begin to differ"),
    },
    "what it is known by": {
        "id": ("run", "the name of a run that stays while it changes"),
        "digest": ("run", "a hash of what decides samples before a position"),
    },
}
"""Those of `tokenloom run`."""


def add_parser(commands: Any) -> None:
    """Declares `tokenloom run`."""
    parser = commands.add_parser(
        "run",
        description="A training run as two files: run.toml, which people write, and run.lock, which the program "
        "writes. The order of its samples is computed from these, and may change while it runs without moving a sample "
        "that was read. The exit status is 0 if all is well, 1 if something is refused or a problem is found, and 2 "
        "for wrong usage.",
    )
    parser.add_commands(RUN_COMMANDS)
