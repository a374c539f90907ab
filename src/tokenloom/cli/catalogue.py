"""`tokenloom catalogue`: many datasets as one, without copying their tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tokenloom.cli.dataset_options import DatasetOptions, origin_words, result_of
from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import arguments_of
from tokenloom.indexed.writing.concatenate import build_catalogue


@dataclass(frozen=True, kw_only=True)
class Options(DatasetOptions):
    """Write PREFIX.idx and PREFIX.catalogue, which together act as one dataset over all datasets named, in the order
    given. Their tokens stay where they are.

    Attributes:
        verify: read all tokens and compare them with the manifests.
        json: print one JSON object: prefix, num_documents, num_known_origins, num_sequences, num_tokens, num_bytes,
            dtype; num_pairs, seconds and notices.
    """

    verify: bool = False
    json: bool = False


def run(options: Options) -> int:
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
