"""Blocks of records into arrays, by worker threads.

Libraries get many texts at a time, so that a failure names none of them; the records are then tried again in halves,
down to the bad one, which costs nothing while none is bad. `nupunkt` finds sentences in pure Python: 10 to 20 MB/s in
one thread, and only processes make it faster.
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

from tokenloom.errors import ConfigError, InputError, RefusedTextError
from tokenloom.indexed.writing.outputs import REJECTED_SUFFIX
from tokenloom.inputs.records import (
    BadLine,
    Block,
    LeftOut,
    ParsedBlock,
    RecordsDone,
    Texts,
    UnusableLineError,
    bad_line,
    left_out_of,
    parse_block,
    records_of,
)
from tokenloom.inputs.utf8_texts import joined_texts
from tokenloom.kernels.arrays import insert_items
from tokenloom.optional import require
from tokenloom.preprocess.selection import DocumentHashes, hash_documents
from tokenloom.tokenizers.engines import EngineChoice, EnginePool
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer
from tokenloom.tokenizers.text_tokenizer import Encoded, TextTokenizer, refusals

if TYPE_CHECKING:
    from tokenloom.preprocess.text import TextRecipe

Made = TypeVar("Made")

Work = Callable[[Sequence[Block]], "TokenizedBlock"]
"""Tokenizes some blocks together; the result is that of each, one after the other."""


def isolated(work: Work, bundle: Sequence[Block]) -> list[TokenizedBlock]:
    """Returns the tokens of some blocks, in order; in several pieces if a record is bad, which is then a piece."""
    try:
        return [work(bundle)]
    except RefusedTextError as error:
        reason = error.message
    if (halves := _halved(bundle)) is None:
        return [rejected(work, bundle, reason)]
    return [made for half in halves for made in isolated(work, half)]


def rejected(work: Work, bundle: Sequence[Block], reason: str) -> TokenizedBlock:
    """Returns the piece of the only record of some blocks, which a tokenizer refuses."""
    [block] = bundle
    bad = bad_line(block, next(iter(records_of(block))), reason)
    return replace(work([]), bad_lines=[replace(bad, error=RefusedTextError)], left_out=left_out_of([0]))


def _halved(bundle: Sequence[Block]) -> tuple[Sequence[Block], Sequence[Block]] | None:
    """Returns the first and the last records of some blocks; None if there is one record only."""
    if len(bundle) > 1:
        middle = len(bundle) // 2
        return bundle[:middle], bundle[middle:]
    halves = bundle[0].halves()
    return None if halves is None else ([halves[0]], [halves[1]])


def singles(bundle: Sequence[Block]) -> Iterator[Sequence[Block]]:
    """Yields the records of some blocks, in order, each as a block of its own."""
    if (halves := _halved(bundle)) is None:
        yield bundle
        return
    for half in halves:
        yield from singles(half)


def rejected_path(prefix: str) -> str:
    """Returns the path of the bad records of a prefix."""
    return f"{prefix}{REJECTED_SUFFIX}"


def json_line(record: dict[str, object]) -> bytes:
    """Returns a record as a line of JSON in UTF-8; bytes of paths that are not UTF-8 are escaped."""
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentTokens:
    """The tokens added to each document; a document without tokens gets none.

    Attributes:
        bos, eod: ids before the first and after the last token, or None.
    """

    bos: int | None = None
    eod: int | None = None

    @classmethod
    def of(cls, tokenizer: TextTokenizer, *, prepend_bos: bool = False, append_eod: bool = False) -> Self:
        """Returns the ids of a tokenizer; a `MissingTokenError` where it does not have one of them."""
        return cls(bos=tokenizer.bos if prepend_bos else None, eod=tokenizer.eod if append_eod else None)

    def add(
        self, tokens: NDArray[Any], lengths: NDArray[np.int32], document_ends: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.int32], int]:
        """Returns the new tokens and lengths, and the number of documents that now begin or end with two.

        A document has two where its own text spells the token out.

        Args:
            tokens: tokens of all sequences, back to back, in the dtype of the dataset.
            lengths: int32[num_sequences], tokens per sequence, none of them 0.
            document_ends: int64[num_documents], the number of sequences before each document's end.
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
        wanted = [number is not None for number in ids]
        # At one place the end of a document comes before the beginning of the next, as in this order.
        values = np.tile(np.array([number for number in ids if number is not None], dtype=tokens.dtype), len(first))
        return insert_items(tokens, places[:, wanted].ravel(), values), lengths, int(doubled.sum())


