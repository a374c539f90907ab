"""The options of commands that compare chunks of pairs: what decodes and embeds them, and where vectors are kept."""

from __future__ import annotations

import argparse
from typing import Any

from tokenloom.cli.stopping import say
from tokenloom.cli.values import count
from tokenloom.errors import ConfigError
from tokenloom.inspect.open_pairs import OpenPairs
from tokenloom.inspect.target import tokenizer_for
from tokenloom.retro.chunk_maker import ChunkMaker, as_chunk_maker
from tokenloom.retro.pair_index import check_index_string
from tokenloom.retro.pair_vectors import PairVectors, open_pair_vectors

DEFAULT_EMBEDDER = "wordllama"
DEFAULT_LENGTH = 64


def add_vector_options(parser: argparse.ArgumentParser) -> None:
    """Declares how chunks are cut and embedded, and where that is kept."""
    group: Any = parser.add_argument_group("how texts are compared")
    group.add_argument("--tokenizer", metavar="PATH", help="tokenizer of the data (default: what their manifest names)")
    group.add_argument(
        "--embedder",
        metavar="NAME",
        help=f"wordllama, wordllama:64 or bert:PATH (default {DEFAULT_EMBEDDER}, which needs no network)",
    )
    group.add_argument(
        "--chunk-length",
        type=count,
        metavar="N",
        help=f"tokens that are compared as one text (default {DEFAULT_LENGTH})",
    )
    group.add_argument(
        "--cache", metavar="FOLDER", help="where vectors are kept (default: PREFIX.neighbors, beside the data)"
    )
    group.add_argument(
        "--restart", action="store_true", help="drop vectors that a run with other data or settings began"
    )


def chunk_maker_of(
    options: argparse.Namespace, prefix: str, *, embedder: str | None = None, chunk_length: int | None = None
) -> ChunkMaker:
    """Returns what makes chunks of a pair into texts and vectors.

    Args:
        options: options of the command.
        prefix: prefix of the pair.
        embedder: the embedder where no option names one; None for the default.
        chunk_length: tokens of a chunk where no option says; None for the default.

    Raises:
        ConfigError: there is no tokenizer, or none with an end of documents.
    """
    tokenizer, notes = tokenizer_for(OpenPairs(), [prefix], options.tokenizer)
    if tokenizer is None:
        message = f"comparing texts needs the tokenizer of `{prefix}`, found none"
        why = "; ".join(note.removesuffix(": ids are shown") for note in notes)
        raise ConfigError(message, hint=f"name it with --tokenizer: {why}")
    length = options.chunk_length or chunk_length or DEFAULT_LENGTH
    return as_chunk_maker(tokenizer, options.embedder or embedder or DEFAULT_EMBEDDER, chunk_length=length)


def vectors_of(options: argparse.Namespace, prefix: str, *, index: str | None = None) -> PairVectors:
    """Returns the chunks of a pair and their vectors; says on stderr what is made, and where.

    Args:
        options: options of the command.
        prefix: prefix of the pair.
        index: index that will be asked for, as `open_pair_index` takes it.

    Raises:
        ConfigError: there can be no such index, or no such vectors; nothing is made.
    """
    chunks = chunk_maker_of(options, prefix)
    check_index_string(index, chunks.embedder.dimension)
    return open_pair_vectors(prefix, chunks, cache=options.cache, restart=options.restart, notice=say)
