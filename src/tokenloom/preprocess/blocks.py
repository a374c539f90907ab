"""Blocks of records into arrays that only wait to be written. This is what the worker threads do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.left_out import joined_left_out
from tokenloom.inputs.parsing import ParsedBlock, RecordsDone, Texts, parse_block
from tokenloom.inputs.utf8_texts import joined_texts
from tokenloom.preprocess.document_tokens import DocumentTokens, TemplateTokens
from tokenloom.preprocess.selection import DocumentHashes, hash_documents
from tokenloom.preprocess.sentences import SentenceSplitter, split_texts
from tokenloom.tokenizers.engines import EngineChoice, EnginePool
from tokenloom.tokenizers.text_tokenizer import Encoded, TextTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsOfSequences:
    """The parts that sequences are made of, see `SequenceRoles`.

    Attributes:
        counts: int64[num_sequences], parts of each.
        stops: int32[sum(counts)], one past the last token of each part, from the start of its sequence.
        kinds: uint8[sum(counts)], see `PartKind`.
    """

    counts: NDArray[np.int64]
    stops: NDArray[np.int32]
    kinds: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The sequences of some blocks under one key.

    Attributes:
        tokens: tokens in the dtype of the dataset, all sequences back to back.
        lengths: int32[num_sequences], tokens per sequence.
        document_ends: int64[num_documents], the number of sequences before each document's end.
        roles: which tokens are prompts, and which answers; None where the recipe has no roles.
        modes: int8[num_sequences], of multimodal data; None otherwise.
        hashes: uint64[num_documents, 2], of the texts under this key as they stood in the input; None if not asked for.
    """

    tokens: NDArray[Any]
    lengths: NDArray[np.int32]
    document_ends: NDArray[np.int64]
    roles: PartsOfSequences | None = None
    modes: NDArray[np.int8] | None = None
    hashes: DocumentHashes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedBlock(RecordsDone):
    """What came out of some blocks: one `Column` per key, all with the same number of documents.

    Attributes:
        columns: one column per key, in their order.
        num_doubled: documents, counted under each key, whose own text spells out the token that was put beside it.
        hashes: uint64[num_documents, 2], of the texts under all keys as they stood in the input; None if not asked for.
        numbers: further ones of the recipe, by name, which are added up.
        largest_token: largest token of the texts, in multimodal data; None where there is none.
    """

    columns: tuple[Column, ...]
    num_doubled: int = 0
    hashes: DocumentHashes | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)
    largest_token: int | None = None


