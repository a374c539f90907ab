"""`tokenloom retro build`: the chunks, the index and the neighbors of a project."""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenloom.cli import console
from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.options import declare, read
from tokenloom.cli.run_options import add_sizes, wanted_sizes
from tokenloom.cli.tokenising_options import RunnerOptions, add_tokenizer_options, tokenizer_of
from tokenloom.cli.values import count, default_of, names, split_weights, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenloom_retro.output import OutputManifest


def add_parser(commands: Any) -> None:
    """Declares the command."""
    from tokenloom_retro.settings import RetroBuildSettings

    kept = partial(default_of, RetroBuildSettings)
    parser = commands.add_parser(
        "build",
        description="Build a project, or what of it is missing: cut documents into chunks (db-build), embed them and "
        "make a vector index (index-build), and find the neighbors of all chunks of the samples that are trained on "
        "(query-neighbors). A build that was stopped goes on with the same command, and machines that see the project "
        "folder share it.",
    )
    parser.add_argument("project", metavar="PROJECT", help="the project folder, which is made if it is not there")
    parser.add_argument(
        "--data",
        "--data-path",
        nargs="+",
        required=True,
        metavar="ENTRY",
        help="a weight before each prefix, glob or folder, or a single prefix; what lies outside PROJECT/data is "
        "linked into it",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what was made with other settings")
    add_json(
        parser,
        "project, data, database (its counts), num_vectors of the index, neighbors (num_chunks by split), "
        "seconds; null for what was not asked for",
    )
    add_tokenizer_options(parser)
    group = parser.add_argument_group("the samples, as in the training run")
    group.add_argument(
        "--sequence-length",
        "--seq-length",
        type=count,
        required=True,
        metavar="S",
        help="tokens per sample, a multiple of the chunk length",
    )
    group.add_argument(
        "--split",
        type=split_weights,
        default=kept("split"),
        metavar="SPLIT",
        help="98,2,0 or train=0.98,valid=0.02 (default %(default)s); documents of train are retrieved",
    )
    group.add_argument("--seed", type=whole_number, default=kept("seed"), help="seed of the run (default %(default)s)")
    add_sizes(parser.add_argument_group("samples that neighbors are found for (default none)"))
    group = parser.add_argument_group("chunks, index and neighbors")
    group.add_argument(
        "--chunk-length",
        type=count,
        default=kept("chunk_length"),
        metavar="N",
        help="tokens per chunk (default %(default)s)",
    )
    group.add_argument(
        "--embedder",
        default="wordllama",
        metavar="NAME",
        help="wordllama, wordllama:DIMENSION or bert:PATH (default wordllama)",
    )
    group.add_argument(
        "--index", required=True, metavar="STRING", help='what faiss makes an index of: "Flat", "IVF4096,Flat", …'
    )
    group.add_argument(
        "--index-chunks", type=count, required=True, metavar="N", help="chunks that the index is trained on"
    )
    group.add_argument(
        "--neighbors",
        type=count,
        default=kept("num_neighbors"),
        metavar="N",
        help="neighbors that are kept (default %(default)s)",
    )
    group.add_argument(
        "--search-neighbors",
        type=count,
        default=kept("num_searched"),
        metavar="N",
        help="neighbors that are searched, those of the sample's own documents among them (default %(default)s)",
    )
    group.add_argument("--nprobe", type=count, metavar="N", help="lists that are searched, for IVF (default 1)")
    group.add_argument("--ef-search", type=count, metavar="N", help="candidates that are kept, for HNSW (default 16)")
    declare(parser, RunnerOptions)
    group = parser.add_argument_group("what is done")
    group.add_argument(
        "--tasks",
        type=names,
        default="db-build,index-build,query-neighbors",
        metavar="TASK,…",
        help="what is done, with what it needs (default db-build,index-build,query-neighbors)",
    )
    group.add_argument(
        "--block-size",
        type=count,
        default=kept("block_size"),
        metavar="N",
        help="chunks of a block (default %(default)s)",
    )
    group.add_argument(
        "--doc-block-size",
        type=count,
        default=kept("document_block_size"),
        metavar="N",
        help="documents of a block (default %(default)s)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Builds, and prints what is there then."""
    from tokenloom_retro.build import build_retro
    from tokenloom_retro.project import RetroProject, linked_data
    from tokenloom_retro.settings import RetroBuildSettings

    started = time.monotonic()
    tokenizer, sizes = tokenizer_of(options), tuple(wanted_sizes(options))
    settings = RetroBuildSettings(
        data=linked_data(RetroProject(options.project), options.data),
        sequence_length=options.sequence_length,
        sizes=sizes,
        split=options.split,
        seed=options.seed,
        chunk_length=options.chunk_length,
        index=options.index,
        num_index_chunks=options.index_chunks,
        num_neighbors=options.neighbors,
        num_searched=options.search_neighbors,
        nprobe=options.nprobe,
        ef_search=options.ef_search,
        block_size=options.block_size,
        document_block_size=options.doc_block_size,
    )
    made = build_retro(
        options.project,
        settings,
        tokenizer=tokenizer,
        embedder=options.embedder,
        tasks=options.tasks,
        overwrite=options.overwrite,
        **read(options, RunnerOptions).runner_arguments(),
    )
    told = _told(options.project, settings.data, made, time.monotonic() - started)
    (print_json if options.json else _print)(told)
    return 0


def _told(project: str, data: Any, made: Mapping[str, OutputManifest], seconds: float) -> dict[str, Any]:
    index = made.get("index-build")
    return {
        "project": project,
        "data": [{"prefix": prefix, "weight": weight} for weight, prefix in data],
        "database": dict(made["db-build"].counts),
        "num_vectors": None if index is None else index.counts["vectors"],
        "neighbors": {
            task.removeprefix("query-neighbors "): {"num_chunks": manifest.counts["chunks"]}
            for task, manifest in made.items()
            if task.startswith("query-neighbors ")
        }
        or None,
        "seconds": seconds,
    }


def _print(told: dict[str, Any]) -> None:
    numbers = {
        "documents": told["database"]["num_docs"],
        "chunks": told["database"]["num_chunks"],
        "chunks that are retrieved": told["database"]["num_chunks_train"],
        "chunks without any text": told["database"]["num_chunks_invalid"],
        "vectors in the index": told["num_vectors"],
        **{
            f"chunks of {split} with neighbors": each["num_chunks"] for split, each in (told["neighbors"] or {}).items()
        },
    }
    rows = [("data sets", ", ".join(each["prefix"] for each in told["data"]))]
    rows += [(name, f"{number:,}") for name, number in numbers.items() if number is not None]
    console.print_table((told["project"], ""), [*rows, ("seconds", f"{told['seconds']:.2f}")])