@dataclass(frozen=True, slots=True)
class TemplateTokens:
    """The ids `before` and `after` each text, an empty one too."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> TemplateTokens:
        """Returns the ids of a tokenizer's template; none where it has no template."""
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


# A run of this many characters without white space is no prose. `nupunkt` scans from each full stop in it to its end:
# 30 kB of "x.)" take it half a second, 60 kB two. It gets the ends of such a run only.
_LONGEST_WORD = 1000
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")


class SentenceSplitter:
    """Splits texts into sentences; safe from several threads; picklable.

    Args:
        keep_newlines: whether the white space after a sentence belongs to it, as with the reference's option of that
            name, so that the joined sentences are the text; else sentences are stripped.

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
        # Not `sentence_spans`, which also ends sentences at blank lines: it takes three times as long, and the
        # reference's splitter does not. All instances share the model.
        self._model: Any = require("nupunkt", extra="sentences").load("default")

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SentenceSplitter, keep_newlines=self.keep_newlines), ()

    def split(self, text: str) -> list[str]:
        """Returns the sentences of a text; white space alone is a sentence with `keep_newlines` only."""
        spans = list(self._model.span_tokenize(_without_long_words(text)))
        if not self.keep_newlines:
            return [sentence for start, stop in spans if (sentence := text[start:stop].strip())]
        starts = [0, *(start for start, _ in spans[1:]), len(text)]
        return [text[start:stop] for start, stop in pairwise(starts) if start < stop]


def split_texts(texts: Texts, splitter: SentenceSplitter) -> Texts:
    """Returns the sentences of documents; a document of several texts has the sentences of each of them in turn."""
    with refusals("the splitter of sentences"):
        rows = [splitter.split(text) for text in texts.texts]
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    if texts.document_ends is not None:
        ends = np.concatenate([np.zeros(1, dtype=np.int64), ends])[texts.document_ends]
    return Texts(texts=[sentence for row in rows for sentence in row], document_ends=ends)


def _without_long_words(text: str) -> str:
    """Returns a text of the same length, with `x` for the inside of very long words."""
    if len(text) <= _LONGEST_WORD or max(map(len, text.split()), default=0) <= _LONGEST_WORD:
        return text
    return _LONG_WORD.sub(lambda word: word[0][:200] + "x" * (len(word[0]) - 400) + word[0][-200:], text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The sequences of some blocks under one key.

    Attributes:
        tokens: tokens in the dtype of the dataset, all sequences back to back.
        lengths: int32[num_sequences], tokens per sequence.
        document_ends: int64[num_documents], the number of sequences before each document's end.
        roles: uint8[num_tokens], of `role_bytes`; None where the recipe has no roles.
        modes: int8[num_sequences], of multimodal data; None otherwise.
        hashes: uint64[num_documents, 2], of the texts under this key as they stood in the input, or None.
    """

    tokens: NDArray[Any]
    lengths: NDArray[np.int32]
    document_ends: NDArray[np.int64]
    roles: NDArray[np.uint8] | None = None
    modes: NDArray[np.int8] | None = None
    hashes: DocumentHashes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedBlock(RecordsDone):
    """The tokens of some blocks: one `Column` per key, all with the same number of documents.

    Attributes:
        columns: one column per key, in their order.
        hashes: uint64[num_documents, 2], of the texts under all keys as they stood in the input, or None.
        numbers: further counts of the recipe, by name.
        largest_token: largest token of the texts, in multimodal data; None where there is none.
    """

    columns: tuple[Column, ...]
    hashes: DocumentHashes | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)
    largest_token: int | None = None


