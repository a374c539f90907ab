"""What a job would do to the first documents of a corpus."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from tokenloom.inputs.records import BadLine, Block, parse_block
from tokenloom.preprocess.blocks import Column, Isolating, singles
from tokenloom.preprocess.plan import JobPlan
from tokenloom.preprocess.recipe import Recipe
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.preprocess.text import plan_corpus
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_SHOWN_IDS = 8
_BLOCK_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPreview:
    """A document as it will be stored.

    Attributes:
        path: path of its file.
        key: key of its text.
        text: decoded from the ids, special tokens spelled out; of several sequences, one after the other.
        first_ids, last_ids: first and last ids, at most eight of each.
        num_tokens: those added included.
        num_sequences: number of sequences that have tokens.
        num_text_bytes: size of the original in bytes, as UTF-8.
        is_doubled: whether it begins or ends with two of the tokens added, one of them spelled out in its own text.
        is_exact: whether ids spell the original text; where not, the tokenizer normalises, or lacks characters.
    """

    path: str
    key: str
    text: str
    first_ids: tuple[int, ...]
    last_ids: tuple[int, ...]
    num_tokens: int
    num_sequences: int
    num_text_bytes: int
    is_doubled: bool
    is_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPreview:
    """What a job would do.

    Attributes:
        documents: the first documents under each key, in order.
        bad_lines: records up to there that cannot be used.
        num_files, num_ignored: input files that would be read, and other files in folders.
        num_bytes: size of the input in bytes, as it is.
        num_shards: shards it would be cut into.
        dtype: dtype of the tokens.
        engine, engine_reason: what would encode the texts, and why.
    """

    documents: tuple[DocumentPreview, ...]
    bad_lines: tuple[BadLine, ...]
    num_files: int
    num_ignored: int
    num_bytes: int
    num_shards: int
    dtype: str
    engine: str
    engine_reason: str


def preview_corpus(
    inputs: Sequence[str | os.PathLike[str]],
    output_prefix: str | os.PathLike[str],
    tokenizer: TextTokenizer,
    settings: CorpusSettings,
    *,
    count: int = 5,
) -> CorpusPreview:
    """Returns what `preprocess_corpus` would do to the first documents; writes nothing.

    Args:
        inputs, output_prefix, tokenizer, settings: see `preprocess_corpus`.
        count: number of documents.

    Raises:
        TokenloomError: as `preprocess_corpus`, but for bad records, which are listed.
    """
    plan = plan_corpus(inputs, output_prefix, tokenizer, settings)
    making = plan.recipe.making(plan.shards[0].slices[0], num_workers=1)
    work = Isolating(making.work)
    documents: list[DocumentPreview] = []
    bad_lines: list[BadLine] = []
    for record in _records(plan):
        if len(documents) >= count * len(settings.keys):
            break
        [made] = work([record])
        bad_lines += made.bad_lines
        if made.num_documents:
            columns = zip(settings.keys, parse_block(record, settings.keys).columns, made.columns, strict=True)
            documents += [_preview(plan.recipe, record, key, [*texts.texts], column) for key, texts, column in columns]
    return CorpusPreview(
        documents=tuple(documents),
        bad_lines=tuple(bad_lines),
        num_files=len(plan.files),
        num_ignored=len(plan.ignored),
        num_bytes=sum(file.num_bytes for file in plan.files),
        num_shards=len(plan.shards),
        dtype=plan.recipe.dtype.name,
        engine=making.engine,
        engine_reason=making.engine_reason,
    )


def _records(plan: JobPlan) -> Iterator[Block]:
    """Yields the records of the corpus, each as a block of its own."""
    for slice_ in (slice_ for shard in plan.shards for slice_ in shard.slices):
        with closing(plan.recipe.open(slice_, block_bytes=_BLOCK_BYTES)) as reader:
            for block in reader.blocks():
                for single in singles([block]):
                    yield from single


def _preview(recipe: Recipe, record: Block, key: str, texts: list[str], column: Column) -> DocumentPreview:
    tokenizer, added, ids = recipe.tokenizer, recipe.document_tokens, column.tokens.tolist()
    rows = [row.tolist() for row in np.split(column.tokens, np.cumsum(column.lengths)[:-1])]
    return DocumentPreview(
        path=record.path,
        key=key,
        text="".join(map(tokenizer.detokenize, rows)),
        first_ids=tuple(ids[:_SHOWN_IDS]),
        last_ids=tuple(ids[-_SHOWN_IDS:]),
        num_tokens=len(ids),
        num_sequences=len(column.lengths),
        num_text_bytes=sum(len(text.encode()) for text in texts),
        is_doubled=len(ids) > 1 and (ids[:2] == [added.bos] * 2 or ids[-2:] == [added.eod] * 2),
        is_exact=all(tokenizer.detokenize(tokenizer.tokenize(text)) == text for text in texts),
    )
