"""What a job would do to the first documents of a corpus."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tokenloom.inputs.records import BadLine, ParsedBlock, Texts, parse_block
from tokenloom.preprocess.blocks import DocumentTokens, SentenceSplitter, TemplateTokens
from tokenloom.preprocess.plan import JobPlan
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.preprocess.text import TextRecipe, plan_corpus
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_SHOWN_IDS = 8
_BLOCK_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPreview:
    """A document as it will be stored.

    Attributes:
        text: decoded from the ids, special tokens spelled out; of several sequences, one after the other.
        first_ids, last_ids: first and last ids, at most eight of each.
        num_tokens: those added included.
        num_sequences: number of sequences that have tokens.
        num_text_bytes: size of the original in bytes, as UTF-8.
        is_doubled: whether it begins or ends with two of the tokens added, one of them spelled out in its own text.
        is_exact: whether the ids spell the original text; where not, the tokenizer normalises, or lacks characters.
    """

    text: str
    first_ids: tuple[int, ...]
    last_ids: tuple[int, ...]
    num_tokens: int
    num_sequences: int
    num_text_bytes: int
    is_doubled: bool
    is_exact: bool

    @property
    def tokens_per_byte(self) -> float:
        """Tokens for each byte of the original; 0 for an empty text."""
        return self.num_tokens / self.num_text_bytes if self.num_text_bytes else 0.0


def preview_documents(
    documents: Sequence[str | Sequence[str]],
    tokenizer: TextTokenizer,
    *,
    document_tokens: DocumentTokens | None = None,
    template_tokens: TemplateTokens | None = None,
    splitter: SentenceSplitter | None = None,
) -> list[DocumentPreview]:
    """Returns what becomes of documents, each a text or a list of texts; by the tokenizer's own library.

    Args:
        documents: few: all that is made of them is returned.
        tokenizer: names the ids.
        document_tokens: added to each; None for none.
        template_tokens: put around each text before that; None for none.
        splitter: cuts texts into sentences; None leaves them whole.

    Raises:
        TokenizerError: the tokenizer refuses a text.

    Example:
        >>> from tokenloom.tokenizers.plain import ByteTokenizer
        >>> [shown] = preview_documents(["hi"], ByteTokenizer(), document_tokens=DocumentTokens(eod=256))
        >>> shown.text, shown.first_ids, shown.num_tokens
        ('hi<eod>', (104, 105, 256), 3)
    """
    policy = DocumentTokens() if document_tokens is None else document_tokens
    template = TemplateTokens() if template_tokens is None else template_tokens
    return [_preview(document, tokenizer, policy, template, splitter) for document in documents]


def _preview(
    document: str | Sequence[str],
    tokenizer: TextTokenizer,
    policy: DocumentTokens,
    template: TemplateTokens,
    splitter: SentenceSplitter | None,
) -> DocumentPreview:
    originals = [document] if isinstance(document, str) else list(document)
    texts = originals if splitter is None else [part for text in originals for part in splitter.split(text)]
    encoded = tokenizer.encode_texts(texts)
    framed = template.add(encoded)
    lengths = framed.lengths[framed.lengths > 0].astype(np.int32)
    tokens, lengths, num_doubled = policy.add(
        framed.tokens.astype(np.int64), lengths, np.array([len(lengths)], dtype=np.int64)
    )
    ids = tokens.tolist()
    rows = [row.tolist() for row in np.split(tokens, np.cumsum(lengths)[:-1])]
    plain = [row.tolist() for row in np.split(encoded.tokens, np.cumsum(encoded.lengths)[:-1])]
    return DocumentPreview(
        text="".join(map(tokenizer.detokenize, rows)),
        first_ids=tuple(ids[:_SHOWN_IDS]),
        last_ids=tuple(ids[-_SHOWN_IDS:]),
        num_tokens=len(ids),
        num_sequences=len(lengths),
        num_text_bytes=sum(len(text.encode()) for text in originals),
        is_doubled=num_doubled > 0,
        is_exact=all(tokenizer.detokenize(row) == text for row, text in zip(plain, texts, strict=bool(texts))),
    )


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
    recipe = plan.recipe
    assert isinstance(recipe, TextRecipe)
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
