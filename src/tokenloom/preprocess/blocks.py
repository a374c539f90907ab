"""Tokenizes blocks of records into arrays, in worker threads.

A tokenizer library receives many texts per call, so an error does not tell which text is bad. After an error the
records are bisected until each bad record is alone; this costs nothing while no record is bad. `nupunkt` splits texts
into sentences in pure Python at 10 to 20 MB/s: more processes make this faster, more threads do not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.errors import ConfigError, InputError, RefusedTextError
from tokenloom.indexed.writing.outputs import REJECTED_SUFFIX
from tokenloom.inputs.records import (
    BadLine,
    Block,
    ParsedBlock,
    RecordCounts,
    SkippedRecords,
    Texts,
    UnusableLineError,
    bad_line,
    parse_block,
    records_of,
)
from tokenloom.inputs.utf8_texts import joined_texts
from tokenloom.optional import require
from tokenloom.preprocess.selection import DocumentHashes, hash_documents
from tokenloom.tokenizers.engines import EngineChoice, EnginePool
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer
from tokenloom.tokenizers.text_tokenizer import Encoded, TextTokenizer, refusals

if TYPE_CHECKING:
    from tokenloom.preprocess.corpus import TextRecipe

Result = TypeVar("Result")

Work = Callable[[Sequence[Block]], "TokenizedBlock"]
"""A function that tokenizes several blocks together and returns their concatenated tokens."""


def bisect_failures(work: Work, bundle: Sequence[Block]) -> list[TokenizedBlock]:
    """Tokenizes blocks; if the tokenizer fails, bisects the blocks until each bad record has a result of its own."""
    try:
        return [work(bundle)]
    except RefusedTextError as error:
        reason = error.message
    if (halves := _halved(bundle)) is None:
        return [bad_record(work, bundle, reason)]
    return [result for half in halves for result in bisect_failures(work, half)]


def bad_record(work: Work, bundle: Sequence[Block], reason: str) -> TokenizedBlock:
    """Returns a result that has no documents and lists the only record of `bundle` as bad."""
    [block] = bundle
    bad = bad_line(block, next(iter(records_of(block))), reason)
    return replace(work([]), bad_lines=[replace(bad, error=RefusedTextError)], skipped=np.zeros(1, dtype=np.int64))


def _halved(bundle: Sequence[Block]) -> tuple[Sequence[Block], Sequence[Block]] | None:
    """Returns the first and the second half of the records; None if there is only one record."""
    if len(bundle) > 1:
        middle = len(bundle) // 2
        return bundle[:middle], bundle[middle:]
    halves = bundle[0].halves()
    return None if halves is None else ([halves[0]], [halves[1]])


def singles(bundle: Sequence[Block]) -> Iterator[Sequence[Block]]:
    """Yields each record as a block of its own, in order."""
    if (halves := _halved(bundle)) is None:
        yield bundle
        return
    for half in halves:
        yield from singles(half)


def rejected_path(prefix: str) -> str:
    """Returns the path of the file with the bad records of a dataset."""
    return f"{prefix}{REJECTED_SUFFIX}"


def json_line(record: dict[str, object]) -> bytes:
    """Returns a record as a line of JSON in UTF-8; if a path is not UTF-8, escapes its invalid bytes."""
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentTokens:
    """The token ids to add to each document that has tokens.

    Attributes:
        bos, eod: id to put before the first token, and id to put after the last token; None adds no token.
    """

    bos: int | None = None
    eod: int | None = None

    @classmethod
    def of(cls, tokenizer: TextTokenizer, *, prepend_bos: bool = False, append_eod: bool = False) -> Self:
        """Returns `bos` and `eod` of a tokenizer, each if requested; raises `MissingTokenError` for a missing token."""
        return cls(bos=tokenizer.bos if prepend_bos else None, eod=tokenizer.eod if append_eod else None)

    def add(
        self, tokens: NDArray[Any], lengths: NDArray[np.int32], document_ends: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.int32], int]:
        """Adds `bos` and `eod` to each document; returns tokens, lengths, and the number of documents with doubled ids.

        An id is doubled if the document already began with the added `bos`, or already ended with the added `eod`.

        Args:
            tokens: tokens of all sequences, concatenated, in the dtype of the dataset.
            lengths: int32[num_sequences], tokens per sequence, at least 1.
            document_ends: int64[num_documents], the index of the first sequence after each document.
        """
        if self.bos is self.eod is None:
            return tokens, lengths, 0
        begins = np.concatenate([np.zeros(1, dtype=np.int64), document_ends[:-1]])
        used = document_ends > begins[: len(document_ends)]
        first, last = begins[: len(document_ends)][used], document_ends[used] - 1
        stops = np.cumsum(lengths, dtype=np.int64)
        places = np.stack([stops[first] - lengths[first], stops[last]], axis=1)
        doubled = np.zeros(len(first), dtype=bool)
        lengths = lengths.copy()
        if self.bos is not None:
            doubled |= tokens[places[:, 0]] == self.bos
            lengths[first] += 1
        if self.eod is not None:
            doubled |= tokens[places[:, 1] - 1] == self.eod
            lengths[last] += 1
        ids = [self.bos, self.eod]
        is_added = [number is not None for number in ids]
        # Where two documents meet, the `eod` of the first is inserted before the `bos` of the second.
        values = np.tile(np.array([number for number in ids if number is not None], dtype=tokens.dtype), len(first))
        return insert_items(tokens, places[:, is_added].ravel(), values), lengths, int(doubled.sum())


def insert_items(items: NDArray[Any], places: NDArray[np.int64], values: NDArray[Any]) -> NDArray[Any]:
    """Returns `np.insert(items, places, values)` for `places` in ascending order, without a mask of all items."""
    out = np.empty(len(items) + len(values), dtype=items.dtype)
    bytes_of = [np.ascontiguousarray(array).view(np.uint8) for array in (items, values)]
    _native.insert_items(bytes_of[0], items.itemsize, np.ascontiguousarray(places), bytes_of[1], out.view(np.uint8))
    return out


@dataclass(frozen=True, slots=True)
class TemplateTokens:
    """The ids to add `before` each text and `after` each text, even if the text is empty."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> TemplateTokens:
        """Returns the ids that the tokenizer's post-processor adds to a text; no ids without a post-processor."""
        return cls(*tokenizer.template()) if isinstance(tokenizer, HuggingFaceTokenizer) else cls()

    def add(self, encoded: Encoded) -> Encoded:
        added = np.array([*self.before, *self.after], dtype=encoded.tokens.dtype)
        if not len(added):
            return encoded
        stops = np.cumsum(encoded.lengths)
        starts = stops - encoded.lengths
        places = np.stack([starts] * len(self.before) + [stops] * len(self.after), axis=1).ravel()
        tokens = np.insert(encoded.tokens, places, np.tile(added, len(stops)))
        return replace(encoded, tokens=tokens, lengths=encoded.lengths + len(added))


