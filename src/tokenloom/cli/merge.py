"""`tokenloom merge`: several datasets into one pair, or into pairs of a wanted size."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

from tokenloom.cli.dataset_options import DatasetOptions, origin_words, result_of
from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Written, arguments_of
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.writing.concatenate import merge_datasets
from tokenloom.setting_types import Bytes


@dataclass(frozen=True, kw_only=True)
class Options(DatasetOptions):
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


def run(options: Options) -> int:
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
