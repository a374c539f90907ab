"""`tokenloom neighbours`: the documents or chunks that are most like a document."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tokenloom.cli.drawing import default_look
from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.run_common import refuse_usage
from tokenloom.cli.stopping import say
from tokenloom.cli.values import count, signed_number, whole_number
from tokenloom.cli.vector_options import add_vector_options, chunk_maker_of, vectors_of
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import prefix_of
from tokenloom.inspect.shown_chunks import neighbor_lines
from tokenloom.retro.document_neighbors import DocumentNeighbors, neighbors_in_pair, neighbors_in_project
from tokenloom.retro.document_numbers import checked_document
from tokenloom.retro.project import RetroProject
from tokenloom.retro.recorded import recorded_embedder


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "neighbours",
        description="Show the documents of a dataset that are most like one of them, or with --chunks the chunks that "
        "are most like each of its chunks. The vectors of all chunks are made first, kept beside the data, and used "
        "again; all of them are compared. With --project, the index of a RETRO project is asked instead. Also: "
        "`neighbors`.",
    )
    parser.add_argument("prefix", metavar="PREFIX", help="path of the pair without .bin or .idx")
    parser.add_argument(
        "--document", type=signed_number, required=True, metavar="N", help="number of the document; -1 is the last one"
    )
    parser.add_argument(
        "-k", type=count, default=5, metavar="K", help="documents, or chunks for each chunk (default 5)"
    )
    parser.add_argument("--chunks", action="store_true", help="show what is most like each of its chunks")
    parser.add_argument(
        "--lines", type=whole_number, default=3, metavar="N", help="lines of each text, 0 for none (default 3)"
    )
    add_json(
        parser,
        "prefix, document, origin, embedder, num_chunks, num_searched, in documents similarity, num_chunks, own, "
        "nearest of each, or in chunks chunk and neighbors of each",
    )
    add_vector_options(parser)
    group = parser.add_argument_group("in a RETRO project")
    group.add_argument(
        "--project", metavar="FOLDER", help="ask the index of this project, which says embedder and --chunk-length"
    )
    group.add_argument("--index", metavar="STRING", help="which index (default: what the project's settings say)")
    group.add_argument("--nprobe", type=count, metavar="N", help="lists that are searched (default: the index's)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints what is most like the document."""
    if options.project is None and (options.index is not None or options.nprobe is not None):
        refuse_usage(options, "`--index` and `--nprobe` are of a project: name it with `--project`")
    options.prefix = prefix_of(options.prefix)
    try:
        found = _in_pair(options) if options.project is None else _in_project(options)
    except IndexError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json:
        print_json(found)
        return 0
    for line in neighbor_lines(found, default_look(), lines=options.lines):
        print(line)
    return 0


def _in_pair(options: argparse.Namespace) -> DocumentNeighbors:
    checked_document(IndexedDataset(options.prefix), options.document)  # before vectors are made, which takes long
    return neighbors_in_pair(
        vectors_of(options, options.prefix), options.document, k=options.k, of_chunks=options.chunks
    )


def _in_project(options: argparse.Namespace) -> DocumentNeighbors:
    project = RetroProject(options.project)
    length = project.config.get("retro_gpt_chunk_length")
    return neighbors_in_project(
        project,
        options.prefix,
        options.document,
        chunk_maker_of(options, options.prefix, embedder=recorded_embedder(project), chunk_length=length),
        index=options.index,
        k=options.k,
        of_chunks=options.chunks,
        nprobe=options.nprobe,
        notice=say,
    )