# A word with more characters is not prose. `nupunkt` scans from each full stop in a word to the end of the word, in
# quadratic time: half a second for 30 kB of "x.)", two seconds for 60 kB. So it gets only start and end of such a word.
_LONGEST_WORD = 1000
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")


class SentenceSplitter:
    """A splitter of texts into sentences. Thread-safe and picklable.

    Args:
        keep_newlines: keep the white space after each sentence, so that the joined sentences equal the text; otherwise
            each sentence is stripped. The reference has the same option.

    Raises:
        MissingExtraError: `nupunkt` is not installed.

    Example:
        >>> SentenceSplitter().split("It rains. Dr. Who stays in.")
        ['It rains.', 'Dr. Who stays in.']
        >>> SentenceSplitter(keep_newlines=True).split("It rains.\\n\\nHe stays in.")
        ['It rains.\\n\\n', 'He stays in.']
    """

    def __init__(self, *, keep_newlines: bool = False) -> None:
        self.keep_newlines = keep_newlines
        # All instances share the model. `sentence_spans` would take three times as long, and would end sentences at
        # blank lines, unlike the reference's splitter.
        self._model: Any = require("nupunkt", extra="sentences").load("default")

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SentenceSplitter, keep_newlines=self.keep_newlines), ()

    def split(self, text: str) -> list[str]:
        """Returns the sentences of a text; white space alone is one sentence with `keep_newlines`, else no sentence."""
        spans = list(self._model.span_tokenize(_without_long_words(text)))
        if not self.keep_newlines:
            return [sentence for start, stop in spans if (sentence := text[start:stop].strip())]
        starts = [0, *(start for start, _ in spans[1:]), len(text)]
        return [text[start:stop] for start, stop in pairwise(starts) if start < stop]


