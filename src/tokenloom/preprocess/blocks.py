"""One block of records into arrays that only wait to be written. This is what the worker threads do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import TokenizerError
from tokenloom.preprocess.engine_pool import EnginePool
from tokenloom.preprocess.engines import Encoded, EngineChoice
from tokenloom.preprocess.inputs.blocks import Block
from tokenloom.preprocess.parsing import parse_block
from tokenloom.preprocess.records import BadLine
from tokenloom.preprocess.tokenizers import HuggingFaceTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The sequences of a block under one key.

    Attributes:
        tokens: in the dtype of the dataset, all sequences back to back.
        lengths: int32[num_sequences], tokens per sequence; none is 0.
        document_ends: int64[num_documents], the number of sequences before each document's end.
    """

    tokens: NDArray[Any]
    lengths: NDArray[np.int32]
    document_ends: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenisedBlock:
    """What came out of a block: one `Column` per key, all with the same number of documents."""

    columns: tuple[Column, ...]
    num_documents: int
    num_blank_lines: int
    bad_lines: list[BadLine]


class BlockTokeniser:
    """Parses and tokenises blocks; safe from several threads, each of which uses an engine of its own at a time.

    Args:
        tokenizer: names the ids.
        choice: the engine.
        keys: of the texts in each record.
        dtype: of the tokens.
        eod: appended to each document that has tokens, if given.
        num_workers: threads that will call; sets the memory budget.
        memory_budget_bytes, renewal_bytes: see `EnginePool`.
    """

    def __init__(
        self,
        tokenizer: HuggingFaceTokenizer,
        choice: EngineChoice,
        *,
        keys: Sequence[str],
        dtype: np.dtype[Any],
        eod: int | None,
        num_workers: int,
        memory_budget_bytes: int | None = None,
        renewal_bytes: int | None = None,
    ) -> None:
        self._keys = keys
        self._dtype = dtype
        self._eod = eod
        self._vocab_size = tokenizer.vocab_size
        self._engines = EnginePool(
            tokenizer,
            choice,
            num_workers=num_workers,
            memory_budget_bytes=memory_budget_bytes,
            renewal_bytes=renewal_bytes,
        )

    def __call__(self, block: Block) -> TokenisedBlock:
        """Returns the tokens of a block.

        Raises:
            TokenizerError: the engines disagree.
        """
        parsed = parse_block(block, self._keys)
        columns: list[Column] = []
        for texts in parsed.columns:
            encoded = self._engines.encode(texts.texts, num_bytes=block.num_text_bytes, number=block.first_record)
            columns.append(self._column(encoded, texts.document_ends))
        return TokenisedBlock(
            columns=tuple(columns),
            num_documents=parsed.num_documents,
            num_blank_lines=parsed.num_blank_lines,
            bad_lines=parsed.bad_lines,
        )

    def _column(self, encoded: Encoded, text_ends: NDArray[np.int64] | None) -> Column:
        tokens = encoded.tokens
        if len(tokens) and (largest := int(tokens.max())) >= self._vocab_size:
            message = f"the engine gave token id {largest}, but the vocabulary has {self._vocab_size}"
            raise TokenizerError(message, hint="use the engine `tokenizers`")
        tokens = tokens.astype(self._dtype)
        used = encoded.lengths > 0  # a text without tokens is no sequence
        lengths = encoded.lengths[used].astype(np.int32)
        ends = np.cumsum(used, dtype=np.int64)
        if text_ends is not None:
            ends = np.concatenate([np.zeros(1, dtype=np.int64), ends])[text_ends]
        if self._eod is not None:
            last = ends[np.diff(ends, prepend=0) > 0] - 1  # the last sequence of each document that has any
            tokens = np.insert(tokens, np.cumsum(lengths, dtype=np.int64)[last], self._eod)
            lengths[last] += 1
        return Column(tokens=tokens, lengths=lengths, document_ends=ends)
