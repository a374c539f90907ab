"""All commands in groups, each with what it is for, and the modules that they are in."""

from __future__ import annotations

from typing import Any

Groups = dict[str, dict[str, str]]
"""By title of a group, its commands with their help, which stands nowhere else and fits a line of 80 columns."""

COMMANDS: Groups = {
    "make data": {
        "preprocess": "turn text into tokenized datasets",
        "preprocess-chat": "turn conversations into tokenized datasets with roles",
        "preprocess-multimodal": "turn pairs of text and image into a dataset",
        "retro": "find neighbors of samples to train with retrieval",
        "merge": "join datasets into one",
        "catalogue": "make many datasets one without copying tokens",
        "column": "add weights, masks or other values beside tokens",
        "export": "write documents or samples as Parquet or Arrow",
    },
    "look at data": {
        "info": "documents, tokens and lengths of a dataset",
        "show": "decode a document or a training sample",
        "verify": "check every row and token of a dataset",
        "contamination": "find benchmarks in data, and the steps that read them",
        "report": "what data, a run or a job are like, as one page",
        "explore": "look at data, a run or a job in the browser",
    },
    "train": {
        "plan": "tokens, samples and epochs of each dataset of a blend",
        "run": "a training run as two files, run.toml and run.lock",
        "prepare-cache": "build the indices of a run before it starts",
        "sequences-per-dataset": "record the counts of a blend's datasets",
        "pack-report": "fill, padding and imbalance of packed microbatches",
        "stream": "read the batches of a run, and say how fast it was",
        "verify-resume": "kill and resume any loader; compare what it gives",
        "check-isolation": "whether packed documents are apart in a model",
    },
    "what a run reads": {
        "trace": "which rows of input files stood at a step of a run",
        "when": "at which steps of a run documents or texts are read",
        "ledger": "where the tokens of a run went up to a step",
        "replay": "read positions again; compare with what was read",
        "deny": "take documents out of a run from a step on",
    },
    "this program": {
        "doctor": "whether this machine, its disks and buckets are fit",
        "demo": "text to batches, on the sources of Python's library",
    },
}

_TOGETHER = {
    "preprocess": ("preprocess", "preprocess-chat", "preprocess-multimodal"),
    "datasets": ("merge", "catalogue", "export", "info", "verify"),
    "blends": ("plan", "prepare-cache", "sequences-per-dataset", "stream", "run stream"),
    "commands": ("run",),
    "run": ("run init", "run lock", "run amend", "run check", "run id", "run digest"),
    "accounts": ("run plan", "run diff", "ledger"),
    "reading": ("show", "trace", "when", "replay", "deny"),
}
MODULES = {name: module for module, names in _TOGETHER.items() for name in names}
"""The module of each command that shares it with others."""

_SATELLITES = {
    "retro": ("retro",),
    "look": ("report", "explore"),
    "check": ("contamination", "doctor", "pack-report", "verify-resume", "check-isolation"),
}
SATELLITES = {name: extra for extra, names in _SATELLITES.items() for name in names}
"""Commands of other distributions, such as `tokenloom-check`, by the extra that installs them."""

RUN_COMMANDS: Groups = {
    "the two files": {
        "init": "write a run.toml",
        "lock": "write run.lock: which data the run reads",
        "amend": "change weights, sources or lengths from a position on",
        "check": "compare the data with run.lock",
    },
    "what it reads": {
        "plan": "what the run will read of each source, and when",
        "stream": "read the batches of a run, and say how fast it was",
        "diff": "where two runs begin to differ",
    },
    "what it is known by": {
        "id": "the name of a run that stays while it changes",
        "digest": "a hash of what decides samples before a position",
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
    parser.add_commands(RUN_COMMANDS, module="tokenloom.cli.{}")


def satellite_module(name: str) -> Any:
    """Returns the module of a command in another distribution, an entry point of the group `tokenloom.commands`.

    Raises:
        MissingExtraError: that is not installed.
    """
    from importlib.metadata import entry_points

    from tokenloom.errors import MissingExtraError

    for found in entry_points(group="tokenloom.commands", name=name):
        return found.load()
    extra = SATELLITES[name]
    message = f"`tokenloom {name}` is in tokenloom-{extra}, which is not installed"
    raise MissingExtraError(message, hint=f"run `pip install 'tokenloom[{extra}]'`")
