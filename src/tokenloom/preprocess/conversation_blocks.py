"""Blocks of conversations into arrays that only wait to be written: tokens, and which of them are answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, RefusedTextError
from tokenloom.indexed.roles import PartKind
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.left_out import LeftOut, left_out_of
from tokenloom.inputs.parsing import Texts
from tokenloom.inputs.records import BadLine, UnusableLineError, bad_line, records_of
from tokenloom.preprocess.blocks import Column, PartsOfSequences, TokenizedBlock
from tokenloom.preprocess.chat_templates import ChatTemplate
from tokenloom.preprocess.schemas import Record, Schema, detect_schema, read_record
from tokenloom.preprocess.selection import DocumentHashes, hash_documents
from tokenloom.preprocess.spans import SpanEncoder


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedBlock:
    """The sequences of a block as text; `owners` names the document of each, `left_out` the records that gave none."""

    sequences: list[Rendered]
    owners: list[int]
    num_documents: int
    num_blank_lines: int
    bad_lines: list[BadLine]
    left_out: LeftOut


class Renderer:
    """Turns blocks of lines into texts; safe from several threads.

    Args:
        template: template of conversations; None for the schema `text`, which needs none.
        schema: schema of the records.
    """

    def __init__(self, template: ChatTemplate | None, *, schema: Schema) -> None:
        self._template = template
        self._schema = schema

    def __call__(self, block: Block) -> RenderedBlock:
        """Returns the texts of a block; lines without any are listed, not raised."""
        sequences: list[Rendered] = []
        owners: list[int] = []
        bad_lines: list[BadLine] = []
        left_out: list[int] = []
        num_blank_lines = num_documents = 0
        for number, record in enumerate(records_of(block)):
            if record.is_blank:
                num_blank_lines += 1
                left_out.append(number)
                continue
            try:
                if isinstance(record.value, UnusableLineError):
                    raise record.value
                found = self._sequences(read_record(record.value, self._schema))
            except UnusableLineError as error:
                bad_lines.append(bad_line(block, record, str(error)))
                left_out.append(number)
                continue
            owners += [num_documents] * len(found)
            sequences += found
            num_documents += 1
        return RenderedBlock(
            sequences=sequences,
            owners=owners,
            num_documents=num_documents,
            num_blank_lines=num_blank_lines,
            bad_lines=bad_lines,
            left_out=left_out_of(left_out),
        )

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


class ConversationTokenizer:
    """Turns blocks into arrays, one at a time; safe from several threads.

    Args:
        render: makes texts of parts of a block.
        encoder: makes ids of these.
        dtype: dtype of the tokens.
        eod: ends each sequence whose last token it is not already.
        hash_texts: whether to hash the texts of each document, as they are rendered.
    """

    def __init__(
        self, render: Renderer, encoder: SpanEncoder, *, dtype: np.dtype[Any], eod: int, hash_texts: bool = False
    ) -> None:
        self._render = render
        self._encoder = encoder
        self._dtype = dtype
        self._eod = eod
        self._hash_texts = hash_texts

    def __call__(self, bundle: Sequence[Block]) -> TokenizedBlock:
        """Returns the tokens and roles of a block.

        Raises:
            RefusedTextError: the tokenizer refuses a text, or makes no token of it.
            TokenizerError: the engines disagree.
        """
        [block] = bundle
        return self._tokenized(self._render(block), number=block.first_record)

    def rejected(self, bad_line: BadLine) -> TokenizedBlock:
        """Returns what comes out of a block with nothing but a bad record."""
        rendered = RenderedBlock(
            sequences=[],
            owners=[],
            num_documents=0,
            num_blank_lines=0,
            bad_lines=[bad_line],
            left_out=left_out_of([0]),
        )
        return self._tokenized(rendered, number=0)

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
            num_blank_lines=rendered.num_blank_lines,
            bad_lines=rendered.bad_lines,
            left_out=rendered.left_out,
            numbers={"num_answer_tokens": int((part_stops - part_starts)[kinds != PartKind.prompt].sum())},
        )

    def _hashes(self, rendered: RenderedBlock, document_ends: NDArray[np.int64]) -> DocumentHashes | None:
        if not self._hash_texts:
            return None
        texts = [sequence.text for sequence in rendered.sequences]
        return hash_documents([Texts(texts=texts, document_ends=document_ends)], rendered.num_documents)