def made_of_records(bundle: Sequence[Block], make: Callable[[Any], Made]) -> tuple[list[Made], list[BadLine], LeftOut]:
    """Returns the results of `make` for the records of some blocks, the bad records, and those without a result.

    `make` gets the value of a record; it raises an `UnusableLineError` or `InputError` where it is bad.
    """
    made: list[Made] = []
    bad_lines: list[BadLine] = []
    left_out: list[int] = []
    records = ((block, record) for block in bundle for record in records_of(block))
    for number, (block, record) in enumerate(records):
        left_out.append(number)
        if record.is_blank:
            continue
        try:
            if isinstance(record.value, UnusableLineError):
                raise record.value
            made.append(make(record.value))
        except UnusableLineError as error:
            bad_lines.append(bad_line(block, record, str(error)))
        except InputError as error:
            bad_lines.append(replace(bad_line(block, record, error.message), error=type(error)))
        else:
            left_out.pop()
    return made, bad_lines, left_out_of(left_out)


class BlockTokenizer:
    """Tokenizes blocks; safe from several threads, `num_workers` of them, each with its own engine at a time."""

    def __init__(self, recipe: TextRecipe, choice: EngineChoice, *, num_workers: int) -> None:
        vocab_size = recipe.tokenizer.vocab_size
        for number in (recipe.document_tokens.bos, recipe.document_tokens.eod):
            if number is not None and not 0 <= number < vocab_size:
                raise ConfigError(f"token id {number} out of range: the vocabulary has {vocab_size}")
        self._recipe, self._dtype = recipe, recipe.dtype
        settings = recipe.settings
        self._template_tokens = TemplateTokens.of(recipe.tokenizer) if settings.template_tokens else TemplateTokens()
        self._splitter = SentenceSplitter(keep_newlines=settings.keep_newlines) if settings.split_sentences else None
        self._engines = EnginePool(recipe.tokenizer, choice, num_workers=num_workers)

    def __call__(self, bundle: Sequence[Block]) -> TokenizedBlock:
        """Returns the tokens of some blocks; a `RefusedTextError` where a text is refused."""
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
            left_out=parsed.left_out,
            hashes=hashes,
            numbers={"num_doubled": num_doubled},
        )

    def _column(self, encoded: Encoded, text_ends: NDArray[np.int64] | None) -> tuple[Column, int]:
        """Returns the column, and the number of its documents with a doubled token."""
        tokens = encoded.tokens.astype(self._dtype)
        used = encoded.lengths > 0  # a text without tokens is no sequence
        lengths = encoded.lengths[used].astype(np.int32)
        ends = np.cumsum(used, dtype=np.int64)
        if text_ends is not None:
            ends = np.concatenate([np.zeros(1, dtype=np.int64), ends])[text_ends]
        tokens, lengths, num_doubled = self._recipe.document_tokens.add(tokens, lengths, ends)
        return Column(tokens=tokens, lengths=lengths, document_ends=ends), num_doubled


def bundled(blocks: Iterable[Block], *, num_bytes: int) -> Iterator[list[Block]]:
    """Yields all blocks, in order, in lists of at most `num_bytes` of text, or of a single block."""
    bundle: list[Block] = []
    size = 0
    for block in blocks:
        if bundle and size + block.num_text_bytes > num_bytes:
            yield bundle
            bundle, size = [], 0
        bundle.append(block)
        size += block.num_text_bytes
        del block  # only the caller holds it
    if bundle:
        yield bundle


def parse_bundle(bundle: Sequence[Block], keys: Sequence[str]) -> ParsedBlock:
    """Returns the texts of some blocks, one after the other; see `parse_block`."""
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
        left_out=np.concatenate([each.left_out + start for each, start in zip(parsed, starts, strict=False)]),
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
