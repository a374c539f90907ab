"""Decodes a sample with the neighbors of its chunks, as plain values or as lines of text."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.inspect.shown import Look
from tokenloom.rendering.words import cell_width, counted, lines_of, printable
from tokenloom.tokenizers.text_tokenizer import decoded
from tokenloom_retro.assembled import RetroSettings, get_retro_datasets
from tokenloom_retro.build import retro_samples
from tokenloom_retro.chunk_database import MISSING
from tokenloom_retro.dataset import RetroDataset
from tokenloom_retro.project import RetroProject
from tokenloom_retro.settings import SPLITS, recorded_settings, tokenizer_of_project

EOD_MARK = "[EOD]"  # shown for an end-of-document token
_HEADING = "bold"
_FAINT = "dim"
_RULE = "─"
_INDENT = 4
_TAB_COLUMNS = 4


def retro_sample(
    project: str | os.PathLike[str],
    sample: int,
    *,
    split: str = "train",
    tokenizer: Any = None,
    num_neighbors: int = 2,
    num_retrieved: int = 1,
) -> dict[str, Any]:
    """Decodes a sample of a project, and the neighbors of its chunks, to values for JSON.

    Args:
        project: path of the project folder.
        sample: index of the sample; a negative index counts from the end.
        split: "train", "valid" or "test".
        tokenizer: tokenizer of the data, its path or name; None for the recorded one.
        num_neighbors: maximum number of neighbors per chunk.
        num_retrieved: chunks per neighbor: the neighbor and the chunks that follow it.

    Returns:
        A dict with:
        split, num_retrieved: as given.
        sample: index of the sample, not negative.
        num_samples: number of samples with neighbors.
        documents: list of [prefix, document index], one per document in the sample.
        chunks: list with start, stop, text and neighbors of each chunk of the sample. A neighbor is a list of retrieved
            chunks, each with chunk (its index in the database), data (the prefix), document, start, stop and text;
            empty if the neighbor is missing.

    Raises:
        ConfigError: the project has no recorded settings, or no neighbors of the split.
        TokenizerError: there is no tokenizer, or the database was built with another tokenizer.
        TokenloomError: the project cannot be read.
    """
    folder = RetroProject(project)
    recorded = recorded_settings(folder)
    if split not in recorded.neighbor_dirs:
        splits = ", ".join(recorded.neighbor_dirs) or "no split"
        message = f"`{folder.folder}` has no neighbors of {split}; it has neighbors of {splits}"
        raise ConfigError(message, hint="build them with the task `query-neighbors`")
    decoder = tokenizer_of_project(folder, recorded, tokenizer)
    build = recorded.build
    sizes = tuple(size if name == split else None for name, size in zip(SPLITS, build.sizes, strict=True))
    samples = retro_samples(folder, replace(build, sizes=sizes), decoder)
    settings = RetroSettings(
        retro_project_dir=folder.folder,
        retro_chunk_length=build.chunk_length,
        retro_block_size=build.block_size,
        retro_neighbor_dirs=recorded.neighbor_dirs,
        retro_num_neighbors=min(num_neighbors, build.num_neighbors),
        retro_num_retrieved_chunks=num_retrieved,
        retro_verify_neighbor_count=False,
    )
    [dataset] = filter(None, get_retro_datasets(settings, samples, build.sequence_length, decoder.eod))
    count = dataset.num_queried_samples
    if not -count <= sample < count:
        raise IndexError(f"sample index {sample} out of range: {count} samples of {split} have neighbors")
    return _decoded_sample(folder, dataset, sample % count, split, decoder)


def _decoded_sample(
    project: RetroProject, dataset: RetroDataset, position: int, split: str, tokenizer: Any
) -> dict[str, Any]:
    sample, database, length = dataset[position], dataset.db_dataset, dataset.chunk_dataset.chunk_length

    def retrieved(number: int, tokens: Sequence[int]) -> dict[str, Any]:
        data, sequence, start, stop = database.chunks[number, :4].tolist()
        return {
            "chunk": number,
            "data": project.infos[data].prefix,
            "document": _document_of(project.datasets[data], sequence),
            "start": start,
            "stop": stop,
            "text": _text(tokens[: stop - start], tokenizer),
        }

    chunks = []
    for place, neighbors in enumerate(sample["neighbor_chunks"].tolist()):
        start = place * length
        tokens = sample["neighbor_tokens"][place].reshape(len(neighbors), -1, length).tolist()
        found = [
            [retrieved(number, row) for number, row in zip(numbers, rows, strict=True) if number != MISSING]
            for numbers, rows in zip(neighbors, tokens, strict=True)
        ]
        text = _text(sample["text"][start : start + length].tolist(), tokenizer)
        chunks.append({"start": start, "stop": start + length, "text": text, "neighbors": found})
    data = int(sample.get("dataset_id", 0))
    pair, prefix = project.datasets[data], project.infos[data].prefix
    return {
        "split": split,
        "sample": position,
        "num_samples": dataset.num_queried_samples,
        "documents": [[prefix, _document_of(pair, sequence)] for sequence in sample["document_ids"].tolist()],
        "num_retrieved": dataset.num_retrieved_chunks,
        "chunks": chunks,
    }


def _document_of(pair: IndexedDataset, sequence: int) -> int:
    """Returns the index of the document that contains a sequence; documents without sequences count, too."""
    if len(pair) == pair.num_documents:
        return sequence
    return int(bisect_right(pair.document_indices, sequence)) - 1


def _text(ids: Sequence[int], tokenizer: Any) -> str:
    """Decodes tokens; marks ends of documents and drops padding."""
    eod = tokenizer.eod
    texts, part = [], list[int]()
    for number in ids:
        if number == eod:
            texts += [decoded(part, tokenizer), EOD_MARK]
            part = []
        elif number >= 0:
            part.append(number)
    return "".join([*texts, decoded(part, tokenizer)])


def retro_lines(sample: dict[str, Any], look: Look) -> Iterator[str]:
    """Yields a sample as lines: each chunk, then its neighbors, indented. Control characters are escaped."""
    yield from _lines(
        f"sample {sample['sample']:,} of {sample['num_samples']:,} ({sample['split']})", look, style=_HEADING
    )
    yield from _lines(f"of {_documents_in_words(sample['documents'])}", look)
    for number, chunk in enumerate(sample["chunks"]):
        yield from _rule(f"chunk {number}, tokens {chunk['start']:,} to {chunk['stop'] - 1:,}", look)
        yield from _lines(chunk["text"], look)
        yield from _neighbor_lines(chunk["neighbors"], sample["num_retrieved"], look)


def _neighbor_lines(neighbors: Sequence[Any], num_retrieved: int, look: Look) -> Iterator[str]:
    for number, retrieved in enumerate(neighbors, 1):
        if not retrieved:
            yield from _lines(f"neighbor {number}: none", look, style=_FAINT, indent=_INDENT)
            continue
        first, *others = retrieved
        where = f"document {first['document']:,} of {first['data']}, {_tokens_of(first)}"
        yield from _lines(f"neighbor {number}: {where}", look, style=_FAINT, indent=_INDENT)
        yield from _lines(first["text"], look, indent=2 * _INDENT)
        for other in others:
            yield from _lines(f"then {_tokens_of(other)}", look, style=_FAINT, indent=_INDENT)
            yield from _lines(other["text"], look, indent=2 * _INDENT)
        if len(retrieved) < num_retrieved:
            yield from _lines("end of the document", look, style=_FAINT, indent=_INDENT)


def _tokens_of(chunk: dict[str, Any]) -> str:
    start, last = chunk["start"], chunk["stop"] - 1
    return f"token {start:,}" if start == last else f"tokens {start:,} to {last:,}"


def _documents_in_words(documents: Sequence[Sequence[Any]]) -> str:
    """Lists documents in words, grouped by dataset, such as "documents 3, 5 of web"."""
    words = []
    for data, group in groupby(documents, key=lambda each: each[0]):
        numbers = [f"{number:,}" for _, number in group]
        several = "s" if len(numbers) > 1 else ""
        shown = numbers if len(numbers) <= 8 else [*numbers[:7], f"{counted(len(numbers) - 7, 'other')}"]
        words.append(f"document{several} {', '.join(shown)} of {data}")
    return ", ".join(words)


def _rule(heading: str, look: Look) -> Iterator[str]:
    text = f"{_RULE * 2} {heading} "
    yield from _lines(text + _RULE * (look.width - cell_width(text)), look, style=_HEADING)


def _lines(text: str, look: Look, *, style: str = "", indent: int = 0) -> Iterator[str]:
    """Yields the lines of a text, wrapped to the width of `look`."""
    for line in text.expandtabs(_TAB_COLUMNS).removesuffix("\n").split("\n"):
        for part in lines_of([(printable(line), style)], max(look.width - indent, 2), colour=look.colour):
            yield (" " * indent + part).rstrip(" ")
