"""Naming datasets on the command line: one by one, as globs and folders, or in a file."""

from __future__ import annotations

import argparse
from typing import Any

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import read_origins
from tokenloom.indexed.prefixes import expand_prefixes, prefixes_in, prefixes_listed

RESULT_KEYS = "prefix, num_documents, num_known_origins, num_sequences, num_tokens, num_bytes, dtype"
"""What `result_of` tells."""


def add_dataset_options(parser: argparse.ArgumentParser, *, what: str) -> None:
    """Declares the inputs of a command that takes many datasets, and where its result goes.

    Args:
        parser: parser of the command.
        what: it does with them.
    """
    parser.add_argument("prefixes", nargs="*", metavar="PREFIX", help=f"datasets to {what}; globs and folders too")
    parser.add_argument("--input", metavar="FOLDER", help=f"{what} all datasets of a folder, sorted by name")
    parser.add_argument("--list", metavar="FILE", help=f"{what} what a file names, a prefix, glob or folder per line")
    parser.add_argument("--output-prefix", required=True, metavar="PREFIX", help="path of the result without suffix")
    parser.add_argument("--overwrite", action="store_true", help="replace a result of other datasets")
    parser.add_argument("--multimodal", action="store_true", help="the indexes hold sequence modes")


def chosen_prefixes(options: argparse.Namespace) -> list[str]:
    """Returns the datasets that the options name; exits with the usage unless they do so in one way.

    Raises:
        DatasetNotFoundError, ConfigError, StorageError: what they name is not there, or stands for too much.
    """
    if sum(map(bool, (options.prefixes, options.input, options.list))) != 1:
        options.parser.error("name either datasets or a folder with --input, or a file with --list")
    if options.input:
        return prefixes_in(options.input)
    return expand_prefixes(prefixes_listed(options.list) if options.list else options.prefixes)


def result_of(dataset: IndexedDataset) -> dict[str, Any]:
    """Returns what a dataset holds that was written, for JSON.

    Raises:
        DatasetFormatError: its origins are damaged.
    """
    origins = read_origins(dataset.path_prefix)
    return {
        "prefix": dataset.path_prefix,
        "num_documents": dataset.num_documents,
        "num_known_origins": None if origins is None else origins.num_known,
        "num_sequences": len(dataset),
        "num_tokens": dataset.num_tokens,
        "num_bytes": dataset.extents.num_held_bytes,
        "dtype": dataset.dtype.name,
    }


def origin_words(prefix: str) -> str:
    """Returns what to say behind the number of documents of a result: of how many the origin is known, if of any.

    Raises:
        DatasetFormatError: they are damaged.
    """
    if (origins := read_origins(prefix)) is None:
        return ""
    known = origins.num_known
    return f" ({'all' if known == origins.num_documents else known} with their origin)"
