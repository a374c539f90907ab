"""Blocks of conversations into arrays that only wait to be written: tokens, and which of them are answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, RefusedTextError
from tokenloom.indexed.roles import PartKind
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.left_out import left_out_of
from tokenloom.inputs.parsing import Texts
from tokenloom.inputs.records import BadLine, UnusableLineError, bad_line, records_of
from tokenloom.preprocess.blocks import Column, PartsOfSequences, TokenizedBlock
from tokenloom.preprocess.chat_templates import ChatTemplate
from tokenloom.preprocess.schemas import Record, Schema, detect_schema, read_record
from tokenloom.preprocess.selection import DocumentHashes, hash_documents
from tokenloom.storage.json_files import parse_json
from tokenloom.tokenizers.engines import EngineChoice, EnginePool
from tokenloom.tokenizers.failures import refusals, require_sound
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer
from tokenloom.tokenizers.text_tokenizer import Encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedParts:
    """The ids of some texts.

    Attributes:
        tokens: integers[sum(lengths)], of all texts back to back.
        lengths: int64[num_texts].
        part_stops: int64[num_parts], the tokens of its text that end by the end of each part.
    """

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]
    part_stops: NDArray[np.int64]


class SpanEncoder:
    """Encodes texts that are made of parts; safe from several threads.

    A text is encoded as a whole, so that its ids are those of the text, and a token belongs to the part in which it
    ends. The fast engine says nothing of positions. With a byte-level tokenizer none is needed: its tokens spell the
    bytes of the text, so their lengths in the vocabulary add up to positions. Where they do not add up to the whole
    text (a tokenizer that normalises, say), the block is encoded by `tokenizers`, which does tell.

    Args:
        tokenizer: names the ids.
        choice: the engine.
        num_workers: threads that will call.
    """

    def __init__(self, tokenizer: HuggingFaceTokenizer, choice: EngineChoice, *, num_workers: int) -> None:
        self._vocab_size = tokenizer.vocab_size
        self._with_offsets = tokenizer.with_whole_offsets()
        self._token_bytes = None if choice.name == tokenizer.engine_name else token_bytes(tokenizer)
        self._engines = EnginePool(tokenizer, choice, num_workers=num_workers)

    def encode(self, texts: Sequence[Sequence[str]], *, number: int) -> EncodedParts:
        """Returns the ids of texts, each given as its parts.

        Args:
            texts: texts of one block.
            number: any; it selects the text by which a fast engine is checked.

        Raises:
            RefusedTextError: the tokenizer fails on a text.
            TokenizerError: the engines disagree.
        """
        if self._token_bytes is not None and (found := self._by_bytes(texts, self._token_bytes, number)) is not None:
            return found
        return self._by_offsets(texts)

    def _by_bytes(
        self, texts: Sequence[Sequence[str]], lengths_in_bytes: NDArray[np.int64], number: int
    ) -> EncodedParts | None:
        """Returns the ids by the engine chosen, or None where its tokens do not spell the bytes of the texts."""
        part_bytes = np.array([len(part.encode()) for parts in texts for part in parts], dtype=np.int64)
        part_ends = np.cumsum(part_bytes)
        counts = np.array([len(parts) for parts in texts], dtype=np.int64)
        text_ends = np.concatenate([np.zeros(1, dtype=np.int64), part_ends])[np.cumsum(counts)]
        encoded = self._engines.encode(
            ["".join(parts) for parts in texts], num_bytes=int(part_bytes.sum()), number=number
        )
        token_ends = np.cumsum(lengths_in_bytes[encoded.tokens])
        stops = np.cumsum(encoded.lengths)
        if not np.array_equal(np.concatenate([np.zeros(1, dtype=np.int64), token_ends])[stops], text_ends):
            return None
        part_stops = np.searchsorted(token_ends, part_ends, side="right") - np.repeat(stops - encoded.lengths, counts)
        return EncodedParts(tokens=encoded.tokens, lengths=encoded.lengths, part_stops=part_stops)

    def _by_offsets(self, texts: Sequence[Sequence[str]]) -> EncodedParts:
        with refusals("`tokenizers`"):
            encodings = self._with_offsets.encode_batch(["".join(parts) for parts in texts], add_special_tokens=False)
        tokens: list[NDArray[Any]] = [np.empty(0, dtype=np.uint32)]
        part_stops: list[NDArray[Any]] = [np.empty(0, dtype=np.int64)]
        for parts, encoding in zip(texts, encodings, strict=True):
            tokens.append(np.array(encoding.ids, dtype=np.uint32))
            ends = np.array([end for _, end in encoding.offsets], dtype=np.int64)
            part_stops.append(np.searchsorted(ends, list(accumulate(map(len, parts))), side="right"))
        encoded = Encoded(np.concatenate(tokens), np.array([len(row) for row in tokens[1:]], dtype=np.int64))
        require_sound(encoded, num_texts=len(texts), vocab_size=self._vocab_size)
        return EncodedParts(
            tokens=encoded.tokens,
            lengths=encoded.lengths,
            part_stops=np.concatenate(part_stops),
        )


def token_bytes(tokenizer: HuggingFaceTokenizer) -> NDArray[np.int64] | None:
    """Returns the bytes of text that each token of a byte-level tokenizer spells, int64[vocab_size], or None."""
    if (parse_json(tokenizer.data, most_bytes=len(tokenizer.data)).get("decoder") or {}).get("type") != "ByteLevel":
        return None
    lengths = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for token, number in tokenizer.backend.get_vocab(with_added_tokens=False).items():
        lengths[number] = len(token)  # one character stands for each byte
    for number, added in tokenizer.backend.get_added_tokens_decoder().items():
        lengths[number] = len(added.content.encode())
    return lengths


def schema_of(block: Block | None) -> Schema:
    """Returns the schema of the first record that has one; `messages` where there is no record at all."""
    failure: ConfigError | None = None
    for record in () if block is None else records_of(block):
        if type(record.value) is dict:
            try:
                return detect_schema(record.value)
            except ConfigError as error:
                failure = failure or error
    if failure is not None:
        raise failure
    return "messages"


@dataclass(frozen=True, slots=True)
class Rendered:
    """One sequence as text: its parts, and what kind each is."""

    parts: list[str]
    kinds: list[int]

    @property
    def text(self) -> str:
        """All parts."""
        return "".join(self.parts)


@dataclass(slots=True, kw_only=True)
class RenderedBlock:
    """The sequences of a block as text.

    Attributes:
        sequences: of all its documents, one after the other.
        owners: the number of the document of each.
        num_documents: number of documents.
        bad_lines: records without a document.
        left_out: the numbers of the records that gave none, from 0.
    """

    sequences: list[Rendered] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    num_documents: int = 0
    bad_lines: list[BadLine] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)


class ConversationTokenizer:
    """Turns blocks into arrays, one at a time; safe from several threads.

    Args:
        template: template of conversations; None for the schema `text`, which needs none.
        schema: schema of the records.
        encoder: makes ids of what is rendered.
        dtype: dtype of the tokens.
        eod: ends each sequence whose last token it is not already.
        hash_texts: whether to hash the texts of each document, as they are rendered.
    """

    def __init__(
        self,
        template: ChatTemplate | None,
        schema: Schema,
        encoder: SpanEncoder,
        *,
        dtype: np.dtype[Any],
        eod: int,
        hash_texts: bool = False,
    ) -> None:
        self._template = template
        self._schema = schema
        self._encoder = encoder
        self._dtype = dtype
        self._eod = eod
        self._hash_texts = hash_texts

    def __call__(self, bundle: Sequence[Block]) -> TokenizedBlock:
        """Returns the tokens and roles of a block, or of none.

        Raises:
            RefusedTextError: the tokenizer refuses a text, or makes no token of it.
            TokenizerError: the engines disagree.
        """
        rendered = RenderedBlock()
        for block in bundle:
            self._render(block, rendered)
        return self._tokenized(rendered, number=bundle[0].first_record if bundle else 0)

    def _render(self, block: Block, made: RenderedBlock) -> None:
        """Adds the texts of a block; records without any are listed, not raised."""
        for record in records_of(block):
            number = made.num_documents + len(made.left_out)
            if record.is_blank:
                made.left_out.append(number)
                continue
            try:
                if isinstance(record.value, UnusableLineError):
                    raise record.value
                found = self._sequences(read_record(record.value, self._schema))
            except UnusableLineError as error:
                made.bad_lines.append(bad_line(block, record, str(error)))
                made.left_out.append(number)
                continue
            made.owners += [made.num_documents] * len(found)
            made.sequences += found
            made.num_documents += 1

    def _sequences(self, record: Record) -> list[Rendered]:
        if record.text is not None:
            return [Rendered([record.text], [PartKind.text])]
        assert self._template is not None  # there is one for every schema but `text`
        rendered = [self._template.render(conversation) for conversation in record.conversations]
        if not all(rendered):
            which = f"conversation {rendered.index([]) + 1}" if len(rendered) > 1 else "the conversation"
            reason = f"{self._template.name} makes nothing of {which}: no text at all"
            raise UnusableLineError(reason)
        return [
            Rendered(
                [part.text for part in parts],
                [PartKind.answer if part.is_answer else PartKind.prompt for part in parts],
            )
            for parts in rendered
        ]

    def _tokenized(self, rendered: RenderedBlock, *, number: int) -> TokenizedBlock:
        encoded = self._encoder.encode([sequence.parts for sequence in rendered.sequences], number=number)
        tokens, lengths, part_stops = encoded.tokens, encoded.lengths, encoded.part_stops
        if not lengths.all():  # a lone end of a document would be trained on as somebody's answer
            message = "no token comes of the conversation or text"
            raise RefusedTextError(message)
        part_counts = np.array([len(sequence.parts) for sequence in rendered.sequences], dtype=np.int64)
        kinds = np.array([kind for sequence in rendered.sequences for kind in sequence.kinds], dtype=np.uint8)
        last_part = np.cumsum(part_counts) - 1

        # The end-of-document token joins the last part.
        ends = np.cumsum(lengths)
        open_ended = tokens[ends - 1] != self._eod
        tokens = np.insert(tokens, ends[open_ended], self._eod)
        lengths = lengths + open_ended
        part_stops[last_part] = lengths

        part_starts = np.concatenate([np.zeros(1, dtype=np.int64), part_stops])[: len(part_stops)]
        part_starts[last_part - part_counts + 1] = 0
        kept = part_stops > part_starts  # a part may come to no token of its own
        owner = np.repeat(np.arange(len(lengths)), part_counts)
        owners = np.array(rendered.owners, dtype=np.int64)
        document_ends = np.searchsorted(owners, np.arange(rendered.num_documents), side="right").astype(np.int64)
        column = Column(
            tokens=tokens.astype(self._dtype),
            lengths=lengths.astype(np.int32),
            document_ends=document_ends,
            roles=PartsOfSequences(
                counts=np.bincount(owner[kept], minlength=len(lengths)).astype(np.int64),
                stops=part_stops[kept].astype(np.int32),
                kinds=kinds[kept],
            ),
            hashes=self._hashes(rendered, document_ends),
        )
        return TokenizedBlock(
            columns=(column,),
            num_documents=rendered.num_documents,
            bad_lines=rendered.bad_lines,
            left_out=left_out_of(rendered.left_out),
            numbers={"num_answer_tokens": int((part_stops - part_starts)[kinds != PartKind.prompt].sum())},
        )

    def _hashes(self, rendered: RenderedBlock, document_ends: NDArray[np.int64]) -> DocumentHashes | None:
        if not self._hash_texts:
            return None
        texts = [sequence.text for sequence in rendered.sequences]
        return hash_documents([Texts(texts=texts, document_ends=document_ends)], rendered.num_documents)
