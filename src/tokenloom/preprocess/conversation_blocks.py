"""Blocks of conversations into arrays that only wait to be written: tokens, and which of them are answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import RefusedTextError
from tokenloom.indexed.roles import PartKind
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.left_out import left_out_of
from tokenloom.inputs.parsing import Texts
from tokenloom.inputs.records import BadLine
from tokenloom.preprocess.blocks import Column, PartsOfSequences, TokenizedBlock
from tokenloom.preprocess.rendering import RenderedBlock, Renderer
from tokenloom.preprocess.selection import DocumentHashes, hash_documents
from tokenloom.preprocess.spans import SpanEncoder


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