class BlockTokenizer:
    """Tokenizes blocks; safe from several threads, each of which uses an engine of its own at a time.

    Args:
        tokenizer: names the ids.
        choice: the engine.
        keys: keys of the texts in each record.
        dtype: dtype of the tokens.
        document_tokens: put at the beginning and the end of each document; None for none.
        template_tokens: put around each text before that; None for none.
        splitter: cuts each text into sentences, a sequence each; None leaves texts whole.
        hash_documents: whether to hash each document, its texts under all keys together.
        hash_texts: whether to hash the text of each document under each key.
        num_workers: threads that will call; see `EnginePool`.

    Raises:
        ConfigError: a token to be added is not in the vocabulary.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        choice: EngineChoice,
        *,
        keys: Sequence[str],
        dtype: np.dtype[Any],
        document_tokens: DocumentTokens | None = None,
        template_tokens: TemplateTokens | None = None,
        splitter: SentenceSplitter | None = None,
        hash_documents: bool = False,
        hash_texts: bool = False,
        num_workers: int,
    ) -> None:
        self._keys = keys
        self._dtype = dtype
        self._document_tokens = DocumentTokens() if document_tokens is None else document_tokens
        for number in (self._document_tokens.bos, self._document_tokens.eod):
            if number is not None and number >= tokenizer.vocab_size:
                message = f"expected an id below {tokenizer.vocab_size} to add to documents, got {number}"
                raise ConfigError(message)
        self._template_tokens = TemplateTokens() if template_tokens is None else template_tokens
        self._splitter = splitter
        self._hash_documents = hash_documents
        self._hash_texts = hash_texts
        self._engines = EnginePool(tokenizer, choice, num_workers=num_workers)

    def __call__(self, bundle: Sequence[Block]) -> TokenizedBlock:
        """Returns the tokens of some blocks; see `tokenize`."""
        num_bytes = sum(block.num_text_bytes for block in bundle)
        return self.tokenize(parse_bundle(bundle, self._keys), num_bytes=num_bytes, number=num_bytes)

    def tokenize(self, parsed: ParsedBlock, *, num_bytes: int, number: int) -> TokenizedBlock:
        """Returns the tokens of documents.

        Args:
            parsed: parsed block with a column for each key.
            num_bytes: size of its texts in bytes, roughly.
            number: any; it selects the text by which a fast engine is checked.

        Raises:
            RefusedTextError: the tokenizer or the splitter refuses a text.
            TokenizerError: the engines disagree.
        """
        num_documents = parsed.num_documents
        hashes = hash_documents(parsed.columns, num_documents) if self._hash_documents else None
        columns: list[Column] = []
        num_doubled = 0
        for texts in parsed.columns:
            cut = texts if self._splitter is None else split_texts(texts, self._splitter)
            encoded = self._engines.encode(cut.texts, num_bytes=num_bytes, number=number)
            column, doubled = self._column(self._template_tokens.add(encoded), cut.document_ends)
            if self._hash_texts:
                is_all = hashes is not None and len(parsed.columns) == 1
                column = replace(column, hashes=hashes if is_all else hash_documents([texts], num_documents))
            columns.append(column)
            num_doubled += doubled
        return TokenizedBlock(
            columns=tuple(columns),
            num_documents=num_documents,
            bad_lines=parsed.bad_lines,
            left_out=parsed.left_out,
            num_doubled=num_doubled,
            hashes=hashes,
        )

    def _column(self, encoded: Encoded, text_ends: NDArray[np.int64] | None) -> tuple[Column, int]:
        """Returns the column, and the number of its documents with a doubled token."""
        tokens = encoded.tokens.astype(self._dtype)
        used = encoded.lengths > 0  # a text without tokens is no sequence
        lengths = encoded.lengths[used].astype(np.int32)
        ends = np.cumsum(used, dtype=np.int64)
        if text_ends is not None:
            ends = np.concatenate([np.zeros(1, dtype=np.int64), ends])[text_ends]
        tokens, lengths, num_doubled = self._document_tokens.add(tokens, lengths, ends)
        return Column(tokens=tokens, lengths=lengths, document_ends=ends), num_doubled


def bundled(blocks: Iterable[Block], *, num_bytes: int) -> Iterator[list[Block]]:
    """Yields all blocks, in order, in lists with at most so many bytes of text together, or of a single block."""
    bundle: list[Block] = []
    size = 0
    for block in blocks:
        if bundle and size + block.num_text_bytes > num_bytes:
            yield bundle
            bundle, size = [], 0
        bundle.append(block)
        size += block.num_text_bytes
        del block  # the receiver's to drop
    if bundle:
        yield bundle


def parse_bundle(bundle: Sequence[Block], keys: Sequence[str]) -> ParsedBlock:
    """Returns the texts of some blocks, one after the other; see `parse_block`."""
    if not bundle:
        return ParsedBlock(columns=tuple(Texts(texts=[]) for _ in keys), num_documents=0)
    parsed = [parse_block(block, keys) for block in bundle]
    if len(parsed) == 1:
        return parsed[0]
    return ParsedBlock(
        columns=tuple(_joined(texts) for texts in zip(*(each.columns for each in parsed), strict=True)),
        num_documents=sum(each.num_documents for each in parsed),
        bad_lines=[bad_line for each in parsed for bad_line in each.bad_lines],
        left_out=joined_left_out((each.left_out, each.num_records) for each in parsed),
    )


def _joined(parts: Sequence[Texts]) -> Texts:
    """Returns the texts under one key."""
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
