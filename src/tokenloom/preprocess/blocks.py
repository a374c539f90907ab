"""One block of lines into arrays that only wait to be written. This is what the worker threads do."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import TokenizerError
from tokenloom.preprocess.engines import Encoded, Engine, EngineChoice, TokenizersEngine, recheck
from tokenloom.preprocess.parsing import BadLine, parse_block
from tokenloom.preprocess.sources import LineBlock
from tokenloom.preprocess.tokenizers import HuggingFaceTokenizer

# `gigatoken` remembers every distinct word it meets, some 70 bytes each: 500 MB of source code cost 20 MB, 45 MB of
# random words 330 MB. An engine is replaced (in 60 ms) when the process has grown beyond a budget and the engine has
# read enough to be a likely cause.
_MEMORY_BUDGET_BYTES = 160 << 20
_MEMORY_BUDGET_BYTES_PER_WORKER = 64 << 20
_RENEWAL_BYTES = 8 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


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
        keys: of the texts in each JSON object.
        dtype: of the tokens.
        eod: appended to each document that has tokens, if given.
        num_workers: threads that will call; sets the memory budget.
        memory_budget_bytes: of the process, beyond which engines are replaced; None for what suits the workers.
        renewal_bytes: of text that an engine reads before it is replaced.
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
        renewal_bytes: int = _RENEWAL_BYTES,
    ) -> None:
        self._keys = keys
        self._dtype = dtype
        self._eod = eod
        self._vocab_size = tokenizer.vocab_size
        self._truth = TokenizersEngine(tokenizer)
        self._choice = choice
        self._idle: list[tuple[Engine, int]] = []  # with the bytes each has read
        self._budget = memory_budget_bytes or _MEMORY_BUDGET_BYTES + _MEMORY_BUDGET_BYTES_PER_WORKER * num_workers
        self._renewal_bytes = renewal_bytes

    def __call__(self, block: LineBlock) -> TokenisedBlock:
        """Returns the tokens of a block.

        Raises:
            TokenizerError: the engines disagree.
        """
        parsed = parse_block(block, self._keys)
        try:
            engine, num_bytes = self._idle.pop()
        except IndexError:
            engine, num_bytes = self._choice.create(), 0
        columns: list[Column] = []
        for texts in parsed.columns:
            encoded = engine.encode(texts.texts)
            if self._choice.must_agree:
                recheck(engine, self._truth, texts.texts, encoded, choice=block.first_line)
            num_bytes += len(block.data)
            columns.append(self._column(encoded, texts.document_ends))
        if num_bytes < self._renewal_bytes or _resident_bytes() < self._budget:
            self._idle.append((engine, num_bytes))
        else:
            del engine
            _return_freed_memory()
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


def _return_freed_memory() -> None:
    """Gives freed memory back to the system, which glibc does not do by itself for memory that threads allocated."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as stream:
        return int(stream.read().split()[1]) * _PAGE_BYTES
