"""`tokenloom order-by-neighbours`: a dataset in which similar documents follow each other."""

from __future__ import annotations

import argparse
from typing import Any

from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.stopping import say
from tokenloom.cli.values import count
from tokenloom.cli.vector_options import add_vector_options, vectors_of
from tokenloom.indexed.layout import prefix_of
from tokenloom.indexed.writing.outputs import require_free
from tokenloom.indexed.writing.reordered import write_reordered
from tokenloom.retro.neighbor_order import order_by_neighbors
from tokenloom.retro.pair_index import open_pair_index


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "order-by-neighbours",
        description="Write the documents of a dataset in an order in which similar ones follow each other: a walk from "
        "each to the most similar one that was not visited. A run reads them in that order with `documents = "
        '"file"`. Vectors are made first, kept beside the data, and used again. Also: `order-by-neighbors`.',
    )
    parser.add_argument("prefix", metavar="PREFIX", help="path of the pair without .bin or .idx")
    parser.add_argument("--output-prefix", required=True, metavar="PREFIX", help="path of the new pair without suffix")
    parser.add_argument("--overwrite", action="store_true", help="replace a pair that is there")
    parser.add_argument(
        "-k", type=count, default=20, metavar="K", help="neighbors that the walk may go to (default 20)"
    )
    add_json(parser, "path, num_documents, num_tokens, num_walks, similarity_before, similarity")
    add_vector_options(parser)
    parser.add_argument(
        "--index",
        metavar="STRING",
        help="exact, or what faiss.index_factory takes (default: exact up to 4 billion comparisons, then IVF…,SQ8)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the pair, and prints how much more similar documents are to the ones before them."""
    if not options.overwrite:
        require_free([prefix_of(options.output_prefix)])
    vectors = vectors_of(options, options.prefix, index=options.index)
    documents = vectors.documents
    index = open_pair_index(vectors, num_queries=len(documents), string=options.index, of_documents=True, notice=say)
    found = order_by_neighbors(documents, index, num_neighbors=options.k)
    order = vectors.numbers.with_empty_ones(found.order)
    pair = write_reordered(vectors.prefix, order, options.output_prefix, overwrite=options.overwrite)
    if options.json:
        print_json(
            {
                "path": pair.path_prefix,
                "num_documents": pair.num_documents,
                "num_tokens": pair.num_tokens,
                "num_walks": found.num_walks,
                "similarity_before": found.similarity_before,
                "similarity": found.similarity,
            }
        )
        return 0
    print(
        f"{pair.path_prefix}: {pair.num_documents:,} documents, {pair.num_tokens:,} tokens; similarity of documents "
        f"that follow each other {found.similarity:.3f}, before {found.similarity_before:.3f}; "
        f"{found.num_walks:,} walks"
    )
    return 0
