"""`tokenloom merge` and `catalogue`: several datasets as one, copied into pairs of a wanted size, or where they lie."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import UsageError, Written, arguments_of
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import read_origins
from tokenloom.indexed.prefixes import expand_prefixes, prefixes_in, prefixes_listed
from tokenloom.indexed.writing.concatenate import build_catalogue, merge_datasets
from tokenloom.setting_types import Bytes

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


@dataclass(frozen=True, kw_only=True)
class MergeOptions(DatasetOptions):
    """Join datasets, in the order given, into one pair, or into pairs of a wanted size.

    Attributes:
        part_bytes: write PREFIX_00000, PREFIX_00001, … of at most so many bytes of tokens, such as 10GB or 512MiB.
        verify: compare the inputs with their manifests, read the result back and compare it with them.
        durable: leave it to the operating system when bytes reach the disk, as cp does.
        json: print one JSON object: num_inputs, num_input_bytes, seconds, verified, notices, and in datasets prefix,
            num_documents, num_known_origins, num_sequences, num_tokens, num_bytes, dtype of each.
    """

    part_bytes: Bytes | None = None
    verify: bool = False
    durable: Annotated[bool, Written(names=("--no-sync",))] = True
    json: bool = False


def merge(options: MergeOptions) -> int:
    """Merges and prints what came out."""
    prefixes = options.chosen()
    total = sum(IndexedDataset(prefix).extents.num_held_bytes for prefix in prefixes)
    notices: list[str] = []
    started = time.perf_counter()
    merged = merge_datasets(**arguments_of(options, merge_datasets, prefixes=prefixes, notice=notices.append))
    seconds = time.perf_counter() - started
    datasets = [merged] if isinstance(merged, IndexedDataset) else merged
    if options.json:
        print_json(
            {
                "num_inputs": len(prefixes),
                "num_input_bytes": total,
                "seconds": seconds,
                "verified": options.verify,
                "notices": notices,
                "datasets": [result_of(dataset) for dataset in datasets],
            }
        )
        return 0
    for dataset in datasets:
        print(
            f"{dataset.path_prefix}: {dataset.num_documents} documents{origin_words(dataset.path_prefix)}, "
            f"{len(dataset)} sequences, {dataset.num_tokens} tokens, {dataset.dtype.name}"
        )
    for notice in notices:
        print(notice)
    if len(notices) == len(datasets):
        return 0
    compared = ", compared with the inputs" if options.verify else ""
    print(
        f"{len(prefixes)} datasets, {total:,} bytes of tokens in {seconds:.1f} s, "
        f"{total / 1e6 / seconds:,.0f} MB/s{compared}"
    )
    return 0


@dataclass(frozen=True, kw_only=True)
class CatalogueOptions(DatasetOptions):
    """Write PREFIX.idx and PREFIX.catalogue, which together act as one dataset over all datasets named, in the order
    given. Their tokens stay where they are.

    Attributes:
        verify: read all tokens and compare them with the manifests.
        json: print one JSON object: prefix, num_documents, num_known_origins, num_sequences, num_tokens, num_bytes,
            dtype; num_pairs, seconds and notices.
    """

    verify: bool = False
    json: bool = False


def catalogue(options: CatalogueOptions) -> int:
    """Writes the catalogue and prints what it holds."""
    prefixes = options.chosen()
    notices: list[str] = []
    started = time.perf_counter()
    dataset = build_catalogue(**arguments_of(options, build_catalogue, prefixes=prefixes, notice=notices.append))
    seconds = time.perf_counter() - started
    if options.json:
        beside = {"num_pairs": len(dataset.sections), "seconds": seconds, "notices": notices}
        print_json({**result_of(dataset), **beside})
        return 0
    for notice in notices:
        print(notice)
    print(
        f"{dataset.path_prefix}: {len(dataset.sections)} pairs, "
        f"{dataset.num_documents} documents{origin_words(dataset.path_prefix)}, "
        f"{len(dataset)} sequences, {dataset.num_tokens} tokens, {dataset.dtype.name}, "
        f"{dataset.extents.num_held_bytes:,} bytes of tokens in {seconds:.1f} s"
    )
    return 0


COMMANDS = {"merge": (MergeOptions, merge), "catalogue": (CatalogueOptions, catalogue)}
