"""`tokenloom near-duplicates`: what of a benchmark is in a corpus, or what is in a corpus twice."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from tokenloom.cli.drawing import default_look
from tokenloom.cli.json_output import add_json
from tokenloom.cli.run_common import refuse_usage
from tokenloom.cli.stopping import say
from tokenloom.cli.values import count, number, whole_number
from tokenloom.cli.vector_options import add_vector_options, vectors_of
from tokenloom.inspect.shown_chunks import duplicate_lines
from tokenloom.optional import require
from tokenloom.retro.near_duplicates import check_threshold
from tokenloom.retro.pair_duplicates import describe_near_duplicates, find_near_duplicates, write_parquet
from tokenloom.retro.pair_index import EXACT, open_pair_index
from tokenloom.storage.publishing import exists_error, make_folder_of, write_report

_SHOWN = 20
_LISTED = 1000


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "near-duplicates",
        description="Show which chunks of a benchmark B are in a corpus A, in nearly the same words, or which chunks "
        "of A are in another document of A, too: pairs whose vectors have a cosine of --threshold or more, with both "
        "texts and places. Vectors of all chunks are made first, kept beside the data, and used again. With "
        "--fail-above, the exit status is 1 if there are more pairs than that.",
    )
    parser.add_argument("corpus", metavar="A", help="path of a pair without .bin or .idx: the corpus")
    parser.add_argument("benchmark", nargs="?", metavar="B", help="path of another one: what is looked for in it")
    parser.add_argument(
        "--threshold", type=number, default=0.9, metavar="X", help="the least similarity of a pair (default 0.9)"
    )
    parser.add_argument(
        "--least-tokens",
        type=count,
        default=16,
        metavar="N",
        help="leave out pairs with a shorter chunk, as the ends of documents are (default 16)",
    )
    parser.add_argument(
        "--fail-above", type=whole_number, metavar="N", help="exit with status 1 if there are more than N pairs"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="a file ending in .parquet for all pairs, or in .json for what --json prints",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    parser.add_argument(
        "--most", type=whole_number, metavar="N", help="pairs that are shown (default 20; 1000 in JSON)"
    )
    parser.add_argument(
        "--lines", type=whole_number, default=3, metavar="N", help="lines of each text, 0 for none (default 3)"
    )
    add_json(
        parser,
        "version, corpus, benchmark, embedder, chunk_length, index, threshold, least_tokens; num_chunks, num_found, "
        "num_pairs, num_inside_documents, num_short, num_document_pairs, num_full; in chunks similarity, first, second "
        "of each pair, in documents those that share most",
    )
    add_vector_options(parser)
    parser.add_argument(
        "--index",
        metavar="STRING",
        help="exact, or what faiss.index_factory takes (default: exact up to 4 billion comparisons, then IVF…,SQ8)",
    )
    parser.add_argument(
        "--candidates", type=count, default=100, metavar="N", help="nearest chunks that are looked at (default 100)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints and writes the pairs; returns 1 if there are too many."""
    check_threshold(options.threshold)  # what is asked for is looked at before vectors are made, which takes long
    if options.output is not None:
        if not options.output.endswith((".parquet", ".json")):
            refuse_usage(options, f"expected an output ending in .parquet or .json, found `{options.output}`")
        if options.output.endswith(".parquet"):
            require("pyarrow.parquet", extra="parquet")
        if os.path.lexists(options.output) and not options.overwrite:
            raise exists_error(options.output)
        make_folder_of(options.output)
    corpus = vectors_of(options, options.corpus, index=options.index)
    benchmark = None if options.benchmark is None else vectors_of(options, options.benchmark)
    index = open_pair_index(
        corpus, num_queries=len(corpus if benchmark is None else benchmark), string=options.index, notice=say
    )
    pairs = find_near_duplicates(
        corpus,
        benchmark,
        index,
        threshold=options.threshold,
        num_candidates=options.candidates,
        least_tokens=options.least_tokens,
    )
    shown = _SHOWN if options.most is None else options.most
    listed = _LISTED if options.most is None else options.most
    found = describe_near_duplicates(
        pairs,
        corpus,
        benchmark,
        threshold=options.threshold,
        index=getattr(index, "string", EXACT),
        least_tokens=options.least_tokens,
        most=listed,
    )
    if options.output is not None and options.output.endswith(".json"):
        write_report(options.output, found.to_json(), overwrite=options.overwrite)
    elif options.output is not None:
        write_parquet(options.output, pairs.pairs, corpus, benchmark)
    if options.json:
        print(json.dumps(json.loads(found.to_json())))
    else:
        for line in duplicate_lines(found, default_look(), most=shown, lines=options.lines):
            print(line)
    return 1 if options.fail_above is not None and found.num_pairs > options.fail_above else 0