def split_texts(texts: Texts, splitter: SentenceSplitter) -> Texts:
    """Splits the texts of documents into sentences; in the result, `document_ends` are sentence indices."""
    with refusals("the sentence splitter"):
        rows = [splitter.split(text) for text in texts.texts]
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    if texts.document_ends is not None:
        ends = np.concatenate([np.zeros(1, dtype=np.int64), ends])[texts.document_ends]
    return Texts(texts=[sentence for row in rows for sentence in row], document_ends=ends)


def _without_long_words(text: str) -> str:
    """Replaces each character in the middle of a very long word by `x`; the text keeps its length."""
    if len(text) <= _LONGEST_WORD or max(map(len, text.split()), default=0) <= _LONGEST_WORD:
        return text
    return _LONG_WORD.sub(lambda word: word[0][:200] + "x" * (len(word[0]) - 400) + word[0][-200:], text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The tokens of several blocks for one key of the records.

    Attributes:
        tokens: tokens of all sequences, concatenated, in the dtype of the dataset.
        lengths: int32[num_sequences], tokens per sequence.
        document_ends: int64[num_documents], the index of the first sequence after each document.
        roles: uint8[num_tokens], from `role_bytes`; None if the recipe has no roles.
        modes: int8[num_sequences], the mode of each sequence of multimodal data; None for other data.
        hashes: uint64[num_documents, 2], a hash of each document's input text for this key; None if not requested.
    """

    tokens: NDArray[Any]
    lengths: NDArray[np.int32]
    document_ends: NDArray[np.int64]
    roles: NDArray[np.uint8] | None = None
    modes: NDArray[np.int8] | None = None
    hashes: DocumentHashes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedBlock(RecordCounts):
    """The tokens and counts of several blocks.

    Attributes:
        columns: one column per key, in the order of the keys, all with the same number of documents.
        hashes: uint64[num_documents, 2], a hash of each document's input texts for all keys; None if not requested.
        numbers: counts that are specific to the recipe, by name; see `CorpusSummary.numbers`.
        largest_token: largest token id in texts of multimodal data; None for other data or without text tokens.
    """

    columns: tuple[Column, ...]
    hashes: DocumentHashes | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)
    largest_token: int | None = None


def convert_records(
    bundle: Sequence[Block], convert: Callable[[Any], Result]
) -> tuple[list[Result], list[BadLine], SkippedRecords]:
    """Converts the value of each record; returns results of `convert`, bad records, and indices of skipped records.

    `convert` raises `UnusableLineError` or `InputError` for a bad record. Blank and bad records are skipped; their
    indices, int64[num_skipped], count all records of the bundle from 0.
    """
    results: list[Result] = []
    bad_lines: list[BadLine] = []
    skipped: list[int] = []
    records = ((block, record) for block in bundle for record in records_of(block))
    for number, (block, record) in enumerate(records):
        skipped.append(number)
        if record.is_blank:
            continue
        try:
            if isinstance(record.value, UnusableLineError):
                raise record.value
            results.append(convert(record.value))
        except UnusableLineError as error:
            bad_lines.append(bad_line(block, record, str(error)))
        except InputError as error:
            bad_lines.append(replace(bad_line(block, record, error.message), error=type(error)))
        else:
            skipped.pop()
    return results, bad_lines, np.array(skipped, dtype=np.int64)


class BlockTokenizer:
    """A thread-safe function that tokenizes blocks of text; each of `num_workers` threads uses its own engine."""

    def __init__(self, recipe: TextRecipe, choice: EngineChoice, *, num_workers: int) -> None:
        vocab_size = recipe.tokenizer.vocab_size
        for number in (recipe.document_tokens.bos, recipe.document_tokens.eod):
            if number is not None and not 0 <= number < vocab_size:
                raise ConfigError(f"token id {number} out of range: the vocabulary has {vocab_size} ids")
        self._recipe, self._dtype = recipe, recipe.dtype
        settings = recipe.settings
        self._template_tokens = TemplateTokens.of(recipe.tokenizer) if settings.template_tokens else TemplateTokens()
        self._splitter = SentenceSplitter(keep_newlines=settings.keep_newlines) if settings.split_sentences else None
        self._engines = EnginePool(recipe.tokenizer, choice, num_workers=num_workers)

    def __call__(self, bundle: Sequence[Block]) -> TokenizedBlock:
        """Tokenizes blocks; raises `RefusedTextError` if the tokenizer fails on a text."""
        num_bytes = sum(block.num_text_bytes for block in bundle)
        parsed = parse_bundle(bundle, self._recipe.settings.keys)
        num_documents = parsed.num_documents
        hashes = hash_documents(parsed.columns, num_documents) if self._recipe.hashes_documents else None
        columns: list[Column] = []
        num_doubled = 0
        for texts in parsed.columns:
            cut = texts if self._splitter is None else split_texts(texts, self._splitter)
            encoded = self._engines.encode(cut.texts, num_bytes=num_bytes, number=num_bytes)
            column, doubled = self._column(self._template_tokens.add(encoded), cut.document_ends)
            if self._recipe.settings.document_hashes:
                is_all = hashes is not None and len(parsed.columns) == 1
                column = replace(column, hashes=hashes if is_all else hash_documents([texts], num_documents))
            columns.append(column)
            num_doubled += doubled
        return TokenizedBlock(
            columns=tuple(columns),
            num_documents=num_documents,
            bad_lines=parsed.bad_lines,
            skipped=parsed.skipped,
            hashes=hashes,
            numbers={"num_doubled": num_doubled},
        )

    def _column(self, encoded: Encoded, text_ends: NDArray[np.int64] | None) -> tuple[Column, int]:
        """Returns a column of encoded texts, and the number of documents in which `bos` or `eod` is doubled."""
        tokens = encoded.tokens.astype(self._dtype)
        used = encoded.lengths > 0  # texts without tokens are not stored
        lengths = encoded.lengths[used].astype(np.int32)
        ends = np.cumsum(used, dtype=np.int64)
        if text_ends is not None:
            ends = np.concatenate([np.zeros(1, dtype=np.int64), ends])[text_ends]
        tokens, lengths, num_doubled = self._recipe.document_tokens.add(tokens, lengths, ends)
        return Column(tokens=tokens, lengths=lengths, document_ends=ends), num_doubled


def group_blocks(blocks: Iterable[Block], *, num_bytes: int) -> Iterator[list[Block]]:
    """Groups blocks, in order, into lists of at most `num_bytes` of text; a larger block is a list of its own."""
    bundle: list[Block] = []
    size = 0
    for block in blocks:
        if bundle and size + block.num_text_bytes > num_bytes:
            yield bundle
            bundle, size = [], 0
        bundle.append(block)
        size += block.num_text_bytes
        del block  # the list has the only reference
    if bundle:
        yield bundle


def parse_bundle(bundle: Sequence[Block], keys: Sequence[str]) -> ParsedBlock:
    """Parses blocks with `parse_block` and concatenates the results."""
    if not bundle:
        return ParsedBlock(columns=tuple(Texts(texts=[]) for _ in keys), num_documents=0)
    parsed = [parse_block(block, keys) for block in bundle]
    if len(parsed) == 1:
        return parsed[0]
    starts = accumulate((each.num_records for each in parsed), initial=0)
    return ParsedBlock(
        columns=tuple(_joined(texts) for texts in zip(*(each.columns for each in parsed), strict=True)),
        num_documents=sum(each.num_documents for each in parsed),
        bad_lines=[bad_line for each in parsed for bad_line in each.bad_lines],
        skipped=np.concatenate([each.skipped + start for each, start in zip(parsed, starts, strict=False)]),
    )


def _joined(parts: Sequence[Texts]) -> Texts:
    texts = joined_texts([part.texts for part in parts])
    if all(part.document_ends is None for part in parts):
        return Texts(texts=texts)
    ends: list[NDArray[np.int64]] = []
    num_before = 0
    for part in parts:
        own = part.document_ends
        ends.append(num_before + (np.arange(1, len(part.texts) + 1, dtype=np.int64) if own is None else own))
        num_before += len(part.texts)
    return Texts(texts=texts, document_ends=np.concatenate(ends))
