"""The list of all commands, by group, with the module and the one-line help of each command."""

from __future__ import annotations

from typing import Any

Groups = dict[str, dict[str, tuple[str, str]]]
"""Commands by group title and command name, as (module, help).

A module without a dot in its name is in this package; "[extra]" is the distribution that the extra installs.
Each help text fits a line of 80 columns.
"""

COMMANDS: Groups = {
    "make data": {
        "preprocess": ("preprocess", "turn text into tokenized datasets"),
        "preprocess-chat": ("preprocess", "turn conversations into tokenized datasets with roles"),
        "preprocess-multimodal": ("preprocess", "turn text-image pairs into a dataset"),
        "retro": ("[retro]", "find neighbors of samples for training with RETRO"),
        "merge": ("datasets", "merge datasets into one"),
        "catalogue": ("datasets", "combine datasets without copying their tokens"),
        "column": ("datasets", "add weights, masks or other values per token"),
        "export": ("datasets", "write documents or samples as Parquet or Arrow"),
    },
    "look at data": {
        "info": ("datasets", "print token counts, lengths and columns of a dataset"),
        "show": ("reading", "decode a document or a training sample"),
        "verify": ("datasets", "check every row and token of a dataset"),
        "contamination": ("[check]", "find benchmark texts in data and in a run's steps"),
        "report": ("[look]", "summarize data, a run or a job as one HTML page"),
        "explore": ("[look]", "browse data, a run or a job in a web browser"),
    },
    "train": {
        "plan": ("blends", "print tokens, samples and epochs of a blend's data"),
        "run": ("commands", "manage a training run: run.toml and run.lock"),
        "prepare-cache": ("blends", "build the indices of a run before it starts"),
        "sequences-per-dataset": ("blends", "write the sequence counts of a blend's datasets"),
        "pack-report": ("[check]", "report fill, padding and imbalance of microbatches"),
        "stream": ("blends", "read the batches of a blend and print the throughput"),
        "verify-resume": ("[check]", "kill and resume a data loader; compare its batches"),
        "check-isolation": ("[check]", "test that a model keeps packed documents apart"),
    },
    "what a run reads": {
        "trace": ("reading", "print the input records that a step of a run reads"),
        "when": ("reading", "find the steps of a run that read a document or text"),
        "ledger": ("run", "account for the tokens of a run up to a step"),
        "replay": ("reading", "read positions again and compare their digest"),
        "deny": ("reading", "remove documents from a run, starting at a step"),
    },
    "this program": {
        "doctor": ("[check]", "check this machine, its disks and its buckets"),
        "demo": ("demo", "turn Python's standard library into training batches"),
    },
}

RUN_COMMANDS: Groups = {
    "run.toml and run.lock": {
        "init": ("run", "write a run.toml"),
        "lock": ("run", "write run.lock, which lists the exact data of the run"),
        "amend": ("run", "change weights, sources or lengths from a position on"),
        "check": ("run", "compare the data with run.lock"),
    },
    "what a run reads": {
        "plan": ("run", "print what the run will read of each source, and when"),
        "stream": ("run", "read the batches of a run and print the throughput"),
        "diff": ("run", "find the first position where two runs differ"),
    },
    "identity": {
        "id": ("run", "print the ID of a run, which amendments do not change"),
        "digest": ("run", "print a hash of all samples before a position"),
    },
}
"""Commands of `tokenloom run`."""


def add_parser(commands: Any) -> None:
    """Adds the parser of `tokenloom run` and its subcommands."""
    parser = commands.add_parser(
        "run",
        description="Manage a training run. You write run.toml; the program writes run.lock. The order of samples is "
        "computed from both. You can amend a run during training; samples that training has read do not move. "
        "Exit status: 0 success, 1 an error or a problem found, 2 wrong usage.",
    )
    parser.add_commands(RUN_COMMANDS)
