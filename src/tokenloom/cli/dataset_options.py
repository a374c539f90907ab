"""Naming datasets on the command line: one by one, as globs and folders, or in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from tokenloom.cli.options import UsageError, Written
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import read_origins
from tokenloom.indexed.prefixes import expand_prefixes, prefixes_in, prefixes_listed

RESULT_KEYS = "prefix, num_documents, num_known_origins, num_sequences, num_tokens, num_bytes, dtype"
"""What `result_of` tells."""


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Many datasets, and where what is made of them goes.

    Attributes:
        prefixes: datasets to take; globs and folders too.
        input: take all datasets of a folder, sorted by name.
        list: take what a file names, a prefix, glob or folder per line.
        output_prefix: path of the result without suffix.
        overwrite: replace a result of other datasets.
        multimodal: the indexes hold sequence modes.
    """

    prefixes: Annotated[tuple[str, ...], Written(metavar="PREFIX", is_positional=True)] = ()
    input: Annotated[str | None, Written(metavar="FOLDER")] = None
    list: Annotated[str | None, Written(metavar="FILE")] = None
    output_prefix: str
    overwrite: bool = False
    multimodal: bool = False

    def __post_init__(self) -> None:
        """Refuses datasets that are named in several ways, or not at all."""
        if sum(map(bool, (self.prefixes, self.input, self.list))) != 1:
            message = "name either datasets or a folder with --input, or a file with --list"
            raise UsageError(message)

    def chosen(self) -> Sequence[str]:
        """Returns the datasets that the options name.

        Raises:
            DatasetNotFoundError, ConfigError, StorageError: what they name is not there, or stands for too much.
        """
        if self.input:
            return prefixes_in(self.input)
        return expand_prefixes(prefixes_listed(self.list) if self.list else self.prefixes)


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
