"""What becomes of the first documents of a corpus, before anything is written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

from tokenloom.corpus.plan import JobPlan
from tokenloom.corpus.settings import CorpusSettings
from tokenloom.corpus.text import TextRecipe, plan_corpus, text_recipe
from tokenloom.inputs.parsing import ParsedBlock, Texts, parse_block
from tokenloom.inputs.records import BadLine
from tokenloom.preprocess.preview import DocumentPreview, preview_documents
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_BLOCK_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPreview:
    """What a job would do.

    Attributes:
        documents: the first of them, under each key: (path, key, what becomes of it).
        bad_lines: bad records among them.
        num_files, num_ignored, num_bytes: input files, others in their folders, and bytes to read.
        num_shards: number of shards of the job.
        dtype: dtype of the tokens.
        engine, engine_reason: what would tokenize, and why.
    """

    documents: tuple[tuple[str, str, DocumentPreview], ...]
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
    count: int,
) -> CorpusPreview:
    """Returns what becomes of the first documents; nothing is written.

    Args:
        inputs, output_prefix, tokenizer, settings: the same as for `preprocess_corpus`.
        count: most documents shown.

    Raises:
        TokenloomError: as `preprocess_corpus`, but for bad records, which are listed.
    """
    plan = plan_corpus(inputs, output_prefix, tokenizer, settings)
    recipe = text_recipe(tokenizer, settings)
    choice = recipe.choose_engine(plan.shards[0].slices[0])
    documents: list[tuple[str, str, DocumentPreview]] = []
    bad_lines: list[BadLine] = []
    num_left = count
    for path, parsed in _parsed_blocks(plan, recipe):
        taken = min(num_left, parsed.num_documents)
        bad_lines += parsed.bad_lines
        previews = [
            preview_documents(
                _documents(texts, taken),
                tokenizer,
                document_tokens=recipe.document_tokens,
                template_tokens=recipe.template_tokens,
                splitter=recipe.splitter,
            )
            for texts in parsed.columns
        ]
        for of_keys in zip(*previews, strict=True):
            documents += [(path, key, preview) for key, preview in zip(settings.keys, of_keys, strict=True)]
        num_left -= taken
        if num_left <= 0:
            break
    return CorpusPreview(
        documents=tuple(documents),
        bad_lines=tuple(bad_lines),
        num_files=len(plan.files),
        num_ignored=len(plan.ignored),
        num_bytes=sum(file.num_bytes for file in plan.files),
        num_shards=len(plan.shards),
        dtype=recipe.dtype.name,
        engine=choice.name,
        engine_reason=choice.reason,
    )


def _parsed_blocks(plan: JobPlan, recipe: TextRecipe) -> Iterator[tuple[str, ParsedBlock]]:
    """Yields the blocks of the corpus, small ones, each with the path of its file."""
    for shard in plan.shards:
        for slice_ in shard.slices:
            with closing(recipe.open(slice_, block_bytes=_BLOCK_BYTES)) as reader:
                for block in reader.blocks():
                    yield slice_.file.path, parse_block(block, recipe.settings.keys)


def _documents(texts: Texts, count: int) -> list[list[str]]:
    """Returns the texts of each of the first documents."""
    stops = range(1, count + 1) if texts.document_ends is None else texts.document_ends[:count].tolist()
    return [list(texts.texts[start:stop]) for start, stop in pairwise([0, *stops])]
